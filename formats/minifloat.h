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
