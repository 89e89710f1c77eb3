// Decoders of 4-bit codes, the even column low, with a scale of a few columns of a row, rotated
// back if asked, on CUDA. An op gives its Format; maps and refusals are here.
// Maps     tiles    a thread decodes 8 neighbouring codes in each of kRows rows
//          products groups of 256 and one scale a row: dequantize_mma.cuh
//          rotated  groups up to 256: a warp up to 8 pieces of 2048 columns of a row, 64 neighbours
//                   a lane, one pass through shared memory (hadamard_lanes.cuh), the next piece's
//                   codes and scales on their way meanwhile; of 1024: a warp 1024 columns, 16
//                   neighbours a lane twice (hadamard.cuh)
//          any      a thread block 1024 columns of a row in shared memory; any strides
// Traffic  codes and scales once, out once.
#pragma once

#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/quant/hadamard/hadamard.cuh"
#include "ops/quant/hadamard/hadamard_lanes.cuh"
#include "ops/quant/int4/dequantize_mma.cuh"

namespace pestle::ops {

// What a Format has:
//   State start(): what a thread keeps
//   Ahead ahead(row, column): what 8 codes from `column` on, a multiple of 8, share, as loads give
//     it: nothing waits for it
//   Context context(ahead): the same, ready for use
//   static constexpr int kContextUnits: how many such units share one, if they begin at a multiple
//   static constexpr int kLaneAheads, bool looks_ahead(): the Aheads of 64 columns from a multiple
//   of
//     64 on, evenly spread, if that is true
//   void values(word, context, state, v): eight codes, the first in the lowest nibble; by whole
//     warps
//   static float factor(context): what they are multiplied by last; static Context scaled(context,
//     by): with that factor times a power of two
//   void start_any(), float value(code, row, column): one, any strides

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
  bool wide_q;          // rows of codes at multiples of 16 bytes
  uint32_t tasks_each;  // rotated, groups up to 256: pieces of a warp
};

struct NibbleCall {
  const TensorView& q;
  const TensorView& out;
  int hadamard;
};

#ifdef __CUDACC__

template <class T, class Format, int kRows>
__global__ void __launch_bounds__(384)
    nibble_tiles(const NibbleMatrix m, const __grid_constant__ Format format) {
  cuda::wait_previous_kernel();
  const cuda::TilePlace place = cuda::tile_place(m.pieces, kRows, blockIdx.x);
  const bool inside = place.unit < m.units;
  const int rows = cuda::rows_left(m.rows, place.row, kRows);
  const char* q = m.q + place.row * m.q_row_bytes + place.unit * 4;
  char* out = m.out + place.row * m.out_row_bytes + place.unit * (cuda::kUnit * T::kBytes);
  // All loads first: what is made of them would wait.
  uint32_t words[kRows];
  typename Format::Ahead aheads[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    words[r] = 0;
    aheads[r] = {};
    if (r >= rows || !inside) continue;
    words[r] = __ldg(reinterpret_cast<const uint32_t*>(q));
    aheads[r] = format.ahead(place.row + r, place.unit * cuda::kUnit);
    q += m.q_row_bytes;
  }
  const typename Format::State state = format.start();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    float v[cuda::kUnit];
    format.values(words[r], format.context(aheads[r]), state, v);
    if (inside) T::store(out, v);
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
__global__ void __launch_bounds__(32 * kNibbleWarps)
    nibble_rotated(const NibbleMatrix m, const __grid_constant__ Format format) {
  cuda::wait_previous_kernel();
  __shared__ __align__(16) float shared[kNibbleWarps][kRotateFloats];
  const typename Format::State state = format.start();
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
      float y[cuda::kUnit];
      typename Format::Context context{};
      if (first < m.columns)
        context = format.context(format.ahead(row, first + half * cuda::kUnit));
      format.values(half == 0 ? words[c].x : words[c].y, context, state, y);
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

// One uniform choice of the code below. kCalm: every factor is 0 or lies in [2^-100, 2^100]: the
// norm may go into it, no NaN comes out, and no zero is -0.
template <class T, class Format, int kN, bool kCalm>
__device__ inline void decode_and_rotate(const Format& format, const typename Format::State& state,
                                         const uint2 (&words)[4],
                                         const typename Format::Context (&contexts)[8],
                                         float4* shared, char* out, int left) {
  constexpr float kNorm = kHadamardNorm<kN>;
  float v[kLongRun];
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    typename Format::Context context = contexts[u / Format::kContextUnits * Format::kContextUnits];
    if (kCalm) context = Format::scaled(context, kNorm);
    float y[cuda::kUnit];
    format.values(u % 2 == 0 ? words[u / 2].x : words[u / 2].y, context, state, y);
#pragma unroll
    for (int i = 0; i < cuda::kUnit; ++i) v[8 * u + i] = y[i];
  }
  rotate_long_runs<kN, kCalm>(v, shared);
  const int place = long_run_offset(threadIdx.x % 32, 0);
  char* to = out + place * T::kBytes;
  const int rest = left - place;
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    float y[cuda::kUnit];
#pragma unroll
    for (int i = 0; i < cuda::kUnit; ++i) y[i] = kCalm ? v[8 * u + i] : v[8 * u + i] * kNorm;
    if (long_run_step(u) >= rest) continue;
    put_plain(to + long_run_step(u) * T::kBytes, kCalm ? T::pack_numbers(y) : T::pack(y));
  }
}

