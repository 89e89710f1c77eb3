// Decoders of 4-bit codes with one scale a row, rotated back by groups of 256, on tensor cores.
// H256 is H16 for each digit: with a group as 16 blocks s of 16 neighbours i, it is H16 X H16. What
// codes stand for before the row's scale are small integers, so both products are exact in f16 with
// sums in f32, and one product by scale and norm is all that is rounded.
// Map      a warp up to 8 pieces of 4 groups, the next piece's codes and scales on their way
//          meanwhile. The first product has the 16 neighbours as k and the blocks as columns, so
//          that a lane's codes are 4 neighbours, 16 bits; its sums are, as they lie, the second
//          one's right side, and each lane ends with 4 neighbours of two blocks. Nothing passes
//          through shared memory.
// Traffic  codes and scales once, out once.
// Numerics exact but for one f32 product and the rounding to out's dtype. Rows whose scale is no
//          usual number go by the scalar rule.
// Measured 32768 x 16384 to bf16 on an H200, share of the copy: int4 93 % (85 by f32 sums).
//          w4a8 88 % (73): 12 instructions an element.
#pragma once

#include "backends/cuda/device/ptx/mma.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/host/early_launch.h"
#include "ops/quant/hadamard/hadamard.cuh"
#include "ops/quant/hadamard/hadamard_lanes.cuh"

namespace pestle::ops {

// What a Format has for this, beside what dequantize_nibbles.cuh asks for:
//   bool by_mma() const: its codes' numbers are integers up to 128 in magnitude, and a row has
//     one scale besides
//   float row_factor(row): that scale
//   BlockAhead block_ahead(row, block): what a block of 16 columns shares, as a load gives it
//   void pairs(words, aheads, state, b): f16 of the four codes of each of two 16-bit words: numbers
//     0 and 2, then 1 and 3; by whole warps

inline constexpr int kMmaGroups = 4;  // of a piece
inline constexpr int kMmaPiece = 256 * kMmaGroups;
inline constexpr int kMmaWarps = 4;  // of a thread block

struct MmaMatrix {
  const char* q;
  int64_t q_row_bytes;
  char* out;
  int64_t out_row_bytes;
  int columns;
  cuda::FastDivisor pieces;  // of a row
  int64_t tasks;
  uint32_t tasks_each;  // of a warp
};

#ifdef __CUDACC__

// Two numbers of a column of H16 as f16.
__device__ inline uint32_t h16_pair(int row, int first, int second) {
  const auto sign = [&](int column) {
    const bool low = row % 4 + column % 4 == 3, high = row / 4 + column / 4 == 3;
    return low != high ? 0xBC00u : 0x3C00u;
  };
  return sign(first) | sign(second) << 16;
}

// H16 as the left side of both products: of the first one with rows and columns in the order in
// which lanes have neighbours.
struct HadamardSides {
  uint32_t neighbours[4];
  uint32_t blocks[4];

  __device__ static HadamardSides of_lane() {
    const int lane = static_cast<int>(threadIdx.x % 32);
    HadamardSides h;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int row = lane / 4 + part % 2 * 8, k = lane % 4 * 2 + part / 2 * 8;
      const int neighbour = row % 8 / 2 * 4 + row % 2 + row / 8 * 2;
      const int first = k % 8 / 2 * 4 + k / 8;
      h.neighbours[part] = h16_pair(neighbour, first, first + 2);
      h.blocks[part] = h16_pair(row, k, k + 1);
      // Else they are made anew for every piece, 58 instructions.
      asm volatile("" : "+r"(h.neighbours[part]), "+r"(h.blocks[part]));
    }
    return h;
  }
};

__device__ inline uint32_t f16_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Sums of a group of 256: of block lane / 4, and of the eighth after it, four neighbours from 4 *
// (lane % 4) on.
__device__ inline void rotate_group(const HadamardSides& h, const uint32_t (&b)[2][2],
                                    float (&low)[4], float (&high)[4]) {
  using warp_kind = std::integral_constant<cuda::warp::Kind, cuda::warp::Kind::kF16>;
  float first[2][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    cuda::warp::multiply<warp_kind::value>(first[half], h.neighbours[0], h.neighbours[1],
                                           h.neighbours[2], h.neighbours[3], b[half][0],
                                           b[half][1]);
  }
  float sums[2][4] = {};
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    cuda::warp::multiply<warp_kind::value>(sums[part], h.blocks[0], h.blocks[1], h.blocks[2],
                                           h.blocks[3],
                                           f16_pair(first[0][2 * part], first[0][2 * part + 1]),
                                           f16_pair(first[1][2 * part], first[1][2 * part + 1]));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    low[i] = sums[i / 2][i % 2];
    high[i] = sums[i / 2][2 + i % 2];
  }
}

// Four numbers, none of them NaN.
template <class T>
__device__ inline void put_four(char* to, const float (&v)[4], float by) {
  float y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = v[i] * by;
  if constexpr (T::kBytes == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(y[0], y[1], y[2], y[3]);
  } else if constexpr (std::is_same_v<T, cuda::F16>) {
    *reinterpret_cast<uint2*>(to) = make_uint2(f16_pair(y[0], y[1]), f16_pair(y[2], y[3]));
  } else {
    const __nv_bfloat162 a = __floats2bfloat162_rn(y[0], y[1]);
    const __nv_bfloat162 b = __floats2bfloat162_rn(y[2], y[3]);
    *reinterpret_cast<uint2*>(to) =
        make_uint2(*reinterpret_cast<const uint32_t*>(&a), *reinterpret_cast<const uint32_t*>(&b));
  }
}

