// OCP MX blocks: 32 elements along K share an E8M0 scale, rounded up so that nothing saturates.
// docs/formats/mx.md
#pragma once

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/e8m0.h"

namespace pestle::formats {

inline constexpr int64_t kMxBlock = 32;

// The smallest e in 0..254 with amax <= F::kMax * 2^(e - 127); 255 for NaN. F: E4m3, E5m2, E2m1.
// Subnormal amax needs no case of its own: its exponent field 0 lies below e = 0 in every format.
template <class F>
PESTLE_HD inline uint8_t mx_scale(uint32_t amax) {
  if (abs_is_nan(amax)) return kE8m0Nan;
  const int32_t up = (amax & 0x007FFFFFu) > F::kMaxFraction ? 1 : 0;
  const int32_t e = static_cast<int32_t>(amax >> 23) - F::kMaxExponent + up;
  return static_cast<uint8_t>(e < 0 ? 0 : e);
}

// `inverse` is e8m0_inverse(e): an exact power of two, so this rounds once.
template <class F>
PESTLE_HD inline uint8_t mx_quantize(float x, float inverse) {
  return code_from_f32<F>(x * inverse);
}

template <class F>
PESTLE_HD inline float mx_dequantize(uint8_t code, uint8_t e) {
  return f32_from_code<F>(code) * f32_from_e8m0(e);
}

// Codes (one a byte) of the 32 elements at x; returns the scale code. A zero block has e = 0 and
// codes 0; a block with a NaN has e = 255 and NaN codes throughout.
template <class F>
PESTLE_HD inline uint8_t mx_quantize_block(const float* x, uint8_t* codes) {
  const uint32_t amax = amax_bits(x, kMxBlock);
  const uint8_t e = mx_scale<F>(amax);
  const float inverse = e8m0_inverse(e);
  for (int i = 0; i < kMxBlock; ++i) {
    codes[i] = amax == 0 ? uint8_t{0} : mx_quantize<F>(x[i], inverse);
  }
  return e;
}

template <class F>
PESTLE_HD inline void mx_dequantize_block(const uint8_t* codes, uint8_t e, float* out) {
  for (int i = 0; i < kMxBlock; ++i) out[i] = mx_dequantize<F>(codes[i], e);
}

}  // namespace pestle::formats
