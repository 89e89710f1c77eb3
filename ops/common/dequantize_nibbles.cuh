// Decoders of 4-bit codes, the even column low, with a scale of a few columns of a row, rotated
// back if asked, on CUDA. An op gives its Format; maps and refusals are here. Maps     tiles    a
// thread decodes 8 neighbouring codes in each of kRows rows
//          rotated  a warp 1024 columns of a row, 16 neighbours a lane twice (hadamard.cuh)
//          any      a thread block 1024 columns of a row in shared memory; any strides
// Traffic  codes and scales once, out once.
#pragma once

#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/device/tiles.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tensor_amax.h"
#include "ops/common/hadamard.cuh"

namespace pestle::ops {

// What a Format has:
//   void start(): by all threads of a block, before the others
//   Context context(row, column): what 8 codes from `column` on, a multiple of 8, share
//   void values(word, context, v): eight codes, the first in the lowest nibble
//   float value(code, row, column): one, any strides

struct NibbleMatrix {
  const char* q;
  int64_t q_row_bytes;
  char* out;
  int64_t out_row_bytes;
  int64_t rows;
  int64_t columns;
  int units;                 // of 8 codes in a row
  cuda::FastDivisor pieces;  // tiles: thread blocks of a row; rotated: warps
  int64_t tasks;
  DType out_dtype;
  int out_bytes;
};

struct NibbleCall {
  const TensorView& q;
  const TensorView& out;
  int hadamard;
};

#ifdef __CUDACC__

template <class T, class Format, int kRows>
__global__ void __launch_bounds__(384) nibble_tiles(NibbleMatrix m, Format format) {
  format.start();
  const cuda::TilePlace place = cuda::tile_place(m.pieces, kRows, blockIdx.x);
  if (place.unit >= m.units) return;
  const int rows = cuda::rows_left(m.rows, place.row, kRows);
  const char* q = m.q + place.row * m.q_row_bytes + place.unit * 4;
  char* out = m.out + place.row * m.out_row_bytes + place.unit * (cuda::kUnit * T::kBytes);
  uint32_t words[kRows];
  typename Format::Context contexts[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    words[r] = __ldg(reinterpret_cast<const uint32_t*>(q));
    contexts[r] = format.context(place.row + r, place.unit * cuda::kUnit);
    q += m.q_row_bytes;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    float v[cuda::kUnit];
    format.values(words[r], contexts[r], v);
    T::store(out, v);
    out += m.out_row_bytes;
  }
}

inline constexpr int kNibbleWarps = 8;  // of a thread block, rotated

template <class T>
__device__ inline void store_eight(char* out, const float* v) {
  float y[cuda::kUnit];
  for (int i = 0; i < cuda::kUnit; ++i) y[i] = v[i];
  T::store(out, y);
}

template <class Format, int kN>
__global__ void __launch_bounds__(32 * kNibbleWarps) nibble_rotated(NibbleMatrix m, Format format) {
  __shared__ __align__(16) float shared[kNibbleWarps][kRotateFloats];
  format.start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kNibbleWarps + warp;
  if (task >= m.tasks) return;
  const int64_t row = m.pieces.divide(static_cast<uint32_t>(task));
  const auto piece = static_cast<int>(task - row * m.pieces.divisor) * (2 * kChunk);
  const char* q = m.q + row * m.q_row_bytes;
  uint2 words[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int first = piece + c * kChunk + lane * kLaneRun;
    const bool inside = first < m.columns;
    words[c] = inside ? __ldg(reinterpret_cast<const uint2*>(q + first / 2)) : make_uint2(0, 0);
  }
  float v[2][kLaneRun];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int first = piece + c * kChunk + lane * kLaneRun;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float y[cuda::kUnit] = {};
      if (first < m.columns) {
        format.values(half == 0 ? words[c].x : words[c].y,
                      format.context(row, first + half * cuda::kUnit), y);
      }
      for (int i = 0; i < cuda::kUnit; ++i) v[c][8 * half + i] = y[i];
    }
  }
  rotate_runs<kN>(v, shared[warp]);
  restore_runs<kN>(v, shared[warp]);
  const float norm = formats::hadamard_norm(kN);
  char* out = m.out + row * m.out_row_bytes + static_cast<int64_t>(piece) * m.out_bytes;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    for (int i = 0; i < kLaneRun; ++i) v[c][i] *= norm;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int offset = c * kChunk + half_offset(lane, half);
      if (piece + offset >= m.columns) continue;
      char* to = out + offset * m.out_bytes;
      switch (m.out_dtype) {
        case DType::kBF16: store_eight<cuda::Bf16>(to, v[c] + 8 * half); break;
        case DType::kF16: store_eight<cuda::F16>(to, v[c] + 8 * half); break;
        default: store_eight<cuda::F32>(to, v[c] + 8 * half); break;
      }
    }
  }
}

