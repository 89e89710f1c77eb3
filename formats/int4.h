// INT4 in groups along K: symmetric (signed codes) and asymmetric (codes 0..15, zero point).
// docs/formats/int4.md
#pragma once

#include "formats/int8.h"

namespace pestle::formats {

// max(amax / 7, 1e-30); the canonical NaN when amax is NaN.
PESTLE_HD inline float int4_scale(uint32_t amax) {
  return max_keep_nan(f32_from_bits(amax) / 7.0f, kIntMinScale);
}

PESTLE_HD inline int8_t int4_quantize(float x, float scale) {
  return static_cast<int8_t>(round_clamp(x / scale, -8, 7));
}

PESTLE_HD inline float int4_dequantize(int8_t q, float scale) {
  return static_cast<float>(q) * scale;
}

struct Int4Zero {
  float scale;
  int32_t zero;  // 0..15
};

// Scale and zero point of a group: lo = min(x, 0), hi = max(x, 0), scale = max((hi - lo) / 15,
// 1e-30), zero = clamp(rne(-lo / scale), 0, 15). A NaN gives scale NaN and zero 0.
PESTLE_HD inline Int4Zero int4_asym_scale(const float* x, int64_t count) {
  float lo = 0.0f;
  float hi = 0.0f;
  bool nan = false;
  for (int64_t i = 0; i < count; ++i) {
    nan = nan || x[i] != x[i];
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
  }
  if (nan) return {f32_nan(), 0};
  const float scale = max_keep_nan((hi - lo) / 15.0f, kIntMinScale);
  return {scale, round_clamp(-lo / scale, 0, 15)};
}

// clamp(rne(x / scale) + zero, 0, 15); NaN counts as x / scale = 0, except under a NaN scale,
// where every code is 0 like the zero point.
PESTLE_HD inline uint8_t int4_asym_quantize(float x, Int4Zero group) {
  return static_cast<uint8_t>(round_clamp(x / group.scale, -group.zero, 15 - group.zero) +
                              group.zero);
}

PESTLE_HD inline float int4_asym_dequantize(uint8_t q, Int4Zero group) {
  return static_cast<float>(static_cast<int32_t>(q) - group.zero) * group.scale;
}

// ComfyUI's awq_w4a16, whose zero point is a float: (q - 8) * scale + zero, two roundings.
PESTLE_HD inline float awq_w4a16_dequantize(uint8_t q, float scale, float zero) {
  const float product = static_cast<float>(static_cast<int32_t>(q & 0xFu) - 8) * scale;
  return product + zero;
}

// Two's complement nibble <-> value -8..7.
PESTLE_HD inline uint8_t nibble_from_int4(int8_t q) { return static_cast<uint8_t>(q) & 0xFu; }
PESTLE_HD inline int8_t int4_from_nibble(uint8_t nibble) {
  return static_cast<int8_t>(static_cast<int32_t>((nibble & 0xFu) ^ 8u) - 8);
}

}  // namespace pestle::formats
