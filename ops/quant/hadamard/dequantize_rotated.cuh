// Decoders of 8-bit codes with a scale of at least 64 columns of a row, rotated back, on CUDA.
// Map      a warp up to 8 pieces of 2048 columns of a row, 64 neighbours a lane
//          (hadamard_lanes.cuh); the next piece's codes are on their way meanwhile
// Traffic  codes and scales once, out once; one pass of f32 through shared memory.
// Numerics f32, the rule's sums in the rule's order, one rounding.
// Measured 32768 x 16384 to bf16 by row, groups of 256, on an H200: 418 us, 3.85 TB/s, 93 % of the
//          copy.
#pragma once

#include "ops/quant/hadamard/hadamard_lanes.cuh"
#include "ops/quant/rowwise/dequantize_rows.cuh"

namespace pestle::ops {

struct RotatedMatrix {
  const char* q;
  int64_t q_row_bytes;
  char* out;
  int64_t out_row_bytes;
  int columns;
  int64_t tasks;
  cuda::FastDivisor pieces;
  ScaleMap map;
  const float* scale;
  uint32_t tasks_each;  // of a warp
};

inline constexpr int kCodeWarps = 4;  // of a thread block: 16 KiB of shared memory

#ifdef __CUDACC__

// kCalm: the scale is 0 or lies in [2^-100, 2^100]: the norm may go into it, no NaN comes out of
// codes that are none, and no zero is -0.
template <class T, class Codes, int kN, bool kCalm>
__device__ inline void decode_rotated(const uint4 (&words)[4], float scale, float4* shared,
                                      char* out, int left) {
  constexpr float kNorm = kHadamardNorm<kN>;
  float v[kLongRun];
#pragma unroll
  for (int u = 0; u < kLongRun / cuda::kUnit; ++u) {
    const uint4 w = words[u / 2];
    float y[cuda::kUnit];
    Codes::values(u % 2 == 0 ? make_uint2(w.x, w.y) : make_uint2(w.z, w.w), y);
#pragma unroll
    for (int i = 0; i < cuda::kUnit; ++i) {
      v[cuda::kUnit * u + i] = y[i] * (kCalm ? scale * kNorm : scale);
    }
  }
  rotate_long_runs<kN, kCalm>(v, shared);
  const int place = long_run_offset(threadIdx.x % 32, 0);
  char* to = out + place * T::kBytes;
  const int rest = left - place;
#pragma unroll
  for (int u = 0; u < kLongRun / cuda::kUnit; ++u) {
    float y[cuda::kUnit];
#pragma unroll
    for (int i = 0; i < cuda::kUnit; ++i) {
      y[i] = kCalm ? v[cuda::kUnit * u + i] : v[cuda::kUnit * u + i] * kNorm;
    }
    if (long_run_step(u) >= rest) continue;
    put_plain(to + long_run_step(u) * T::kBytes, kCalm ? T::pack_numbers(y) : T::pack(y));
  }
}

struct PieceAt {
  int64_t row;
  int first;  // column
};
__device__ inline PieceAt piece_at(const cuda::FastDivisor& pieces, uint32_t task) {
  const uint32_t row = pieces.divide(task);
  return {row, static_cast<int>(task - row * pieces.divisor) * kLongPiece};
}

// Starts the copy of a piece's codes; gives this lane's scale.
__device__ inline float start_piece(const RotatedMatrix& m, uint32_t task, uint4* stage) {
  const PieceAt at = piece_at(m.pieces, task);
  start_codes<4>(m.q + at.row * m.q_row_bytes + at.first, m.columns - at.first, true, stage);
  const int column = at.first + static_cast<int>(threadIdx.x % 32) * kLongRun;
  return column < m.columns ? __ldg(m.scale + m.map.index(at.row, column)) : 0.0f;
}

// Warps go on to the next piece, whose codes are copied to shared memory meanwhile.
template <class T, class Codes, int kN>
__global__ void __launch_bounds__(32 * kCodeWarps, 4) dequantize_rotated(RotatedMatrix m) {
  static_assert(Codes::kUnitScale == 1.0f);
  __shared__ __align__(128) float4 shared[kCodeWarps][kLongQuads];
  __shared__ __align__(128) uint4 stages[kCodeWarps][kLongPiece / 16];
  const int warp = threadIdx.x / 32;
  uint32_t task = (blockIdx.x * kCodeWarps + warp) * m.tasks_each;
  const auto end = static_cast<uint32_t>(min(static_cast<int64_t>(task) + m.tasks_each, m.tasks));
  if (task >= end) return;
  float next_scale = start_piece(m, task, stages[warp]);
  for (; task < end; ++task) {
    const float scale = next_scale;
    uint4 words[4];
    await_copies();
    take_codes<4>(stages[warp], words);
    __syncwarp();
    if (task + 1 < end) next_scale = start_piece(m, task + 1, stages[warp]);
    constexpr uint32_t kLeast = (127u - 100u) << 23, kMost = (127u + 100u) << 23;
    const uint32_t bits = __float_as_uint(scale);
    const bool calm = bits == 0 || bits - kLeast <= kMost - kLeast;
    const PieceAt at = piece_at(m.pieces, task);
    char* out = m.out + at.row * m.out_row_bytes + static_cast<int64_t>(at.first) * T::kBytes;
    const int left = m.columns - at.first;
    if (__all_sync(0xFFFFFFFFu, calm))
      decode_rotated<T, Codes, kN, true>(words, scale, shared[warp], out, left);
    else
      decode_rotated<T, Codes, kN, false>(words, scale, shared[warp], out, left);
  }
}

#endif  // __CUDACC__

// x of QuantizeRows is the output here; nothing is computed.
template <class Codes>
Status run_dequantize_rotated(const Call& call, const char* name, const QuantizeRows& b) {
  const int64_t pieces = cuda::ceil_div(b.columns, kLongPiece);
  const RotatedMatrix m{b.q.as<char>(),
                        cuda::row_distance(b.q),
                        b.x.as<char>(),
                        cuda::row_distance(b.x),
                        static_cast<int>(b.columns),
                        b.rows * pieces,
                        cuda::FastDivisor(static_cast<uint32_t>(pieces)),
                        b.map,
                        b.scale.as<float>(),
                        static_cast<uint32_t>(rows_each(call, 1, b.rows * pieces))};
  const cuda::Grid grid{cuda::ceil_div(m.tasks, kCodeWarps * m.tasks_each), 32 * kCodeWarps};
  return with_hadamard(b.hadamard, [&](auto n) {
    constexpr int kN = n <= kLongestGroup ? static_cast<int>(n) : kLongestGroup;
    switch (b.x.dtype) {
      case DType::kBF16:
        return cuda::launch(call, name, grid, dequantize_rotated<cuda::Bf16, Codes, kN>, m);
      case DType::kF16:
        return cuda::launch(call, name, grid, dequantize_rotated<cuda::F16, Codes, kN>, m);
      default: return cuda::launch(call, name, grid, dequantize_rotated<cuda::F32, Codes, kN>, m);
    }
  });
}

inline std::string refuse_dequantize_rotated(const QuantizeRows& b) {
  if (b.hadamard == 0) return "nothing is rotated";
  if (b.hadamard > kLongestGroup) return "groups of 1024";
  if (b.rows == 0 || b.columns == 0) return "the tensor is empty";
  if (b.columns % 16 != 0) return "K is no multiple of 16";
  if (b.columns / cuda::kUnit > cuda::kMostUnits) return "K is beyond 2^30";
  if (b.rows * cuda::ceil_div(b.columns, kLongPiece) >= INT_MAX) {
    return "the tensor has more than 2^42 elements";
  }
  if (b.map.grid_columns != 1 && b.map.columns % kLongRun != 0) {
    return "a scale's columns are no multiple of 64";
  }
  if (std::string why = cuda::refuse_unaligned(b.x_name, b.x); !why.empty()) return why;
  if (std::string why = cuda::refuse_unaligned("q", b.q); !why.empty()) return why;
  return is_contiguous(b.scale) && reinterpret_cast<uintptr_t>(b.scale.data) % 4 == 0
             ? ""
             : "the scales have gaps between them or are not aligned to 4 bytes";
}

}  // namespace pestle::ops