inline constexpr int kRunWarps = 4;  // of a thread block: 16 KiB of shared memory

struct NibblePiece {
  int64_t row;
  int first;  // column
};
__device__ inline NibblePiece nibble_piece(const NibbleMatrix& m, uint32_t task) {
  const uint32_t row = m.pieces.divide(task);
  return {row, static_cast<int>(task - row * m.pieces.divisor) * kLongPiece};
}

// Starts the copy of a piece's codes, and the loads of what this lane's 64 columns share.
template <class Format>
__device__ inline void start_nibbles(const NibbleMatrix& m, const Format& format, uint32_t task,
                                     uint4* stage,
                                     typename Format::Ahead (&aheads)[Format::kLaneAheads]) {
  const NibblePiece at = nibble_piece(m, task);
  const int left = (static_cast<int>(m.columns) - at.first) / 2;
  start_codes<2>(m.q + at.row * m.q_row_bytes + at.first / 2, left, m.wide_q, stage);
  if (!format.looks_ahead()) return;
#pragma unroll
  for (int i = 0; i < Format::kLaneAheads; ++i) {
    const int column = at.first + static_cast<int>(threadIdx.x % 32) * kLongRun +
                       i * (kLongRun / Format::kLaneAheads);
    aheads[i] = {};
    if (column < m.columns) aheads[i] = format.ahead(at.row, column);
  }
}

template <class Format>
__device__ inline void lane_contexts(const NibbleMatrix& m, const Format& format,
                                     const NibblePiece& at,
                                     const typename Format::Ahead (&aheads)[Format::kLaneAheads],
                                     typename Format::Context (&contexts)[8]) {
#pragma unroll
  for (int u = 0; u < 8; u += Format::kContextUnits) {
    if (format.looks_ahead()) {
      contexts[u] = u % (8 / Format::kLaneAheads) == 0
                        ? format.context(aheads[u * Format::kLaneAheads / 8])
                        : contexts[u / (8 / Format::kLaneAheads) * (8 / Format::kLaneAheads)];
      continue;
    }
    const int column = at.first + static_cast<int>(threadIdx.x % 32) * kLongRun + u * cuda::kUnit;
    contexts[u] = {};
    if (column < m.columns) contexts[u] = format.context(format.ahead(at.row, column));
  }
}

// Warps go on to the next piece, whose codes are copied to shared memory meanwhile.
template <class T, class Format, int kN>
__global__ void __launch_bounds__(32 * kRunWarps, 4)
    nibble_rotated_lanes(const NibbleMatrix m, const __grid_constant__ Format format) {
  cuda::wait_previous_kernel();
  __shared__ __align__(128) float4 shared[kRunWarps][kLongQuads];
  __shared__ __align__(128) uint4 stages[kRunWarps][kLongPiece / 32];
  const int warp = threadIdx.x / 32;
  uint32_t task = (blockIdx.x * kRunWarps + warp) * m.tasks_each;
  const auto end = static_cast<uint32_t>(min(static_cast<int64_t>(task) + m.tasks_each, m.tasks));
  if (task >= end) return;
  const typename Format::State state = format.start();
  typename Format::Ahead aheads[Format::kLaneAheads] = {};
  start_nibbles(m, format, task, stages[warp], aheads);
  for (; task < end; ++task) {
    const NibblePiece at = nibble_piece(m, task);
    typename Format::Context contexts[8];
    lane_contexts(m, format, at, aheads, contexts);
    uint4 codes[2];
    await_copies();
    take_codes<2>(stages[warp], codes);
    __syncwarp();
    const uint2 words[4] = {{codes[0].x, codes[0].y},
                            {codes[0].z, codes[0].w},
                            {codes[1].x, codes[1].y},
                            {codes[1].z, codes[1].w}};
    if (task + 1 < end) start_nibbles(m, format, task + 1, stages[warp], aheads);
    bool calm = true;
#pragma unroll
    for (int u = 0; u < 8; u += Format::kContextUnits) {
      const uint32_t factor = __float_as_uint(Format::factor(contexts[u]));
      constexpr uint32_t kLeast = (127u - 100u) << 23, kMost = (127u + 100u) << 23;
      calm = calm && (factor == 0 || factor - kLeast <= kMost - kLeast);
    }
    char* out = m.out + at.row * m.out_row_bytes + static_cast<int64_t>(at.first) * T::kBytes;
    const int left = static_cast<int>(m.columns) - at.first;
    if (__all_sync(0xFFFFFFFFu, calm))
      decode_and_rotate<T, Format, kN, true>(format, state, words, contexts, shared[warp], out,
                                             left);
    else
      decode_and_rotate<T, Format, kN, false>(format, state, words, contexts, shared[warp], out,
                                              left);
  }
}

