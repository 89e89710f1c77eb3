// FP8 E5M2 (IEEE-like: Inf and NaN exist and are read; Inf is never written). docs/formats/fp8.md
#pragma once

#include "formats/minifloat.h"

namespace pestle::formats {

struct E5m2 {
  static constexpr int kMan = 2;
  static constexpr int kBias = 15;
  static constexpr int kSignShift = 7;
  static constexpr uint32_t kMaxCode = 0x7B;
  static constexpr uint32_t kInfCode = 0x7C;
  static constexpr uint32_t kNanCode = 0x7F;
  static constexpr bool kHasNan = true;
  static constexpr float kMax = 57344.0f;  // 1.75 * 2^15
  static constexpr int kMaxExponent = 15;
  static constexpr uint32_t kMaxFraction = 0x600000;
};

PESTLE_HD inline uint8_t e5m2_from_f32(float x) { return code_from_f32<E5m2>(x); }
PESTLE_HD inline float f32_from_e5m2(uint8_t code) { return f32_from_code<E5m2>(code); }

}  // namespace pestle::formats
