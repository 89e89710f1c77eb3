// E8M0, the scale of MX blocks: 2^(code - 127), 255 is NaN. docs/formats/mx.md
#pragma once

#include "formats/float_bits.h"

namespace pestle::formats {

inline constexpr uint8_t kE8m0Nan = 255;

// 2^(code - 127); code 0 is 2^-127, an f32 subnormal that must not be flushed.
PESTLE_HD inline float f32_from_e8m0(uint8_t code) {
  if (code == kE8m0Nan) return f32_nan();
  return f32_from_bits(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

// 2^(127 - code), the factor that takes an element to its code's range; NaN for 255.
PESTLE_HD inline float e8m0_inverse(uint8_t code) {
  if (code == kE8m0Nan) return f32_nan();
  return f32_from_bits(code == 254 ? 0x00400000u : static_cast<uint32_t>(254 - code) << 23);
}

}  // namespace pestle::formats
