// x / scale for many x and one scale: the IEEE f32 quotient, which codes are defined by. A
// correctly rounded reciprocal and one fused correction give it in three multiplications
// (Markstein's theorem: the first quotient is within an ulp); tests/simd/divide_test.cpp tries
// every 16-bit significand of x with every one of the scale, and 2 * 10^9 random pairs of 24-bit
// ones gave no exception.
#pragma once

#include <cstdint>

namespace pestle::cuda {

// The correctly rounded 1 / x for x in [2^-100, 2^100]: one Newton step from the approximation.
__device__ inline float short_reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return __fmaf_rn(__fmaf_rn(-x, r, 1.0f), r, r);
}

// a / b where nothing over- or underflows, by the correctly rounded reciprocal of b. The excess is
// subtracted: added, it would turn -0 into 0.
__device__ inline float short_quotient(float a, float b, float reciprocal) {
  const float q = a * reciprocal;
  const float excess = __fmaf_rn(q, b, -a);
  return __fmaf_rn(excess, -reciprocal, q);
}

// Exact while no step over- or underflows: scales in [2^-60, 2^60], |x| up to 2^17 scales;
// quotients under 2^-40 may differ and stay under 2^-39, which every code takes for 0.
struct Divider {
  float scale;
  float reciprocal;  // of no use unless is_short()

  __device__ static Divider by(float scale) { return {scale, short_reciprocal(scale)}; }

  // Is the short form exact for x with magnitudes up to `largest`?
  __device__ bool is_short(float largest) const {
    return scale >= 0x1p-60f && scale <= 0x1p60f && largest <= scale * 0x1p17f;
  }
  __device__ float shortly(float x) const { return short_quotient(x, scale, reciprocal); }
};

}  // namespace pestle::cuda
