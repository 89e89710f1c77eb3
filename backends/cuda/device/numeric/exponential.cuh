// Exponentials by the hardware's 2^x, within 2 ulp beside the rounding of their argument.
#pragma once

#include "core/activation.h"

namespace pestle::cuda {

// e^x, results below 2^-126 included.
__device__ inline float exp_of(float x) {
  float e;
  asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(x * kLog2E));
  return e;
}
// Three instructions less: what is below 2^-126 becomes 0.
__device__ inline float quick_exp2(float x) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
  return e;
}
__device__ inline float quick_exp(float x) { return quick_exp2(x * kLog2E); }
// Of a normal number, within 1 ulp.
__device__ inline float quick_reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// tanh within a few ulp of itself where |x| < kSmallTanh.
inline constexpr float kSmallTanh = 0.625f;
__device__ inline float small_tanh(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = __fmaf_rn(p, z, 2.06390887954e-2f);
  p = __fmaf_rn(p, z, -5.37397155531e-2f);
  p = __fmaf_rn(p, z, 1.33314422036e-1f);
  p = __fmaf_rn(p, z, -3.33332819422e-1f);
  return __fmaf_rn(p * z, x, x);
}
// tanh within a few ulp of 1, and of itself where it is small.
__device__ inline float tanh_of(float x) {
  const float size = fabsf(x);
  const float e = quick_exp2(size * (-2 * kLog2E));
  const float large = __fdividef(1 - e, 1 + e);
  return size < kSmallTanh ? small_tanh(x) : copysignf(large, x);
}
// The same without branches, where neighbours take both ways.
__device__ inline float tanh_by_both(float x) {
  const float size = fabsf(x), small = small_tanh(x);
  const float e = quick_exp2(size * (-2 * kLog2E));
  const float large = copysignf((1 - e) * quick_reciprocal(1 + e), x);
  float chosen;
  asm("{\n.reg .pred p;\nsetp.lt.f32 p, %1, %2;\nselp.f32 %0, %3, %4, p;\n}"
      : "=f"(chosen)
      : "f"(size), "f"(kSmallTanh), "f"(small), "f"(large));
  return chosen;
}

}  // namespace pestle::cuda
