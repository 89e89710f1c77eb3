// NVFP4: E2M1 codes, an E4M3 scale per 16 elements along K, one f32 global scale.
// docs/formats/nvfp4.md
#pragma once

#include "formats/e2m1.h"
#include "formats/e4m3.h"

namespace pestle::formats {

inline constexpr int64_t kNvfp4Block = 16;

// Decode scale g of a tensor whose largest |x| has these bits: amax / (448 * 6); 0 for zeros.
PESTLE_HD inline float nvfp4_global_scale(uint32_t amax) {
  if (abs_is_nan(amax)) return f32_nan();
  return f32_from_bits(amax) / 2688.0f;
}

// E4M3 code of the block's scale: e4m3(min((amax / 6) / g, 448)), 0 when amax or g is 0.
PESTLE_HD inline uint8_t nvfp4_block_scale(uint32_t amax, float g) {
  if (amax == 0 || g == 0.0f) return 0;
  const float t = (f32_from_bits(amax) / 6.0f) / g;
  return e4m3_from_f32(t > 448.0f ? 448.0f : t);
}

// The factor a block's values are divided by when written and multiplied by when read: s * g.
PESTLE_HD inline float nvfp4_factor(uint8_t scale_code, float g) {
  return f32_from_e4m3(scale_code) * g;
}

PESTLE_HD inline uint8_t nvfp4_quantize(float x, float factor) {
  return factor == 0.0f ? uint8_t{0} : e2m1_from_f32(x / factor);
}

PESTLE_HD inline float nvfp4_dequantize(uint8_t code, float factor) {
  return f32_from_e2m1(code) * factor;
}

// Codes (one a byte) of the 16 elements at x; returns the scale code. A scale code of 0 means codes
// 0, also where an infinite g makes the factor NaN.
PESTLE_HD inline uint8_t nvfp4_quantize_block(const float* x, float g, uint8_t* codes) {
  const uint8_t scale_code = nvfp4_block_scale(amax_bits(x, kNvfp4Block), g);
  const float factor = nvfp4_factor(scale_code, g);
  for (int i = 0; i < kNvfp4Block; ++i) {
    codes[i] = scale_code == 0 ? uint8_t{0} : nvfp4_quantize(x[i], factor);
  }
  return scale_code;
}

PESTLE_HD inline void nvfp4_dequantize_block(const uint8_t* codes, uint8_t scale_code, float g,
                                             float* out) {
  const float factor = nvfp4_factor(scale_code, g);
  for (int i = 0; i < kNvfp4Block; ++i) out[i] = nvfp4_dequantize(codes[i], factor);
}

// Two codes to a byte. hi_first: the even element sits in the high nibble (ComfyUI's files).
PESTLE_HD inline uint8_t pack_nibbles(uint8_t even, uint8_t odd, bool hi_first) {
  return static_cast<uint8_t>(hi_first ? (even << 4) | (odd & 0xFu) : (odd << 4) | (even & 0xFu));
}

PESTLE_HD inline uint8_t nibble_of(uint8_t byte, bool odd, bool hi_first) {
  return static_cast<uint8_t>(odd == hi_first ? byte & 0xFu : byte >> 4);
}

PESTLE_HD inline uint8_t swap_nibbles(uint8_t byte) {
  return static_cast<uint8_t>((byte << 4) | (byte >> 4));
}

}  // namespace pestle::formats
