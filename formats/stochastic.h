// Stochastic rounding by 16 random bits u: up with probability (dropped part + u) >> 16.
// docs/formats/stochastic.md
#pragma once

#include "formats/minifloat.h"

namespace pestle::formats {

// Code magnitude of the non-NaN |v|, unsaturated: (m + r) >> shift, with u aligned to the dropped
// bits. From a shift of 40 on, m < 2^24 cannot carry whatever u is, and the result is 0.
template <int kMan, int kBias>
PESTLE_HD inline uint32_t minifloat_stochastic(uint32_t abs, uint16_t u) {
  static_assert(23 - kMan >= 16, "u is aligned by a left shift only");
  const uint32_t field = abs >> 23;
  const uint32_t fraction = abs & 0x007FFFFFu;
  const uint64_t m = field != 0 ? fraction | 0x00800000u : fraction;
  const int32_t rel = static_cast<int32_t>(field != 0 ? field : 1u) - (128 - kBias);
  const int32_t shift = 23 - kMan + (rel < 0 ? -rel : 0);
  if (shift >= 40) return 0;
  const uint64_t r = static_cast<uint64_t>(u) << (shift - 16);
  const uint32_t q = static_cast<uint32_t>((m + r) >> shift);
  return (static_cast<uint32_t>(rel < 0 ? 0 : rel) << kMan) + q;
}

// Like code_from_f32, with stochastic rounding by u. F: E4m3, E5m2, E2m1.
template <class F>
PESTLE_HD inline uint8_t code_stochastic(float v, uint16_t u) {
  const uint32_t abs = abs_bits(v);
  if (abs_is_nan(abs)) return static_cast<uint8_t>(F::kNanCode);
  const uint32_t q = minifloat_stochastic<F::kMan, F::kBias>(abs, u);
  const uint32_t sign = bits_from_f32(v) >> 31;
  return static_cast<uint8_t>((sign << F::kSignShift) | (q < F::kMaxCode ? q : F::kMaxCode));
}

// The op that takes one random byte an element: x is rounded to f16 first, the scale is 1.
template <class F>
PESTLE_HD inline uint8_t code_stochastic_byte(float x, uint8_t byte) {
  const float v = f32_from_f16(f16_from_f32(x));
  return code_stochastic<F>(v, static_cast<uint16_t>(byte << 8));
}

// clamp(floor(t) + (u < (t - floor(t)) * 65536), lo, hi) for |lo|, |hi| < 2^22; NaN gives 0.
PESTLE_HD inline int32_t int_stochastic(float t, uint16_t u, int32_t lo, int32_t hi) {
  if (t != t) return 0;
  if (t <= static_cast<float>(lo)) return lo;
  if (t >= static_cast<float>(hi)) return hi;
  const int32_t truncated = static_cast<int32_t>(t);
  const int32_t down = static_cast<float>(truncated) > t ? truncated - 1 : truncated;
  const float part = (t - static_cast<float>(down)) * 65536.0f;
  return down + (static_cast<float>(u) < part ? 1 : 0);
}

}  // namespace pestle::formats
