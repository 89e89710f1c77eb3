// Four 8-bit codes at a time without the instruction that newer GPUs have for them.
#pragma once

#include "formats/minifloat.h"

namespace pestle::formats {

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

}  // namespace pestle::formats
