// INT8 with an f32 scale per tensor, row or group along K. docs/formats/int8.md
#pragma once

#include "formats/float_bits.h"

namespace pestle::formats {

inline constexpr float kIntMinScale = 1e-30f;

// max(amax / 127, 1e-30); the canonical NaN when amax is NaN.
PESTLE_HD inline float int8_scale(uint32_t amax) {
  return max_keep_nan(f32_from_bits(amax) / 127.0f, kIntMinScale);
}

PESTLE_HD inline int8_t int8_quantize(float x, float scale) {
  return static_cast<int8_t>(round_clamp(x / scale, -128, 127));
}

PESTLE_HD inline float int8_dequantize(int8_t q, float scale) {
  return static_cast<float>(q) * scale;
}

}  // namespace pestle::formats
