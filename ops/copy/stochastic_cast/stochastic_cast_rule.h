// The rule of stochastic_cast, on host and device.
#pragma once

#include "formats/float_bits.h"
#include "formats/philox.h"

namespace pestle::ops::stochastic_cast {

// |x| goes up to the next bf16 with probability (low 16 bits) / 65536: adding u carries that often.
PESTLE_HD inline uint16_t bf16_stochastic(float x, uint16_t u) {
  const uint32_t bits = formats::bits_from_f32(x);
  if (formats::abs_is_nan(bits & 0x7FFFFFFFu)) return formats::kBf16Nan;
  return static_cast<uint16_t>((bits + u) >> 16);
}

}  // namespace pestle::ops::stochastic_cast
