// What quantize_int4 does to a group and to a unit of 8 elements, on CUDA.
#pragma once

#include <type_traits>

#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "formats/int4.h"
#include "formats/philox.h"
#include "formats/stochastic.h"
#include "ops/quant/hadamard/hadamard_lanes.cuh"

namespace pestle::ops::quantize_int4 {

struct Rounding {
  bool stochastic;
  uint64_t seed;
};

struct GroupScale {
  float scale = 0;
  int zero = 0;
  bool is_short = false;  // quotients by device/divide.cuh are exact
};

// Ends of groups whose quotients stay in the range of short_quotient: 2^-50 to 2^60.
inline constexpr uint32_t kSmallestEnd = (127u - 50u) << 23;
inline constexpr uint32_t kLargestEnd = (127u + 60u) << 23;
__device__ inline bool is_ordinary(uint32_t end) {
  return end - kSmallestEnd <= kLargestEnd - kSmallestEnd;
}

__device__ inline uint32_t max_of_lanes(uint32_t value, int step) {
  return max(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
}

__device__ __noinline__ GroupScale slow_symmetric_scale(uint32_t largest) {
  return {formats::int4_scale(largest), 0, false};
}
__device__ __noinline__ GroupScale slow_asymmetric_scale(uint32_t below, uint32_t above) {
  const float ends[2] = {-__uint_as_float(below), __uint_as_float(above)};
  const formats::Int4Zero s = formats::int4_asym_scale(ends, 2);
  return {s.scale, s.zero, false};
}

// abs_bits of what a group's scale follows from. Integer maxima, NaN above all, so that the order
// does not matter.
template <bool kAsymmetric>
struct Ends;

template <>
struct Ends<false> {
  uint32_t largest = 0;

  template <class T>
  __device__ static Ends of(const typename T::Raw& raw) {
    return {T::amax(raw)};
  }
  // Of rotated values times `norm`, a power of two.
  __device__ static Ends of_rotated(const float (&v)[kLongRun], float norm) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kLongRun; ++i) largest = max_or_nan(largest, fabsf(v[i]));
    return {formats::abs_bits(largest * norm)};
  }
  __device__ void take(const Ends& other) { largest = max(largest, other.largest); }
  __device__ void take(float v) { largest = max(largest, formats::abs_bits(v)); }
  __device__ void join(int step) { largest = max_of_lanes(largest, step); }
  static constexpr int kJoinWords = 32;  // of shared memory
  __device__ void join_block() {
    __shared__ uint32_t warps[kJoinWords];
    join_block(warps);
  }
  __device__ void join_block(uint32_t* warps) {
    const uint32_t mine = __reduce_max_sync(0xFFFFFFFFu, largest);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    const unsigned lane = threadIdx.x % 32;
    largest = __reduce_max_sync(0xFFFFFFFFu, lane < blockDim.x / 32 ? warps[lane] : 0u);
  }
  __device__ GroupScale scale() const {
    if (!is_ordinary(largest)) return slow_symmetric_scale(largest);
    return {cuda::short_quotient(__uint_as_float(largest), 7.0f, 1.0f / 7.0f), 0, true};
  }
};

template <>
struct Ends<true> {
  uint32_t below = 0;  // of the largest magnitude of negative elements
  uint32_t above = 0;  // of positive ones; NaN in both

  template <class T>
  __device__ static Ends of(const typename T::Raw& raw) {
    float v[cuda::kUnit];
    T::to_f32(raw, v);
    Ends ends;
    float low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < cuda::kUnit; ++i) {
      low = max_or_nan(low, -v[i]);
      high = max_or_nan(high, v[i]);
    }
    ends.below = formats::abs_bits(low);
    ends.above = formats::abs_bits(high);
    return ends;
  }
  __device__ static Ends of_rotated(const float (&v)[kLongRun], float norm) {
    float low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < kLongRun; ++i) {
      low = max_or_nan(low, -v[i]);
      high = max_or_nan(high, v[i]);
    }
    Ends ends;
    ends.below = formats::abs_bits(low * norm);
    ends.above = formats::abs_bits(high * norm);
    return ends;
  }
  __device__ void take(const Ends& other) {
    below = max(below, other.below);
    above = max(above, other.above);
  }
  __device__ void take(float v) {
    below = formats::abs_bits(max_or_nan(__uint_as_float(below), -v));
    above = formats::abs_bits(max_or_nan(__uint_as_float(above), v));
  }
  __device__ void join(int step) {
    below = max_of_lanes(below, step);
    above = max_of_lanes(above, step);
  }
  static constexpr int kJoinWords = 64;
  __device__ void join_block() {
    __shared__ uint32_t warps[kJoinWords];
    join_block(warps);
  }
  __device__ void join_block(uint32_t* warps) {
    const uint32_t low = __reduce_max_sync(0xFFFFFFFFu, below);
    const uint32_t high = __reduce_max_sync(0xFFFFFFFFu, above);
    if (threadIdx.x % 32 == 0) {
      warps[threadIdx.x / 32] = low;
      warps[32 + threadIdx.x / 32] = high;
    }
    __syncthreads();
    const unsigned lane = threadIdx.x % 32;
    const bool is_warp = lane < blockDim.x / 32;
    below = __reduce_max_sync(0xFFFFFFFFu, is_warp ? warps[lane] : 0u);
    above = __reduce_max_sync(0xFFFFFFFFu, is_warp ? warps[32 + lane] : 0u);
  }
  // formats::int4_asym_scale: hi - lo is the sum of the magnitudes, and the zero point needs no
  // clamp.
  __device__ GroupScale scale() const {
    const float sum = __uint_as_float(above) + __uint_as_float(below);
    if (!is_ordinary(__float_as_uint(sum))) return slow_asymmetric_scale(below, above);
    const float scale = cuda::short_quotient(sum, 15.0f, 1.0f / 15.0f);
    const float zero =
        cuda::short_quotient(__uint_as_float(below), scale, cuda::short_reciprocal(scale));
    return {scale, static_cast<int>(__float_as_uint(zero + 0x1.8p23f) & 0xFu), true};
  }
};

