// Codes of activations on CUDA: what the kernels of activation_rows.cu and activation_quantized.cu
// share.
#pragma once

#include "backends/cuda/device/numeric/activations.cuh"
#include "ops/activation/activation_rows.h"

namespace pestle::ops {

// Codes without a gate and without the output itself, straight from registers:
// activation_quantized.cu.
bool takes_direct_quantized(const ActivationRows& a);
Status quantized_activation_direct(const Call& call, const char* name, const ActivationRows& a);

#ifdef __CUDACC__
namespace activation_codes {

using namespace pestle::cuda;

// x / (1 + e^-u) of a 16-bit x, within 2^-20 of itself: enough where it is rounded to 16 bits.
// Numerator and denominator are 2^-16 of that, so that small results keep their digits without a
// branch for the sign of u; the smallest 16-bit numbers times 2^-16 are still exact.
__device__ inline float roughly_gated(float x, float u) {
  constexpr float kSmall = 0x1p-16f;
  const float e = quick_exp2(__fmaf_rn(u, -kLog2E, -16.0f));
  return x * kSmall * quick_reciprocal(kSmall + e);
}
// activate for results of 16 bits, in fewer instructions.
__device__ inline void activate_roughly(Activation act, float (&v)[kUnit]) {
  if (act == Activation::kSilu) {
    for (int i = 0; i < kUnit; ++i) v[i] = roughly_gated(v[i], v[i]);
  } else if (act == Activation::kGeluTanh) {
    for (int i = 0; i < kUnit; ++i) v[i] = roughly_gated(v[i], tanh_argument(v[i]));
  } else {
    for (int i = 0; i < kUnit; ++i) v[i] *= normal_of(v[i]);
  }
}

}  // namespace activation_codes
#endif

}  // namespace pestle::ops
