// x / scale for many x and one scale: the IEEE f32 quotient, which codes are defined by. For 16-bit
// x a rounded reciprocal and one fused correction give it in three multiplications, as in
// backends/cpu/simd/divide-inl.h, whose test tries every significand of x with every one of the
// scale.
#pragma once

#include <cstdint>

namespace pestle::cuda {

// Exact while no step over- or underflows: scales in [2^-60, 2^60], |x| up to 2^17 scales;
// quotients under 2^-40 may differ and stay under 2^-39, which every code takes for 0.
struct Divider {
  float scale;
  float reciprocal;

  __device__ static Divider by(float scale) { return {scale, __frcp_rn(scale)}; }

  // Is the short form exact for 16-bit x with magnitudes up to `largest`?
  __device__ bool is_short(float largest) const {
    return scale >= 0x1p-60f && scale <= 0x1p60f && largest <= scale * 0x1p17f;
  }
  __device__ float shortly(float x) const {
    const float q = x * reciprocal;
    return __fmaf_rn(__fmaf_rn(-q, scale, x), reciprocal, q);
  }
  __device__ float exactly(float x) const { return __fdiv_rn(x, scale); }
};

}  // namespace pestle::cuda