// Ends of units as lanes find them.
template <class T, bool kAsymmetric>
struct LaneEnds : Ends<kAsymmetric> {
  __device__ static LaneEnds of(const typename T::Raw& raw) {
    return {Ends<kAsymmetric>::template of<T>(raw)};
  }
  __device__ Ends<kAsymmetric> ends() const { return *this; }
};

// Of 16-bit elements with a zero point: the largest in the low half, the smallest, negated, in the
// high half. Maxima of pairs keep NaN.
template <class T>
struct PairEnds {
  uint32_t pair = 0;

  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t c;
    if constexpr (std::is_same_v<T, cuda::Bf16>)
      asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    else
      asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  }
  __device__ static uint32_t smaller(uint32_t a, uint32_t b) {
    uint32_t c;
    if constexpr (std::is_same_v<T, cuda::Bf16>)
      asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    else
      asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  }
  __device__ static PairEnds of(const typename T::Raw& raw) {
    const uint4 w = raw.v;
    const uint32_t high = larger(larger(w.x, w.y), larger(w.z, w.w));
    const uint32_t low = smaller(smaller(w.x, w.y), smaller(w.z, w.w));
    return {larger(__byte_perm(high, low, 0x5410) ^ 0x80000000u,
                   __byte_perm(high, low, 0x7632) ^ 0x80000000u)};
  }
  __device__ void take(const PairEnds& other) { pair = larger(pair, other.pair); }
  __device__ void join(int step) { pair = larger(pair, __shfl_xor_sync(0xFFFFFFFFu, pair, step)); }
  __device__ Ends<true> ends() const {
    const uint32_t both[4] = {pair, 0, 0, 0};
    float v[cuda::kUnit];
    T::to_f32({make_uint4(both[0], both[1], both[2], both[3])}, v);
    Ends<true> ends;
    ends.above = formats::abs_bits(max_or_nan(v[0], 0.0f));
    ends.below = formats::abs_bits(max_or_nan(v[1], 0.0f));
    return ends;
  }
};
template <>
struct LaneEnds<cuda::Bf16, true> : PairEnds<cuda::Bf16> {
  __device__ static LaneEnds of(const cuda::Bf16::Raw& raw) { return {PairEnds::of(raw)}; }
};
template <>
struct LaneEnds<cuda::F16, true> : PairEnds<cuda::F16> {
  __device__ static LaneEnds of(const cuda::F16::Raw& raw) { return {PairEnds::of(raw)}; }
};

struct UnitValues {
  float v[cuda::kUnit];
};

// Eight codes by the scalar rule; NaN and Inf included.
template <bool kAsymmetric>
__device__ __noinline__ uint32_t slow_unit_codes(UnitValues x, GroupScale g, Rounding rounding,
                                                 uint64_t unit) {
  const formats::PhiloxWords random = formats::philox_block(rounding.seed, unit);
  const int low = kAsymmetric ? -g.zero : -8;
  uint32_t word = 0;
  for (int i = 0; i < cuda::kUnit; ++i) {
    const float quotient = __fdiv_rn(x.v[i], g.scale);
    const int code =
        rounding.stochastic
            ? formats::int_stochastic(quotient, formats::philox_lane(random, i), low, low + 15)
            : formats::round_clamp(quotient, low, low + 15);
    word |= (static_cast<uint32_t>(code + g.zero) & 0xFu) << (4 * i);
  }
  return word;
}

