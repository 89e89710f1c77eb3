// Products of small blocks of f32 matrices, for CPU paths that are ordinary files: the block of b
// is in the second-level cache, sums stay in registers along k. SIMD is chosen at run time.
#pragma once

#include <cstdint>

namespace pestle::cpu {

// Blocks have multiples of these; what is beyond the matrices must be zeros.
inline constexpr int64_t kGemmRows = 4;     // of a and of sums
inline constexpr int64_t kGemmAlong = 6;    // rows of b, where b is [n, k]
inline constexpr int64_t kGemmAcross = 96;  // columns of b, where b is [k, n]
inline constexpr int64_t kGemmDepth = 16;   // of k, where b is [n, k]

struct GemmBlock {
  const float* a = nullptr;  // [m, k]
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* sums = nullptr;
  int64_t sums_stride = 0;
  int64_t m = 0, n = 0, k = 0;
};

// sums[n, m] += a[m, k] * b[n, k]
void gemm_along(const GemmBlock& block);
// sums[m, n] += a[m, k] * b[k, n]
void gemm_across(const GemmBlock& block);

}  // namespace pestle::cpu
