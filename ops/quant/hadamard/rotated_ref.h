// The rotation of references whose outputs are bounded, not exact: groups of n in f64.
#pragma once

#include <cmath>
#include <cstdint>

#include "formats/hadamard.h"

namespace pestle::ops {

// v: rows of whole groups; n: 0 for no rotation. magnitudes: each value becomes the sum of the
// magnitudes of what it is made of.
inline void rotate_reference(double* v, int64_t count, int64_t n, bool magnitudes) {
  if (magnitudes) {
    for (int64_t i = 0; i < count; ++i) v[i] = std::fabs(v[i]);
  }
  if (n == 0) return;
  const double norm = formats::hadamard_norm(n);
  for (int64_t base = 0; base < count; base += n) {
    double* g = v + base;
    for (int64_t t = 1; t < n; t *= 4) {
      for (int64_t i = 0; i < n; ++i) {
        if (i / t % 4 != 0) continue;
        const double a = g[i], b = g[i + t], c = g[i + 2 * t], d = g[i + 3 * t];
        const double sum = ((a + b) + c) + d;
        g[i] = magnitudes ? sum : ((a + b) + c) - d;
        g[i + t] = magnitudes ? sum : ((a + b) - c) + d;
        g[i + 2 * t] = magnitudes ? sum : ((a - b) + c) + d;
        g[i + 3 * t] = magnitudes ? sum : ((b - a) + c) + d;
      }
    }
    for (int64_t i = 0; i < n; ++i) g[i] *= norm;
  }
}

}  // namespace pestle::ops