template <class Format>
__global__ void __launch_bounds__(kAnyThreads)
    nibble_any(cuda::AnyTensor q, cuda::AnyTensor out, int hadamard, Format format) {
  __shared__ float v[kAnyColumns];
  format.start_any();
  const int64_t columns = out.shape[1];
  const int64_t pieces = (columns + kAnyColumns - 1) / kAnyColumns;
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kAnyColumns;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), columns - first));
  const char* codes = q.row_at(row);
  for (int i = threadIdx.x; i < count; i += kAnyThreads) {
    const int64_t column = first + i;
    const auto byte = static_cast<uint8_t>(codes[column / 2 * q.step()]);
    v[i] = format.value(column % 2 == 0 ? byte & 0xFu : byte >> 4, row, column);
  }
  if (hadamard > 0) rotate_shared(v, count, hadamard);
  store_piece(out, row, first, count, v);
}

// The number in each nibble of a word, less `minus`: 2^23 + n as bits, then one exact difference.
__device__ inline void nibble_numbers(uint32_t word, float minus, float (&v)[cuda::kUnit]) {
  const uint32_t even = word & 0x0F0F0F0Fu, odd = word >> 4 & 0x0F0F0F0Fu;
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) {
    const uint32_t bits =
        __byte_perm(i % 2 == 0 ? even : odd, 0x4B000000u, 0x7540u | static_cast<unsigned>(i / 2));
    v[i] = __uint_as_float(bits) - (8388608.0f + minus);
  }
}

template <class T, class Format>
Status run_nibbles_rotated(const Call& call, const char* name, const NibbleCall& b, NibbleMatrix m,
                           const Format& format) {
  if (b.hadamard == 256 && format.by_mma()) {
    return run_mma<T>(call, name, b.q, b.out, format);
  }
  return with_hadamard(b.hadamard, [&](auto n) {
    constexpr bool kLong = n <= kLongestGroup;
    const int64_t pieces = cuda::ceil_div(m.columns, kLong ? kLongPiece : 2 * kChunk);
    constexpr int kWarps = kLong ? kRunWarps : kNibbleWarps;
    m.pieces = cuda::FastDivisor(static_cast<uint32_t>(pieces));
    m.tasks = m.rows * pieces;
    if constexpr (kLong) m.tasks_each = static_cast<uint32_t>(rows_each(call, 1, m.tasks));
    const cuda::Grid grid{cuda::ceil_div(m.tasks, kWarps * m.tasks_each), 32 * kWarps};
    if constexpr (kLong) {
      return cuda::launch_early(call, name, grid, nibble_rotated_lanes<T, Format, n>, m, format);
    } else {
      return cuda::launch_early(call, name, grid, nibble_rotated<Format, n>, m, format);
    }
  });
}

template <class Format>
Status run_nibbles(const Call& call, const char* name, const NibbleCall& b, const Format& format) {
  constexpr int kRows = 4;
  const int64_t rows = b.out.shape[0], columns = b.out.shape[1];
  const int64_t units = columns / cuda::kUnit;
  const cuda::Tiles tiles = cuda::Tiles::over(rows, units);
  const NibbleMatrix m{b.q.as<char>(),
                       cuda::row_distance(b.q),
                       b.out.as<char>(),
                       cuda::row_distance(b.out),
                       rows,
                       columns,
                       static_cast<int>(units),
                       tiles.column_blocks,
                       0,
                       b.out.dtype,
                       dtype_bytes(b.out.dtype),
                       cuda::refuse_unaligned("q", b.q, 16).empty(),
                       1};
  if (b.hadamard > 0) {
    switch (b.out.dtype) {
      case DType::kBF16: return run_nibbles_rotated<cuda::Bf16>(call, name, b, m, format);
      case DType::kF16: return run_nibbles_rotated<cuda::F16>(call, name, b, m, format);
      default: return run_nibbles_rotated<cuda::F32>(call, name, b, m, format);
    }
  }
  const cuda::Grid grid{tiles.blocks(kRows), tiles.threads};
  switch (b.out.dtype) {
    case DType::kBF16:
      return cuda::launch_early(call, name, grid, nibble_tiles<cuda::Bf16, Format, kRows>, m,
                                format);
    case DType::kF16:
      return cuda::launch_early(call, name, grid, nibble_tiles<cuda::F16, Format, kRows>, m,
                                format);
    default:
      return cuda::launch_early(call, name, grid, nibble_tiles<cuda::F32, Format, kRows>, m,
                                format);
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
