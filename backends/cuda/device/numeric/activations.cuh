// SiLU and GELU of a thread's eight elements, and their derivatives, in f32.
#pragma once

#include "backends/cuda/device/numeric/exponential.cuh"
#include "backends/cuda/device/tensor/elements.cuh"

namespace pestle::cuda {

// 1 / (1 + e^-x) and its distance from 1, both without cancellation.
struct Sigmoid {
  float value, rest;
};
__device__ inline Sigmoid sigmoid_of(float x) {
  const float e = quick_exp(-fabsf(x));
  const float large = quick_reciprocal(1.0f + e);
  const float small = e * large;
  return x >= 0 ? Sigmoid{large, small} : Sigmoid{small, large};
}
// Phi(x) of the normal distribution: its tail as 2^polynomial.
__device__ inline float normal_of(float x) {
  const float z = fabsf(x);
  float p = __fmaf_rn(kTail8, z, kTail7);
  p = __fmaf_rn(p, z, kTail6);
  p = __fmaf_rn(p, z, kTail5);
  p = __fmaf_rn(p, z, kTail4);
  p = __fmaf_rn(p, z, kTail3);
  p = __fmaf_rn(p, z, kTail2);
  p = __fmaf_rn(p, z, kTail1);
  const float tail = quick_exp2(__fmaf_rn(p, z, -1.0f));
  return x >= 0 ? 1.0f - tail : tail;
}
__device__ inline float tanh_argument(float x) {
  return x * __fmaf_rn(x * x, kTanhCubic, kTanhLinear);
}
__device__ inline float near_zero(float x) { return fminf(fmaxf(x, -kSlopeEnd), kSlopeEnd); }

// v = act(v). The same branch in all threads.
__device__ inline void activate(Activation act, float (&v)[kUnit]) {
  if (act == Activation::kSilu) {
    for (int i = 0; i < kUnit; ++i) v[i] *= sigmoid_of(v[i]).value;
  } else if (act == Activation::kGelu) {
    for (int i = 0; i < kUnit; ++i) v[i] *= normal_of(v[i]);
  } else {
    for (int i = 0; i < kUnit; ++i) v[i] *= sigmoid_of(tanh_argument(v[i])).value;
  }
}

// v = act(v), slope = act'(v); slopes at infinities are their limits.
__device__ inline void activate_with_slope(Activation act, float (&v)[kUnit],
                                           float (&slope)[kUnit]) {
  if (act == Activation::kSilu) {
    for (int i = 0; i < kUnit; ++i) {
      const Sigmoid s = sigmoid_of(v[i]);
      slope[i] = __fmaf_rn(near_zero(v[i]) * s.value, s.rest, s.value);
      v[i] *= s.value;
    }
  } else if (act == Activation::kGelu) {
    for (int i = 0; i < kUnit; ++i) {
      const float near = near_zero(v[i]);
      const float phi = normal_of(v[i]);
      const float density = quick_exp2(near * near * -kHalfLog2E) * kNormalDensity;
      slope[i] = __fmaf_rn(near, density, phi);
      v[i] *= phi;
    }
  } else {
    for (int i = 0; i < kUnit; ++i) {
      const float near = near_zero(v[i]);
      const Sigmoid s = sigmoid_of(tanh_argument(v[i]));
      const float inner = __fmaf_rn(near * near, 3 * kTanhCubic, kTanhLinear);
      slope[i] = __fmaf_rn(near * s.value * s.rest, inner, s.value);
      v[i] *= s.value;
    }
  }
}

}  // namespace pestle::cuda
