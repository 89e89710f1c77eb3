// FP8 E4M3 (OCP, finite: no Inf, one NaN magnitude), torch.float8_e4m3fn. docs/formats/fp8.md
#pragma once

#include "formats/minifloat.h"

namespace pestle::formats {

struct E4m3 {
  static constexpr int kMan = 3;
  static constexpr int kBias = 7;
  static constexpr int kSignShift = 7;
  static constexpr uint32_t kMaxCode = 0x7E;
  static constexpr uint32_t kInfCode = 0;
  static constexpr uint32_t kNanCode = 0x7F;
  static constexpr bool kHasNan = true;
  static constexpr float kMax = 448.0f;  // 1.75 * 2^8
  static constexpr int kMaxExponent = 8;
  static constexpr uint32_t kMaxFraction = 0x600000;
};

PESTLE_HD inline uint8_t e4m3_from_f32(float x) { return code_from_f32<E4m3>(x); }
PESTLE_HD inline float f32_from_e4m3(uint8_t code) { return f32_from_code<E4m3>(code); }

}  // namespace pestle::formats
