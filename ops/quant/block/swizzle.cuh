// swizzle_scales and unswizzle_scales on CUDA: formats/swizzle.h, either way.
// Map      tiles  a thread block turns 128 rows x 128 columns, 32 tiles, through shared memory:
//                 both sides move 16 bytes a thread
//          shifted  rows of any width and address: to tiles, a thread 16 columns of a row, read by the
//                 aligned 16 bytes that hold them, a warp's words side by side in a tile; from tiles
//                 through shared memory, a warp a row, byte by byte
//          any    a thread four bytes of the output, a block's threads apart; any strides
// Traffic  scales once, out once; the tiled side is padded to 128 rows and 4 columns with zeros.
#pragma once

#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "formats/swizzle.h"

namespace pestle::ops {

inline constexpr int kSwizzleThreads = 256;
inline constexpr int kSwizzleEach = 4;              // of a thread, any strides
inline constexpr int kSwizzleTiles = 32;            // of 4 columns, in a thread block
inline constexpr int kSwizzleTileBytes = 512 + 16;  // in shared memory: banks apart

struct SwizzleJob {
  char* plain;
  int64_t plain_row_bytes;
  char* tiled;
  int64_t rows;
  int64_t columns;
  int64_t row_tiles;  // tiles of a row
  int64_t blocks_across;
};

#ifdef __CUDACC__

// To tiles, or from them.
template <bool kToTiles>
__global__ void __launch_bounds__(kSwizzleThreads) swizzle_tiles(SwizzleJob job) {
  __shared__ __align__(16) char shared[kSwizzleTiles * kSwizzleTileBytes];
  const int64_t row0 = blockIdx.x / job.blocks_across * 128;
  const int64_t tile0 = blockIdx.x % job.blocks_across * kSwizzleTiles;
  char* tiled = job.tiled + (row0 / 128 * job.row_tiles + tile0) * 512;
  const auto tiles =
      static_cast<int>(min(job.row_tiles - tile0, static_cast<int64_t>(kSwizzleTiles)));

  // 16 columns of a row, four tiles' words.
  const auto plain_pieces = [&](auto&& move) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int piece = threadIdx.x + i * kSwizzleThreads;
      const int row = piece / 8, tile = piece % 8 * 4;
      const int64_t column = (tile0 + tile) * 4;
      char* words = shared + tile * kSwizzleTileBytes + row % 32 * 16 + row / 32 * 4;
      move(job.plain + (row0 + row) * job.plain_row_bytes + column,
           row0 + row < job.rows && column < job.columns, words);
    }
  };
  const auto tiled_pieces = [&](auto&& move) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int piece = threadIdx.x + i * kSwizzleThreads;
      if (piece / 32 < tiles) {
        move(tiled + piece * 16, shared + piece / 32 * kSwizzleTileBytes + piece % 32 * 16);
      }
    }
  };
  if constexpr (kToTiles) {
    plain_pieces([](const char* from, bool inside, char* words) {
      const uint4 v = inside ? cuda::load16(from) : make_uint4(0, 0, 0, 0);
      const uint32_t w[4] = {v.x, v.y, v.z, v.w};
      for (int t = 0; t < 4; ++t) {
        *reinterpret_cast<uint32_t*>(words + t * kSwizzleTileBytes) = w[t];
      }
    });
    __syncthreads();
    tiled_pieces([](char* to, const char* piece) {
      cuda::store16(to, *reinterpret_cast<const uint4*>(piece));
    });
  } else {
    tiled_pieces([](const char* from, char* piece) {
      *reinterpret_cast<uint4*>(piece) = cuda::load16(from);
    });
    __syncthreads();
    plain_pieces([](char* to, bool inside, const char* words) {
      uint32_t w[4];
      for (int t = 0; t < 4; ++t) {
        w[t] = *reinterpret_cast<const uint32_t*>(words + t * kSwizzleTileBytes);
      }
      if (inside) cuda::store16(to, make_uint4(w[0], w[1], w[2], w[3]));
    });
  }
}

// 16 bytes, and 0 for those past `left`. The aligned 16 bytes that are read hold some of them.
__device__ inline void load_shifted(const char* p, int64_t left, uint32_t (&w)[8]) {
  for (uint32_t& word : w) word = 0;
  if (left <= 0) return;
  const int count = static_cast<int>(min(left, int64_t{16}));
  const auto shift = static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (shift + count <= 16 * i) continue;
    const uint4 v = cuda::load16(p - shift + 16 * i);
    w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
  }
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = (shift & 8) != 0 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = (shift & 4) != 0 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = __funnelshift_r(w[i], w[i + 1], shift % 4 * 8);
    const int bytes = count - 4 * i;
    w[i] &= bytes >= 4 ? ~0u : bytes <= 0 ? 0u : (1u << 8 * bytes) - 1;
  }
}

__device__ inline void shift_to_tiles(const SwizzleJob& job) {
  const int64_t row_tile = blockIdx.x / job.blocks_across;
  const int word = threadIdx.x % 128;  // of a tile
  const int64_t row = row_tile * 128 + word % 4 * 32 + word / 4;
#pragma unroll 1
  for (int piece = threadIdx.x / 128; piece < kSwizzleTiles / 4; piece += kSwizzleThreads / 128) {
    const int64_t tile = blockIdx.x % job.blocks_across * kSwizzleTiles + piece * 4;
    const int64_t left = row < job.rows ? job.columns - tile * 4 : 0;
    uint32_t w[8];
    load_shifted(job.plain + row * job.plain_row_bytes + tile * 4, left, w);
    char* tiled = job.tiled + (row_tile * job.row_tiles + tile) * 512 + word * 4;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (tile + t < job.row_tiles) *reinterpret_cast<uint32_t*>(tiled + t * 512) = w[t];
    }
  }
}

