// Quantisers to INT8 that rotate first, on CUDA, then codes.
// Map      long   groups up to 256: a thread block up to 8 rows, one after the other, a warp 2048
//                 columns, 64 neighbours a lane (hadamard_lanes.cuh); the next row's copy to shared
//                 memory is under way while one is worked on
//          short  groups of 1024: a warp 1024 columns, 16 neighbours a lane twice (hadamard.cuh)
//          The row stays in registers between the rotation, its amax and the codes. One scale of
//          the whole tensor that is not given takes two launches, amax and codes.
// Traffic  x once and q once; x twice for one computed scale. x passes once through shared memory
//          as it is, and once as f32.
// Numerics exact: rotated f32 values, not rounded in between, then as quantize_rows.cuh. The norm,
//          a power of two, goes into the divisor; signs of zeros do not matter to codes. Codes by
//          the product with the reciprocal where both its neighbours agree (BothSides).
// Measured 32768 x 16384 bf16 by row, groups of 256, on an H200: 469 us, 3.44 TB/s, 79 % of the
//          copy (548 us with a thread block a row and quotients).
#pragma once

#include "backends/cuda/host/shared_memory.h"
#include "ops/quant/hadamard/hadamard.cuh"
#include "ops/quant/hadamard/hadamard_lanes.cuh"
#include "ops/quant/rowwise/quantize_rows.cuh"

namespace pestle::ops {

inline constexpr int kRotatedWarps =
    16;  // of a thread block: 34 KiB of shared memory, 64 registers
inline constexpr int kRotatedPiece = 2 * kChunk;

enum class RotatedScale { kComputed, kGiven, kAmaxOnly, kFromAmax };

struct RotatedRows {
  const char* x;
  int64_t x_row_bytes;
  int x_bytes;
  DType x_dtype;
  char* q;
  int64_t q_row_bytes;
  int64_t rows;
  int64_t columns;
  RotatedScale mode;
  const float* scale;  // kGiven
  int scale_step;      // from a row's scale to the next: 0 or 1
  float* scale_out;
  uint32_t* amax;
  RandomRounding rounding;
  int rows_each;  // of a thread block
};

#ifdef __CUDACC__

__device__ inline uint32_t pack_four(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// By IEEE division; NaN and Inf included.
__device__ __noinline__ inline uint32_t four_codes_slowly(float4 v, float scale) {
  return pack_four(Int8Code::code(__fdiv_rn(v.x, scale)), Int8Code::code(__fdiv_rn(v.y, scale)),
                   Int8Code::code(__fdiv_rn(v.z, scale)), Int8Code::code(__fdiv_rn(v.w, scale)));
}

// Codes of 16 values, four to a word.
__device__ inline void run_codes(const float (&v)[kLaneRun], const cuda::Divider& by, bool is_short,
                                 uint32_t (&words)[4]) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float4 four = make_float4(v[4 * m], v[4 * m + 1], v[4 * m + 2], v[4 * m + 3]);
    if (!is_short) {
      words[m] = four_codes_slowly(four, by.scale);
      continue;
    }
    const auto code = [&](float x) { return Int8Code::rounded(Int8Code::clamped(by.shortly(x))); };
    words[m] = pack_four(code(four.x), code(four.y), code(four.z), code(four.w));
  }
}

// Words of four lanes, byte k of lane r's word to byte r of lane k's.
__device__ inline uint32_t transpose_bytes(uint32_t word) {
  const int lane = threadIdx.x % 4;
  const uint32_t beside = __shfl_xor_sync(0xFFFFFFFFu, word, 1);
  word = __byte_perm(word, beside, lane % 2 == 0 ? 0x6240 : 0x3715);
  const uint32_t across = __shfl_xor_sync(0xFFFFFFFFu, word, 2);
  return __byte_perm(word, across, lane < 2 ? 0x5410 : 0x3276);
}

// Stores the codes of a chunk from the layout that rotate_runs leaves.
template <int kN>
__device__ inline void store_codes(char* q, bool inside, const uint32_t (&words)[4]) {
  const int lane = threadIdx.x % 32;
  if constexpr (kN <= 16) {
    if (inside) {
      cuda::store16(q + lane * kLaneRun, make_uint4(words[0], words[1], words[2], words[3]));
    }
  } else {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t word = words[m];
      int offset = lane / 4 * 64 + m * 16 + lane % 4 * 4;
      if constexpr (kN >= 256) {
        word = transpose_bytes(word);
        offset = lane / 16 * 256 + (4 * m + lane % 4) * 16 + lane % 16 / 4 * 4;
      }
      if (inside) cuda::store4(q + offset, word);
    }
  }
}

