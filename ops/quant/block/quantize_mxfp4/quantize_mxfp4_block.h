// quantize_mxfp4: one block by the rule of docs/formats/mx.md.
#pragma once

#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "formats/philox.h"
#include "formats/stochastic.h"

namespace pestle::ops::quantize_mxfp4 {

inline constexpr int64_t kBlock = formats::kMxBlock;

// Codes, one a byte, of the elements at x, and the scale's code. `element` is the first one's
// row-major index in the padded matrix.
inline uint8_t quantize_block(const float* x, bool stochastic, uint64_t seed, uint64_t element,
                              uint8_t* codes) {
  const uint8_t e = formats::mx_quantize_block<formats::E2m1>(x, codes);
  if (!stochastic || formats::amax_bits(x, kBlock) == 0) return e;
  const float inverse = formats::e8m0_inverse(e);
  for (int64_t i = 0; i < kBlock; ++i) {
    const uint16_t random = formats::philox_u16(seed, element + static_cast<uint64_t>(i));
    codes[i] = formats::code_stochastic<formats::E2m1>(x[i] * inverse, random);
  }
  return e;
}

}  // namespace pestle::ops::quantize_mxfp4
