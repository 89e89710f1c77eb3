// llama.cpp's blocks Q8_0, Q4_0, Q4_K and Q6_K, read only. docs/formats/gguf.md
#pragma once

#include "formats/float_bits.h"

namespace pestle::formats {

inline constexpr int64_t kQ8_0Block = 32;
inline constexpr int64_t kQ8_0Bytes = 34;
inline constexpr int64_t kQ4_0Block = 32;
inline constexpr int64_t kQ4_0Bytes = 18;
inline constexpr int64_t kQ4_KBlock = 256;
inline constexpr int64_t kQ4_KBytes = 144;
inline constexpr int64_t kQ6_KBlock = 256;
inline constexpr int64_t kQ6_KBytes = 210;

// Little-endian f16 at any address.
PESTLE_HD inline float gguf_load_f16(const uint8_t* p) {
  return f32_from_f16(static_cast<uint16_t>(p[0] | (p[1] << 8)));
}

// d (f16), 32 x int8: y = q * d.
PESTLE_HD inline void q8_0_dequantize_block(const uint8_t* block, float* out) {
  const float d = gguf_load_f16(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
  }
}

// d (f16), 16 bytes: low nibbles are elements 0..15, high ones 16..31; y = d * (q - 8).
PESTLE_HD inline void q4_0_dequantize_block(const uint8_t* block, float* out) {
  const float d = gguf_load_f16(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 0xF) - 8);
    out[16 + i] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

struct Q4KScale {
  int32_t scale;
  int32_t min;
};

// The 6-bit scale and minimum of sub-block j (0..7) out of the 12 packed bytes.
PESTLE_HD inline Q4KScale q4_k_scale(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[4 + j] & 63};
  const int i = j - 4;
  return {(packed[8 + i] & 0xF) | ((packed[i] >> 6) << 4),
          (packed[8 + i] >> 4) | ((packed[4 + i] >> 6) << 4)};
}

// d, dmin (f16), 12 bytes of scales, 128 bytes of nibbles: y = (d * sc) * q - (dmin * m).
PESTLE_HD inline void q4_k_dequantize_block(const uint8_t* block, float* out) {
  const float d = gguf_load_f16(block);
  const float dmin = gguf_load_f16(block + 2);
  for (int j = 0; j < 8; ++j) {
    const Q4KScale s = q4_k_scale(block + 4, j);
    const float scale = d * static_cast<float>(s.scale);
    const float min = dmin * static_cast<float>(s.min);
    const uint8_t* q = block + 16 + (j / 2) * 32;  // two sub-blocks share 32 bytes
    for (int i = 0; i < 32; ++i) {
      const int32_t code = (q[i] >> (4 * (j % 2))) & 0xF;
      const float product = scale * static_cast<float>(code);
      out[j * 32 + i] = product - min;
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of high pairs, 16 int8 scales, d (f16):
// y = (d * scale) * (q - 32).
PESTLE_HD inline void q6_k_dequantize_block(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const uint8_t* scales = block + 192;
  const float d = gguf_load_f16(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int in = i % 128;
    const int32_t lo = (low[half * 64 + in % 64] >> (4 * (in / 64))) & 0xF;
    const int32_t hi = (high[half * 32 + in % 32] >> (2 * (in / 32))) & 0x3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    out[i] = scale * static_cast<float>((lo | (hi << 4)) - 32);
  }
}

}  // namespace pestle::formats