template <class Format>
struct MmaPiece {
  uint32_t words[kMmaGroups][2];
  typename Format::BlockAhead aheads[kMmaGroups][2];
  float factor;

  // Starts its loads.
  __device__ void load(const MmaMatrix& m, const Format& format, int64_t row, int first) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const char* q = m.q + row * m.q_row_bytes + first / 2 + 2 * lane;
#pragma unroll
    for (int g = 0; g < kMmaGroups; ++g) {
      if (first + 256 * g >= m.columns) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words[g][half] = __ldg(reinterpret_cast<const uint16_t*>(q + g * 128 + half * 64));
        aheads[g][half] = format.block_ahead(row, (first >> 4) + g * 16 + half * 8 + lane / 4);
      }
    }
    factor = format.row_factor(row);
  }
};

// A piece by the scalar rule.
template <class T, class Format>
__device__ __noinline__ void decode_piece_slowly(const MmaMatrix& m, const Format& format,
                                                 int64_t row, int first, float* shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float norm = formats::hadamard_norm(256);
#pragma unroll 1
  for (int at = first; at < min(first + kMmaPiece, m.columns); at += kChunk) {
    const int column = at + lane * kLaneRun;
    const bool inside = column < m.columns;
    float v[1][kLaneRun];
    for (int i = 0; i < kLaneRun; ++i) {
      v[0][i] = 0;
      if (!inside) continue;
      const auto byte = static_cast<uint8_t>(m.q[row * m.q_row_bytes + (column + i) / 2]);
      v[0][i] = format.value(i % 2 == 0 ? byte & 0xFu : byte >> 4, row, column + i);
    }
    warp_rotate<256>(v, shared);
    __syncwarp();
    put_strided<256>(shared, lane, v[0]);
    __syncwarp();
    char* out = m.out + row * m.out_row_bytes + static_cast<int64_t>(column) * T::kBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float y[cuda::kUnit];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 four =
            *reinterpret_cast<const float4*>(shared + lane_quad(lane, 2 * half + i));
        y[4 * i] = four.x * norm;
        y[4 * i + 1] = four.y * norm;
        y[4 * i + 2] = four.z * norm;
        y[4 * i + 3] = four.w * norm;
      }
      if (inside) T::store(out + half * cuda::kUnit * T::kBytes, y);
    }
    __syncwarp();
  }
}

template <class T, class Format>
__global__ void __launch_bounds__(32 * kMmaWarps, 5)
    decode_mma(const __grid_constant__ MmaMatrix m, const __grid_constant__ Format format) {
  cuda::wait_previous_kernel();
  __shared__ __align__(16) float shared[kMmaWarps][kRotateFloats];
  format.start_any();
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  uint32_t task = (blockIdx.x * kMmaWarps + warp) * m.tasks_each;
  const auto end = static_cast<uint32_t>(min(static_cast<int64_t>(task) + m.tasks_each, m.tasks));
  if (task >= end) return;
  const typename Format::State state = format.start();
  const HadamardSides h = HadamardSides::of_lane();
  uint32_t row = m.pieces.divide(task);
  int first = static_cast<int>(task - row * m.pieces.divisor) * kMmaPiece;
  MmaPiece<Format> piece, next;
  piece.load(m, format, row, first);
  for (; task < end; ++task) {
    const int64_t this_row = row;
    const int this_first = first;
    if (task + 1 < end) {
      row = m.pieces.divide(task + 1);
      first = static_cast<int>(task + 1 - row * m.pieces.divisor) * kMmaPiece;
      next.load(m, format, row, first);
    }
    constexpr uint32_t kLeast = (127u - 100u) << 23, kMost = (127u + 100u) << 23;
    const uint32_t bits = __float_as_uint(piece.factor);
    if (bits == 0 || bits - kLeast <= kMost - kLeast) {
      const float by = piece.factor * kHadamardNorm<256>;
      char* out = m.out + this_row * m.out_row_bytes +
                  static_cast<int64_t>(this_first + 4 * lane) * T::kBytes;
#pragma unroll
      for (int g = 0; g < kMmaGroups; ++g) {
        if (this_first + 256 * g >= m.columns) break;
        uint32_t b[2][2];
        format.pairs(piece.words[g], piece.aheads[g], state, b);
        float low[4], high[4];
        rotate_group(h, b, low, high);
        put_four<T>(out + g * 256 * T::kBytes, low, by);
        put_four<T>(out + (g * 256 + 128) * T::kBytes, high, by);
      }
    } else {
      decode_piece_slowly<T>(m, format, this_row, this_first, shared[warp]);
    }
    piece = next;
  }
}

template <class T, class Format>
Status run_mma(const Call& call, const char* name, const TensorView& q, const TensorView& out,
               const Format& format) {
  const int64_t rows = out.shape[0], columns = out.shape[1];
  const int64_t pieces = cuda::ceil_div(columns, kMmaPiece);
  const int64_t tasks = rows * pieces;
  const int64_t at_once = 20 * int64_t{cuda::multiprocessors(cuda::device_index(call))};
  const MmaMatrix m{q.as<const char>(),
                    cuda::row_distance(q),
                    out.as<char>(),
                    cuda::row_distance(out),
                    static_cast<int>(columns),
                    cuda::FastDivisor(static_cast<uint32_t>(pieces)),
                    tasks,
                    static_cast<uint32_t>(std::clamp<int64_t>(tasks / at_once / 12, 1, 8))};
  const cuda::Grid grid{cuda::ceil_div(tasks, kMmaWarps * int64_t{m.tasks_each}), 32 * kMmaWarps};
  return cuda::launch_early(call, name, grid, decode_mma<T, Format>, m, format);
}

#endif  // __CUDACC__

}  // namespace pestle::ops