// What all codes are raised by, so that none is negative, less 1.5 * 2^23 of each.
template <bool kAsymmetric>
__device__ inline uint32_t first_word(int zero) {
  return (kAsymmetric ? static_cast<uint32_t>(zero) * 0x11111111u : 0x88888888u) - 0x3F400000u;
}

// Codes of ordinary groups: the low bits of sums with 1.5 * 2^23, shifted and added up. The lower
// end rounds to the lowest code; the upper one may round beyond the highest if there is a zero.
template <bool kAsymmetric>
__device__ inline uint32_t short_codes(const float (&x)[cuda::kUnit], const cuda::Divider& by,
                                       int zero) {
  uint32_t word = first_word<kAsymmetric>(zero);
  const auto highest = static_cast<float>(15 - zero);
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) {
    float quotient = by.shortly(x[i]);
    if (kAsymmetric) quotient = fminf(quotient, highest);
    word += __float_as_uint(quotient + 0x1.8p23f) << (4 * i);
  }
  return kAsymmetric ? word : word ^ 0x88888888u;
}

// short_codes without a zero point by two multiply-adds a code; where `differs` becomes other than
// 0, they are not certain.
__device__ inline uint32_t certain_codes(const float (&x)[cuda::kUnit], const BothSides& sides,
                                         uint32_t& differs) {
  uint32_t word = first_word<false>(0);
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) word += sides.rounded(x[i], differs) << (4 * i);
  return word ^ 0x88888888u;
}

// The same at random, formats::int_stochastic. Out of line: Philox takes more room than all else.
template <bool kAsymmetric>
__device__ __noinline__ uint32_t random_codes(UnitValues x, cuda::Divider by, int zero,
                                              uint64_t seed, uint64_t unit) {
  const formats::PhiloxWords random = formats::philox_block(seed, unit);
  uint32_t word = first_word<kAsymmetric>(zero);
  const auto highest = static_cast<float>(kAsymmetric ? 15 - zero : 7);
  const auto lowest = static_cast<float>(kAsymmetric ? -zero : -8);
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) {
    const float quotient = fmaxf(fminf(by.shortly(x.v[i]), highest), lowest);
    const float down = __fadd_rd(quotient, 0x1.8p23f);
    const float part = quotient - (down - 0x1.8p23f);
    // 128 + u / 65536, less 128.
    const uint32_t bits = __byte_perm(random.w[i / 2], 0x4300u, i % 2 == 0 ? 0x5410 : 0x5432);
    const float u = __uint_as_float(bits) - 128.0f;
    word += (__float_as_uint(down) + (u < part ? 1u : 0u)) << (4 * i);
  }
  return kAsymmetric ? word : word ^ 0x88888888u;
}

// `unit`: its number among the units of the tensor, which is that of its random bits.
template <bool kAsymmetric>
__device__ inline uint32_t unit_codes(const float (&x)[cuda::kUnit], const GroupScale& g,
                                      const Rounding& rounding, int64_t row, int units, int unit) {
  const cuda::Divider by = cuda::Divider::by(g.scale);
  if (g.is_short && !rounding.stochastic) return short_codes<kAsymmetric>(x, by, g.zero);
  UnitValues values;
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) values.v[i] = x[i];
  const uint64_t index =
      static_cast<uint64_t>(row) * static_cast<uint64_t>(units) + static_cast<uint64_t>(unit);
  if (g.is_short) return random_codes<kAsymmetric>(values, by, g.zero, rounding.seed, index);
  return slow_unit_codes<kAsymmetric>(values, g, rounding, index);
}

// The same where it is rare and room matters.
template <bool kAsymmetric>
__device__ __noinline__ uint32_t unit_codes_by_value(UnitValues x, GroupScale g, Rounding rounding,
                                                     uint64_t index) {
  const cuda::Divider by = cuda::Divider::by(g.scale);
  if (!g.is_short) return slow_unit_codes<kAsymmetric>(x, g, rounding, index);
  if (rounding.stochastic) return random_codes<kAsymmetric>(x, by, g.zero, rounding.seed, index);
  return short_codes<kAsymmetric>(x.v, by, g.zero);
}
template <bool kAsymmetric>
__device__ inline uint32_t unit_codes_out_of_line(const float (&x)[cuda::kUnit],
                                                  const GroupScale& g, const Rounding& rounding,
                                                  int64_t row, int units, int unit) {
  UnitValues values;
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) values.v[i] = x[i];
  const uint64_t index =
      static_cast<uint64_t>(row) * static_cast<uint64_t>(units) + static_cast<uint64_t>(unit);
  return unit_codes_by_value<kAsymmetric>(values, g, rounding, index);
}

}  // namespace pestle::ops::quantize_int4