// The scale of this thread block's row, from the largest magnitude of the thread's values; false:
// there is nothing more to do. `warps`: not what the last row used.
__device__ inline bool scale_of_row(const RotatedRows& m, int64_t row, uint32_t largest,
                                    uint32_t* warps, float& scale) {
  if (m.mode == RotatedScale::kGiven) {
    scale = __ldg(m.scale + row * m.scale_step);
    return true;
  }
  if (m.mode == RotatedScale::kFromAmax) {
    scale = Int8Code::scale(*m.amax);
    if (row == 0 && threadIdx.x == 0) *m.scale_out = scale;
    return true;
  }
  const uint32_t all = block_max(largest, warps);
  if (m.mode == RotatedScale::kAmaxOnly) {
    if (threadIdx.x == 0) atomicMax(m.amax, all);
    return false;
  }
  scale = Int8Code::scale(all);
  if (threadIdx.x == 0) m.scale_out[row] = scale;
  return true;
}

struct RotatedUnit {
  float v[cuda::kUnit];
};
__device__ inline uint2 rotated_codes(const RotatedUnit& unit, const cuda::Divider& by) {
  float y[cuda::kUnit];
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) y[i] = by.shortly(unit.v[i]);
  return Int8Code::plain_codes<false>(y);
}
// By IEEE division, at random if asked: NaN and Inf included.
__device__ inline uint2 rotated_codes_slowly(RotatedUnit unit, float norm, float scale,
                                             RandomRounding rounding, uint64_t element) {
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) unit.v[i] *= norm;
  return encode_slowly<cuda::F32, Int8Code>(cuda::F32::pack_numbers(unit.v), scale, rounding,
                                            element);
}

// A unit at the end of a row, where codes were not certain, or under a scale that was given.
__device__ __noinline__ inline uint2 rotated_unit_codes(RotatedUnit unit, cuda::Divider by,
                                                        bool is_short, float norm, float scale,
                                                        RandomRounding rounding, uint64_t element) {
  return is_short ? rotated_codes(unit, by)
                  : rotated_codes_slowly(unit, norm, scale, rounding, element);
}

// All codes of a lane, if they are certain (BothSides). q: of its first unit.
__device__ inline bool store_certain_codes(const float (&v)[kLongRun], const cuda::Divider& by,
                                           char* q) {
  const BothSides sides = BothSides::of(by);
  uint32_t differs = 0;
#pragma unroll
  for (int u = 0; u < kLongRun / cuda::kUnit; ++u) {
    uint32_t r[cuda::kUnit];
#pragma unroll
    for (int i = 0; i < cuda::kUnit; ++i) r[i] = sides.rounded(v[8 * u + i], differs);
    *reinterpret_cast<uint2*>(q + long_run_step(u)) = Int8Code::low_bytes(r);
  }
  return differs == 0;
}

// One row, rotated: its scale and codes.
template <int kN>
__device__ inline void quantize_long_row(const RotatedRows& m, int64_t row, int piece,
                                         const float (&v)[kLongRun], uint32_t* warps) {
  constexpr float kNorm = kHadamardNorm<kN>;
  const int lane = threadIdx.x % 32;
  const int left = static_cast<int>(m.columns) - piece;
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kLongRun; ++i) largest = max_or_nan(largest, fabsf(v[i]));
  float scale = 0;
  if (!scale_of_row(m, row, formats::abs_bits(largest * kNorm), warps, scale)) return;
  const cuda::Divider by = cuda::Divider::by(scale * (1 / kNorm));
  const bool is_short = by.is_short(largest) && !m.rounding.stochastic;
  const bool is_bounded = m.mode != RotatedScale::kGiven;
  char* q = m.q + row * m.q_row_bytes + piece;
  if (is_short && is_bounded && left >= kLongPiece &&
      store_certain_codes(v, by, q + long_run_offset(lane, 0)))
    return;
#pragma unroll
  for (int u = 0; u < kLongRun / cuda::kUnit; ++u) {
    const int offset = long_run_offset(lane, u);
    if (offset >= left) continue;
    RotatedUnit unit;
#pragma unroll
    for (int i = 0; i < cuda::kUnit; ++i) unit.v[i] = v[8 * u + i];
    const auto element = static_cast<uint64_t>(row * m.columns + piece + offset);
    cuda::store8(q + offset,
                 rotated_unit_codes(unit, by, is_short, kNorm, scale, m.rounding, element));
  }
}

template <int kN>
__global__ void __launch_bounds__(32 * kLongWarps, 2) quantize_rotated_long(RotatedRows m) {
  extern __shared__ __align__(128) char memory[];
  __shared__ uint32_t largest[2][32];
  const int warp = threadIdx.x / 32;
  const int piece = warp * kLongPiece;
  const int left = static_cast<int>(m.columns) - piece;
  auto* exchange = reinterpret_cast<float4*>(memory) + warp * kLongQuads;
  char* stage = memory + blockDim.x / 32 * (kLongQuads * sizeof(float4)) + piece * m.x_bytes;
  const char* x = m.x + static_cast<int64_t>(piece) * m.x_bytes;
  int64_t row = static_cast<int64_t>(blockIdx.x) * m.rows_each;
  const int64_t end = min(row + m.rows_each, m.rows);
  start_long_runs(x + row * m.x_row_bytes, left, m.x_bytes, stage);
  for (int turn = 0; row < end; ++row, turn ^= 1) {
    float v[kLongRun];
    await_copies();
    take_long_runs(m.x_dtype, stage, v);
    __syncwarp();
    if (row + 1 < end) start_long_runs(x + (row + 1) * m.x_row_bytes, left, m.x_bytes, stage);
    rotate_long_runs<kN, true>(v, exchange);
    quantize_long_row<kN>(m, row, piece, v, largest[turn]);
  }
}

