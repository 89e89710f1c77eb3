// f32 bit patterns, the small-float rounding core, and bf16/f16 <-> f32. docs/formats/README.md
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace pestle::formats {

inline constexpr uint32_t kF32Inf = 0x7F800000u;
inline constexpr uint32_t kF32Nan = 0x7FC00000u;  // the one NaN that scales are written as
inline constexpr uint16_t kBf16Nan = 0x7FC0u;
inline constexpr uint16_t kF16Nan = 0x7E00u;

PESTLE_HD inline uint32_t bits_from_f32(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}

PESTLE_HD inline float f32_from_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

PESTLE_HD inline float f32_nan() { return f32_from_bits(kF32Nan); }

// |x| as an integer. Integer order is the order of magnitudes, with every NaN above Inf: a maximum
// over these does not depend on the order of its operands and keeps a NaN.
PESTLE_HD inline uint32_t abs_bits(float x) { return bits_from_f32(x) & 0x7FFFFFFFu; }

PESTLE_HD inline bool abs_is_nan(uint32_t abs) { return abs > kF32Inf; }

PESTLE_HD inline uint32_t amax_bits(const float* x, int64_t count) {
  uint32_t amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t abs = abs_bits(x[i]);
    amax = abs > amax ? abs : amax;
  }
  return amax;
}

// max(x, floor), where a NaN x gives the canonical NaN.
PESTLE_HD inline float max_keep_nan(float x, float floor) {
  if (x != x) return f32_nan();
  return x > floor ? x : floor;
}

// clamp(round_half_even(v), lo, hi) for |lo|, |hi| <= 2^22; NaN gives 0. Clamping first is the
// same, because the bounds are integers, and makes the sum with 1.5 * 2^23 exact up to its one
// rounding.
PESTLE_HD inline int32_t round_clamp(float v, int32_t lo, int32_t hi) {
  if (v != v) return 0;
  const float flo = static_cast<float>(lo);
  const float fhi = static_cast<float>(hi);
  const float c = v < flo ? flo : (v > fhi ? fhi : v);
  const float magic = 12582912.0f;
  return static_cast<int32_t>((c + magic) - magic);
}

// The code magnitude of a small float with kMan mantissa bits and exponent bias kBias nearest to
// the non-NaN |x|, ties to the even code, as if the exponent had no upper end: saturation is a
// minimum with the largest code.
template <int kMan, int kBias>
PESTLE_HD inline uint32_t minifloat_round(uint32_t abs) {
  const uint32_t field = abs >> 23;
  const uint32_t fraction = abs & 0x007FFFFFu;
  const uint32_t m = field != 0 ? fraction | 0x00800000u : fraction;
  // Exponent above the target's smallest normal; negative: the target is subnormal there.
  const int32_t rel = static_cast<int32_t>(field != 0 ? field : 1u) - (128 - kBias);
  const int32_t shift = 23 - kMan + (rel < 0 ? -rel : 0);
  if (shift > 25) return 0;  // below half of the smallest subnormal
  const uint32_t odd = (m >> shift) & 1u;
  const uint32_t q = (m + (1u << (shift - 1)) - 1u + odd) >> shift;
  return (static_cast<uint32_t>(rel < 0 ? 0 : rel) << kMan) + q;
}

// Exact value of a finite code magnitude.
template <int kMan, int kBias>
PESTLE_HD inline float minifloat_value(uint32_t magnitude) {
  const uint32_t field = magnitude >> kMan;
  const uint32_t fraction = magnitude & ((1u << kMan) - 1u);
  if (field == 0) {
    const float ulp = f32_from_bits(static_cast<uint32_t>(128 - kBias - kMan) << 23);
    return static_cast<float>(fraction) * ulp;
  }
  return f32_from_bits(((field + (127 - kBias)) << 23) | (fraction << (23 - kMan)));
}

PESTLE_HD inline float f32_from_bf16(uint16_t bits) {
  return f32_from_bits(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; overflow goes to Inf, every NaN to 0x7FC0.
PESTLE_HD inline uint16_t bf16_from_f32(float x) {
  const uint32_t bits = bits_from_f32(x);
  if (abs_is_nan(bits & 0x7FFFFFFFu)) return kBf16Nan;
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

PESTLE_HD inline float f32_from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude > 0x7C00u) return f32_nan();
  if (magnitude == 0x7C00u) return f32_from_bits(sign | kF32Inf);
  return f32_from_bits(sign | bits_from_f32(minifloat_value<10, 15>(magnitude)));
}

// Round to nearest even with subnormals; overflow goes to Inf, every NaN to 0x7E00.
PESTLE_HD inline uint16_t f16_from_f32(float x) {
  const uint32_t abs = abs_bits(x);
  if (abs_is_nan(abs)) return kF16Nan;
  const uint32_t sign = (bits_from_f32(x) >> 16) & 0x8000u;
  const uint32_t q = minifloat_round<10, 15>(abs);
  return static_cast<uint16_t>(sign | (q < 0x7C00u ? q : 0x7C00u));
}

}  // namespace pestle::formats
