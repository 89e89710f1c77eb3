// W4A8: 4-bit indices into a 16-entry codebook, an E4M3 scale per 16 elements, an f32 scale per
// row; decodes to int8. The weight is Hadamard-rotated (group 256) before. docs/formats/w4a8.md
#pragma once

#include "formats/e4m3.h"

namespace pestle::formats {

inline constexpr int64_t kW4a8Group = 16;
inline constexpr int kW4a8Levels = 16;
inline constexpr int64_t kW4a8Rotation = 256;
inline constexpr int kW4a8Passes = 2;
inline constexpr float kW4a8MinScale = 1e-8f;

// Ascending levels, and the 15 midpoints between neighbours: an index is the number of midpoints
// that lie below the value, so a tie goes to the lower index.
struct W4a8Table {
  float level[kW4a8Levels];
  float mid[kW4a8Levels - 1];
};

// `levels`: 16 ascending values.
PESTLE_HD inline W4a8Table w4a8_table(const float* levels) {
  W4a8Table table;
  for (int i = 0; i < kW4a8Levels; ++i) table.level[i] = levels[i];
  for (int i = 0; i + 1 < kW4a8Levels; ++i) table.mid[i] = (levels[i] + levels[i + 1]) * 0.5f;
  return table;
}

// The fixed codebook: the mean-square optimum for rotated weights divided by their group's amax.
PESTLE_HD inline void w4a8_default_codebook(float* levels) {
  const float fixed[kW4a8Levels] = {-0.980602f, -0.794529f, -0.638165f, -0.500986f,
                                    -0.377321f, -0.263187f, -0.155210f, -0.050720f,
                                    0.052541f,  0.156985f,  0.265284f,  0.379533f,
                                    0.502636f,  0.638953f,  0.794876f,  0.980671f};
  for (int i = 0; i < kW4a8Levels; ++i) levels[i] = fixed[i];
}

// Index of the level nearest to v; 0 for NaN.
PESTLE_HD inline int w4a8_index(const W4a8Table& table, float v) {
  int index = 0;
  for (int i = 0; i + 1 < kW4a8Levels; ++i) index += v > table.mid[i] ? 1 : 0;
  return index;
}

// Sum of 16 terms, upper half folded on the lower: p[i] + p[i+8], then +4, +2, +1.
PESTLE_HD inline float w4a8_sum(float* p) {
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) p[i] = p[i] + p[i + half];
  }
  return p[0];
}

struct W4a8Fit {
  float scale;    // of the group, before the row's scale is divided out
  uint32_t peak;  // abs_bits of the group's largest reconstructed value
};

// Least-squares scale of the 16 elements at x for this codebook: start at amax, then two rounds of
// assign-and-refit. A group with Inf or NaN has scale NaN.
PESTLE_HD inline W4a8Fit w4a8_fit_group(const float* x, const W4a8Table& codebook) {
  const uint32_t amax = amax_bits(x, kW4a8Group);
  if (amax >= kF32Inf) return {f32_nan(), kF32Nan};
  float scale = max_keep_nan(f32_from_bits(amax), kW4a8MinScale);
  for (int pass = 0; pass < kW4a8Passes; ++pass) {
    float xl[kW4a8Group];
    float ll[kW4a8Group];
    for (int i = 0; i < kW4a8Group; ++i) {
      const float level = codebook.level[w4a8_index(codebook, x[i] / scale)];
      xl[i] = x[i] * level;
      ll[i] = level * level;
    }
    const float num = w4a8_sum(xl);
    const float den = max_keep_nan(w4a8_sum(ll), kW4a8MinScale);
    scale = max_keep_nan(num / den, kW4a8MinScale);
  }
  uint32_t peak = 0;
  for (int i = 0; i < kW4a8Group; ++i) {
    const uint32_t abs = abs_bits(codebook.level[w4a8_index(codebook, x[i] / scale)] * scale);
    peak = abs > peak ? abs : peak;
  }
  return {scale, peak};
}

// Scale of a row whose groups' largest peak is `peak`: max(peak / 127, 1e-8).
PESTLE_HD inline float w4a8_channel_scale(uint32_t peak) {
  return max_keep_nan(f32_from_bits(peak) / 127.0f, kW4a8MinScale);
}

// E4M3 code of the group's scale relative to the row's.
PESTLE_HD inline uint8_t w4a8_relative_scale(float group_scale, float channel_scale) {
  return e4m3_from_f32(group_scale / channel_scale);
}

// The int8 value of a level under a group's scale: clamp(rne(level * s_rel), -127, 127).
PESTLE_HD inline int32_t w4a8_decode_int8(float level, float s_rel) {
  return round_clamp(level * s_rel, -127, 127);
}

// The group's 16 decoded values and their midpoints (both exact in f32).
PESTLE_HD inline W4a8Table w4a8_grid(const W4a8Table& codebook, uint8_t s_rel_code) {
  const float s_rel = f32_from_e4m3(s_rel_code);
  float level[kW4a8Levels];
  for (int i = 0; i < kW4a8Levels; ++i) {
    level[i] = static_cast<float>(w4a8_decode_int8(codebook.level[i], s_rel));
  }
  return w4a8_table(level);
}

// Final codes (one a byte) of a group: nearest decoded value to x / channel_scale.
PESTLE_HD inline void w4a8_assign_group(const float* x, const W4a8Table& codebook,
                                        uint8_t s_rel_code, float channel_scale, uint8_t* codes) {
  const W4a8Table grid = w4a8_grid(codebook, s_rel_code);
  for (int i = 0; i < kW4a8Group; ++i) {
    codes[i] = static_cast<uint8_t>(w4a8_index(grid, x[i] / channel_scale));
  }
}

// A whole rotated row of k (a multiple of 16) elements: codes[k], s_rel[k / 16]; `fitted` is room
// for k / 16 floats. Returns the row's scale.
PESTLE_HD inline float w4a8_quantize_row(const float* x, int64_t k, const W4a8Table& codebook,
                                         uint8_t* codes, uint8_t* s_rel, float* fitted) {
  const int64_t groups = k / kW4a8Group;
  uint32_t peak = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const W4a8Fit fit = w4a8_fit_group(x + g * kW4a8Group, codebook);
    fitted[g] = fit.scale;
    peak = fit.peak > peak ? fit.peak : peak;
  }
  const float channel = w4a8_channel_scale(peak);
  for (int64_t g = 0; g < groups; ++g) {
    s_rel[g] = w4a8_relative_scale(fitted[g], channel);
    w4a8_assign_group(x + g * kW4a8Group, codebook, s_rel[g], channel, codes + g * kW4a8Group);
  }
  return channel;
}

// Value in the rotated basis; hadamard_rotate takes the row back.
PESTLE_HD inline float w4a8_dequantize(uint8_t code, const W4a8Table& codebook, uint8_t s_rel_code,
                                       float channel_scale) {
  const float s_rel = f32_from_e4m3(s_rel_code);
  return static_cast<float>(w4a8_decode_int8(codebook.level[code & 0xFu], s_rel)) * channel_scale;
}

}  // namespace pestle::formats