// A warp a row at a time: neighbouring lanes have neighbouring bytes of it.
__device__ inline void shift_from_tiles(const SwizzleJob& job) {
  __shared__ __align__(16) char shared[kSwizzleTiles * kSwizzleTileBytes];
  const int64_t row0 = blockIdx.x / job.blocks_across * 128;
  const int64_t tile0 = blockIdx.x % job.blocks_across * kSwizzleTiles;
  const char* tiled = job.tiled + (row0 / 128 * job.row_tiles + tile0) * 512;
  const auto words =
      static_cast<int>(min(job.row_tiles - tile0, static_cast<int64_t>(kSwizzleTiles))) * 128;
#pragma unroll 4
  for (int i = threadIdx.x; i < words; i += kSwizzleThreads) {
    *reinterpret_cast<uint32_t*>(shared + i / 128 * kSwizzleTileBytes + i % 128 * 4) =
        __ldg(reinterpret_cast<const uint32_t*>(tiled) + i);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const auto left = static_cast<int>(min(job.columns - tile0 * 4, int64_t{kSwizzleTiles * 4}));
  const auto rows = static_cast<int>(min(job.rows - row0, int64_t{128}));
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < rows; row += kSwizzleThreads / 32) {
    const char* from = shared + row % 32 * 16 + row / 32 * 4;
    char* to = job.plain + (row0 + row) * job.plain_row_bytes + tile0 * 4;
#pragma unroll
    for (int i = lane; i < kSwizzleTiles * 4; i += 32) {
      if (i < left) to[i] = from[i / 4 * kSwizzleTileBytes + i % 4];
    }
  }
}

// As swizzle_tiles.
template <bool kToTiles>
__global__ void __launch_bounds__(kSwizzleThreads) swizzle_shifted(SwizzleJob job) {
  if constexpr (kToTiles) {
    shift_to_tiles(job);
  } else {
    shift_from_tiles(job);
  }
}

// Byte `index` of the output.
template <bool kToTiles>
__device__ inline char swizzled_byte(const cuda::AnyTensor& plain, const cuda::AnyTensor& tiled,
                                     int64_t index) {
  const int64_t columns = plain.shape[1];
  if constexpr (kToTiles) {
    const formats::SwizzleCoord at = formats::swizzle_coord(index, columns);
    const bool inside = at.row < plain.shape[0] && at.col < columns;
    return inside ? *plain.at(at.row, at.col) : char{0};
  } else {
    const int64_t row = cuda::AnyTensor::quotient(index, columns);
    return *tiled.element_at(formats::swizzle_offset(row, index - row * columns, columns));
  }
}
template <bool kToTiles>
__global__ void __launch_bounds__(kSwizzleThreads)
    swizzle_any(cuda::AnyTensor plain, cuda::AnyTensor tiled, int64_t count) {
  const cuda::AnyTensor& out = kToTiles ? tiled : plain;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (kSwizzleThreads * kSwizzleEach) + threadIdx.x;
  char bytes[kSwizzleEach];
#pragma unroll
  for (int i = 0; i < kSwizzleEach; ++i) {
    bytes[i] = swizzled_byte<kToTiles>(plain, tiled, min(first + i * kSwizzleThreads, count - 1));
  }
#pragma unroll
  for (int i = 0; i < kSwizzleEach; ++i) {
    const int64_t index = first + i * kSwizzleThreads;
    if (index < count) *out.element_at(index) = bytes[i];
  }
}

#endif  // __CUDACC__

template <bool kToTiles>
Status run_swizzle(const Call& call, const char* name, const TensorView& plain,
                   const TensorView& tiled, bool is_shifted = false) {
  const int64_t row_tiles = tiled.shape[1] / 4;
  const int64_t across = cuda::ceil_div(row_tiles, kSwizzleTiles);
  const SwizzleJob job{plain.as<char>(),
                       cuda::row_distance(plain),
                       tiled.as<char>(),
                       plain.shape[0],
                       plain.shape[1],
                       row_tiles,
                       across};
  return cuda::launch(call, name, {tiled.shape[0] / 128 * across, kSwizzleThreads},
                      is_shifted ? swizzle_shifted<kToTiles> : swizzle_tiles<kToTiles>, job);
}

template <bool kToTiles>
Status run_swizzle_any(const Call& call, const char* name, const TensorView& plain,
                       const TensorView& tiled) {
  const bool are_neighbours = plain.strides[1] == 1 && is_contiguous(tiled);
  if (numel(plain) > 0 && are_neighbours && cuda::refuse_unaligned("tiled", tiled, 4).empty())
    return run_swizzle<kToTiles>(call, name, plain, tiled, true);
  const int64_t count = numel(kToTiles ? tiled : plain);
  return cuda::launch(call, name,
                      {cuda::ceil_div(count, kSwizzleThreads * kSwizzleEach), kSwizzleThreads},
                      swizzle_any<kToTiles>, cuda::AnyTensor(plain), cuda::AnyTensor(tiled), count);
}

inline std::string refuse_swizzle(const char* plain_name, const TensorView& plain,
                                  const char* tiled_name, const TensorView& tiled) {
  if (numel(plain) == 0) return "the matrix is empty";
  if (plain.shape[1] % 16 != 0) return "a row is no multiple of 16 scales";
  if (!is_contiguous(tiled)) return std::string(tiled_name) + " has gaps";
  if (std::string why = cuda::refuse_unaligned(plain_name, plain); !why.empty()) return why;
  return cuda::refuse_unaligned(tiled_name, tiled);
}

}  // namespace pestle::ops
