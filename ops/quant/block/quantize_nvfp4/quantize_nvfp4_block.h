// quantize_nvfp4: one block by the rule of docs/formats/nvfp4.md.
#pragma once

#include "formats/nvfp4.h"
#include "formats/philox.h"
#include "formats/stochastic.h"

namespace pestle::ops::quantize_nvfp4 {

inline constexpr int64_t kBlock = formats::kNvfp4Block;

// Codes, one a byte, of the elements at x, and the scale's code. `element` is the first one's
// row-major index in the padded matrix.
PESTLE_HD inline uint8_t quantize_block(const float* x, float g, bool stochastic, uint64_t seed,
                                        uint64_t element, uint8_t* codes) {
  const uint8_t scale_code = formats::nvfp4_quantize_block(x, g, codes);
  const float factor = formats::nvfp4_factor(scale_code, g);
  if (!stochastic || scale_code == 0 || factor == 0.0f) return scale_code;
  for (int64_t i = 0; i < kBlock; ++i) {
    const uint16_t random = formats::philox_u16(seed, element + static_cast<uint64_t>(i));
    codes[i] = formats::code_stochastic<formats::E2m1>(x[i] / factor, random);
  }
  return scale_code;
}

}  // namespace pestle::ops::quantize_nvfp4
