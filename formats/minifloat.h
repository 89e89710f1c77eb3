// What E4M3, E5M2 and E2M1 share: a traits type per format and conversions written over it.
#pragma once

#include "formats/float_bits.h"

namespace pestle::formats {

// Traits F: kMan, kBias, kSignShift (bit of the sign), kMaxCode (largest finite magnitude),
// kInfCode (magnitude of Inf, or 0 where the format has none), kNanCode (the canonical NaN; for
// E2M1, which has none, the code a NaN is written as), kHasNan, kMax (the largest finite value),
// kMaxExponent and kMaxFraction (that value's f32 exponent and fraction bits).

// sat_rne(x): nearest code, ties to even; overflow and +-Inf saturate; NaN is kNanCode, unsigned.
template <class F>
PESTLE_HD inline uint8_t code_from_f32(float x) {
  const uint32_t abs = abs_bits(x);
  if (abs_is_nan(abs)) return static_cast<uint8_t>(F::kNanCode);
  const uint32_t q = minifloat_round<F::kMan, F::kBias>(abs);
  const uint32_t sign = bits_from_f32(x) >> 31;
  return static_cast<uint8_t>((sign << F::kSignShift) | (q < F::kMaxCode ? q : F::kMaxCode));
}

// Four codes of an 8-bit format in a word, of numbers that are no NaN: the same codes without
// branches or shifts by a variable, for GPUs that have no instruction for it. Adding 2^(23 - kMan)
// units of x's last kept place rounds x there; what the sum's bits have more than that power's is
// the fraction, with its leading one.
template <class F>
PESTLE_HD inline uint32_t codes_by_sum(float a, float b, float c, float d) {
  constexpr uint32_t kShift = 23 - F::kMan;
  constexpr uint32_t kSmallest = (128u - F::kBias) << 23;  // the format's smallest normal
  constexpr uint32_t kLargest = (127u + F::kMaxExponent) << 23 | F::kMaxFraction;
  const float v[4] = {a, b, c, d};
  uint32_t signs = 0, codes = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t abs = abs_bits(v[i]);
    const uint32_t magnitude = abs < kLargest ? abs : kLargest;
    const uint32_t field = magnitude & 0x7F800000u;
    const uint32_t power = field > kSmallest ? field : kSmallest;
    const float anchor = f32_from_bits(power + (kShift << 23));
    const uint32_t sum = bits_from_f32(f32_from_bits(magnitude) + anchor);
    codes += (sum - power + (power >> kShift)) << (8 * i);
    signs |= (bits_from_f32(v[i]) >> 24 & 0x80u) << (8 * i);
  }
  // What is the same in each code, subtracted once.
  constexpr uint32_t kEach = (kShift << 23) + (kSmallest >> kShift);
  return (codes - kEach * 0x01010101u) | signs;
}

// Exact. Every NaN code gives the canonical f32 NaN.
template <class F>
PESTLE_HD inline float f32_from_code(uint8_t code) {
  const uint32_t magnitude = code & ((1u << F::kSignShift) - 1u);
  const uint32_t sign = ((code >> F::kSignShift) & 1u) << 31;
  if (F::kHasNan && magnitude > F::kMaxCode) {
    const bool inf = F::kInfCode != 0 && magnitude == F::kInfCode;
    return inf ? f32_from_bits(sign | kF32Inf) : f32_nan();
  }
  return f32_from_bits(sign | bits_from_f32(minifloat_value<F::kMan, F::kBias>(magnitude)));
}

}  // namespace pestle::formats
