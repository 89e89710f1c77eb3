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

}  // namespace pestle::cuda
