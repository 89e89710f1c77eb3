// Scaled FP8: per tensor, row, column, 1x128 and 128x128 block. docs/formats/fp8.md
#pragma once

#include "formats/e4m3.h"
#include "formats/e5m2.h"

namespace pestle::formats {

inline constexpr int64_t kFp8Block = 128;               // side of a block scale's tile
inline constexpr float kFp8MinScale = 1.17549435e-38f;  // 2^-126

// Decode scale of a set whose largest |x| has these bits (abs_bits): max(amax / F::kMax, 2^-126).
template <class F>
PESTLE_HD inline float fp8_scale(uint32_t amax) {
  return max_keep_nan(f32_from_bits(amax) / F::kMax, kFp8MinScale);
}

template <class F>
PESTLE_HD inline uint8_t fp8_quantize(float x, float scale) {
  return code_from_f32<F>(x / scale);
}

template <class F>
PESTLE_HD inline float fp8_dequantize(uint8_t code, float scale) {
  return f32_from_code<F>(code) * scale;
}

}  // namespace pestle::formats