template <class Format>
__global__ void __launch_bounds__(kAnyThreads)
    nibble_any(cuda::AnyTensor q, cuda::AnyTensor out, int hadamard, Format format) {
  __shared__ float v[kAnyColumns];
  format.start();
  const int64_t columns = out.shape[1];
  const int64_t pieces = (columns + kAnyColumns - 1) / kAnyColumns;
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kAnyColumns;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), columns - first));
  for (int i = threadIdx.x; i < count; i += kAnyThreads) {
    const int64_t column = first + i;
    const auto byte = static_cast<uint8_t>(*q.at(row, column / 2));
    v[i] = format.value(column % 2 == 0 ? byte & 0xFu : byte >> 4, row, column);
  }
  if (hadamard > 0) rotate_shared(v, count, hadamard);
  for (int i = threadIdx.x; i < count; i += kAnyThreads) out.store(out.at(row, first + i), v[i]);
}

// The number in each nibble of a word, less `minus`: 2^23 + n as bits, then one exact difference.
__device__ inline void nibble_numbers(uint32_t word, float minus, float (&v)[cuda::kUnit]) {
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) {
    v[i] = __uint_as_float((word >> (4 * i) & 0xFu) | 0x4B000000u) - (8388608.0f + minus);
  }
}

template <class Format>
Status run_nibbles(const Call& call, const char* name, const NibbleCall& b, const Format& format) {
  constexpr int kRows = 4;
  const int64_t rows = b.out.shape[0], columns = b.out.shape[1];
  const int64_t units = columns / cuda::kUnit;
  const cuda::Tiles tiles = cuda::Tiles::over(rows, units);
  NibbleMatrix m{b.q.as<char>(),
                 cuda::row_distance(b.q),
                 b.out.as<char>(),
                 cuda::row_distance(b.out),
                 rows,
                 columns,
                 static_cast<int>(units),
                 tiles.column_blocks,
                 0,
                 b.out.dtype,
                 dtype_bytes(b.out.dtype)};
  if (b.hadamard > 0) {
    const int64_t pieces = cuda::ceil_div(columns, 2 * kChunk);
    m.pieces = cuda::FastDivisor(static_cast<uint32_t>(pieces));
    m.tasks = rows * pieces;
    const cuda::Grid grid{cuda::ceil_div(m.tasks, kNibbleWarps), 32 * kNibbleWarps};
    return with_hadamard(b.hadamard, [&](auto n) {
      return cuda::launch(call, name, grid, nibble_rotated<Format, n>, m, format);
    });
  }
  const cuda::Grid grid{tiles.blocks(kRows), tiles.threads};
  switch (b.out.dtype) {
    case DType::kBF16:
      return cuda::launch(call, name, grid, nibble_tiles<cuda::Bf16, Format, kRows>, m, format);
    case DType::kF16:
      return cuda::launch(call, name, grid, nibble_tiles<cuda::F16, Format, kRows>, m, format);
    default:
      return cuda::launch(call, name, grid, nibble_tiles<cuda::F32, Format, kRows>, m, format);
  }
}

template <class Format>
Status run_nibbles_any(const Call& call, const char* name, const NibbleCall& b,
                       const Format& format) {
  const int64_t blocks = b.out.shape[0] * cuda::ceil_div(b.out.shape[1], kAnyColumns);
  return cuda::launch(call, name, {blocks, kAnyThreads}, nibble_any<Format>, cuda::AnyTensor(b.q),
                      cuda::AnyTensor(b.out), b.hadamard, format);
}

#endif  // __CUDACC__

inline std::string refuse_nibbles(const NibbleCall& b) {
  if (numel(b.out) == 0) return "the tensor is empty";
  const int64_t step = b.hadamard > 0 ? kLaneRun : cuda::kUnit;
  if (b.out.shape[1] % step != 0) return "K is no multiple of " + std::to_string(step);
  if (b.out.shape[1] / cuda::kUnit > cuda::kMostUnits) return "K is beyond 2^30";
  if (numel(b.out) / kChunk >= INT_MAX) return "the tensor has more than 2^40 elements";
  if (std::string why = cuda::refuse_unaligned("q", b.q, step / 2); !why.empty()) return why;
  return cuda::refuse_unaligned("out", b.out);
}

// Elements of a row side by side, rows anywhere at multiples of the element.
inline std::string refuse_scale_rows(const char* name, const TensorView& t, int64_t bytes) {
  const bool dense = t.shape[t.rank - 1] <= 1 || t.strides[t.rank - 1] == 1;
  return dense && reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0
             ? ""
             : std::string(name) + " has gaps within a row or is not aligned";
}

}  // namespace pestle::ops