template <int kN>
__global__ void __launch_bounds__(32 * kRotatedWarps, 2) quantize_rotated(RotatedRows m) {
  extern __shared__ __align__(16) float shared[];
  __shared__ uint32_t warps[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x;
  const int first = warp * kRotatedPiece + lane * kLaneRun;
  const bool inside[2] = {first < m.columns, first + kChunk < m.columns};
  float v[2][kLaneRun];
  load_runs(m.x_dtype, m.x + row * m.x_row_bytes + first * m.x_bytes, inside, v);
  rotate_runs<kN, true>(v, shared + warp * kRotateFloats);
  const float norm = formats::hadamard_norm(kN);
  uint32_t largest = 0;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    for (int i = 0; i < kLaneRun; ++i) {
      v[c][i] *= norm;
      largest = max(largest, formats::abs_bits(v[c][i]));
    }
  }
  float scale = 0;
  if (!scale_of_row(m, row, largest, warps, scale)) return;
  const cuda::Divider by = cuda::Divider::by(scale);
  const bool is_short = by.is_short(__uint_as_float(largest));
  char* q = m.q + row * m.q_row_bytes + warp * kRotatedPiece;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    uint32_t words[4];
    run_codes(v[c], by, is_short, words);
    store_codes<kN>(q + c * kChunk, inside[c], words);
  }
}

#endif  // __CUDACC__

inline Status run_quantize_rotated(const Call& call, const char* name, const QuantizeRows& b) {
  RotatedRows m{b.x.as<char>(),
                cuda::row_distance(b.x),
                dtype_bytes(b.x.dtype),
                b.x.dtype,
                b.q.as<char>(),
                cuda::row_distance(b.q),
                b.rows,
                b.columns,
                b.computes ? RotatedScale::kComputed : RotatedScale::kGiven,
                b.computes ? nullptr : b.scale.as<float>(),
                whole_tensor(b) ? 0 : 1,
                b.computes ? b.scale.as<float>() : nullptr,
                static_cast<uint32_t*>(call.workspace),
                b.rounding,
                1};
  const auto start = [&](auto n) -> Status {
    constexpr bool kLong = n <= kLongestGroup;
    const auto warps =
        static_cast<int>(cuda::ceil_div(b.columns, kLong ? kLongPiece : kRotatedPiece));
    if constexpr (kLong) {
      const size_t each = kLongQuads * sizeof(float4) + kLongPiece * static_cast<size_t>(m.x_bytes);
      m.rows_each = rows_each(call, warps, b.rows);
      const cuda::Grid grid{cuda::ceil_div(b.rows, m.rows_each), 32 * warps,
                            static_cast<size_t>(warps) * each};
      PESTLE_TRY(
          cuda::allow_shared(call, quantize_rotated_long<n>, static_cast<int>(grid.shared_bytes)));
      return cuda::launch(call, name, grid, quantize_rotated_long<n>, m);
    } else {
      const cuda::Grid grid{b.rows, 32 * warps,
                            static_cast<size_t>(warps) * kRotateFloats * sizeof(float)};
      return cuda::launch(call, name, grid, quantize_rotated<n>, m);
    }
  };
  if (b.computes && whole_tensor(b)) {
    PESTLE_TRY(cuda::clear(call, m.amax, 4));
    m.mode = RotatedScale::kAmaxOnly;
    PESTLE_TRY(with_hadamard(b.hadamard, start));
    m.mode = RotatedScale::kFromAmax;
  }
  return with_hadamard(b.hadamard, start);
}

inline std::string refuse_quantize_rotated(const QuantizeRows& b) {
  if (b.q_t != nullptr) return "it gives no transposed codes";
  if (b.hadamard == 0) return "nothing is rotated";
  if (b.rows == 0 || b.columns == 0) return "the tensor is empty";
  if (b.rounding.stochastic && b.hadamard > kLongestGroup) {
    return "groups of 1024 are rounded to nearest only";
  }
  if (b.columns % kLaneRun != 0) return "K is no multiple of 16";
  if (b.columns > kRotatedWarps * kRotatedPiece) {
    return "rows of more than " + std::to_string(kRotatedWarps * kRotatedPiece) + " elements";
  }
  if (!whole_tensor(b) && !one_row_scales(b)) return "scales of groups";
  if (std::string why = cuda::refuse_unaligned(b.x_name, b.x); !why.empty()) return why;
  if (std::string why = cuda::refuse_unaligned("q", b.q); !why.empty()) return why;
  return is_contiguous(b.scale) && reinterpret_cast<uintptr_t>(b.scale.data) % 4 == 0
             ? ""
             : "the scales have gaps between them or are not aligned to 4 bytes";
}

}  // namespace pestle::ops
