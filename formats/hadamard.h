// The regular Hadamard rotation of ConvRot, groups of 4, 16, 64, 256 or 1024 along K.
// docs/formats/hadamard.md
#pragma once

#include "formats/float_bits.h"

namespace pestle::formats {

inline constexpr int kHadamardMax = 1024;

PESTLE_HD inline bool hadamard_size_ok(int64_t n) {
  return n == 4 || n == 16 || n == 64 || n == 256 || n == 1024;
}

// 1 / sqrt(n), a power of two. n must satisfy hadamard_size_ok.
PESTLE_HD inline float hadamard_norm(int64_t n) {
  float norm = 1.0f;
  for (int64_t m = n; m > 1; m /= 4) norm *= 0.5f;
  return norm;
}

// v := H v in place. H is symmetric and its own inverse, so this also rotates back.
PESTLE_HD inline void hadamard_rotate(float* v, int64_t n) {
  for (int64_t t = 1; t < n; t *= 4) {
    for (int64_t base = 0; base < n; base += 4 * t) {
      for (int64_t i = base; i < base + t; ++i) {
        const float a = v[i];
        const float b = v[i + t];
        const float c = v[i + 2 * t];
        const float d = v[i + 3 * t];
        v[i] = ((a + b) + c) - d;
        v[i + t] = ((a + b) - c) + d;
        v[i + 2 * t] = ((a - b) + c) + d;
        v[i + 3 * t] = ((b - a) + c) + d;
      }
    }
  }
  const float norm = hadamard_norm(n);
  for (int64_t i = 0; i < n; ++i) v[i] *= norm;
}

}  // namespace pestle::formats
