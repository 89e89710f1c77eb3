// FP4 E2M1: 0 0.5 1 1.5 2 3 4 6 and their negatives; no Inf, no NaN. docs/formats/nvfp4.md
#pragma once

#include "formats/minifloat.h"

namespace pestle::formats {

struct E2m1 {
  static constexpr int kMan = 1;
  static constexpr int kBias = 1;
  static constexpr int kSignShift = 3;
  static constexpr uint32_t kMaxCode = 0x7;
  static constexpr uint32_t kInfCode = 0;
  static constexpr uint32_t kNanCode = 0x7;  // the block's scale carries the NaN
  static constexpr bool kHasNan = false;
  static constexpr float kMax = 6.0f;  // 1.5 * 2^2
  static constexpr int kMaxExponent = 2;
  static constexpr uint32_t kMaxFraction = 0x400000;
};

PESTLE_HD inline uint8_t e2m1_from_f32(float x) { return code_from_f32<E2m1>(x); }
// Only the low four bits of `code` count.
PESTLE_HD inline float f32_from_e2m1(uint8_t code) { return f32_from_code<E2m1>(code & 0xFu); }

}  // namespace pestle::formats
