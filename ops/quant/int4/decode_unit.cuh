// Eight codes and what they are multiplied by, to values with one rounding each, on CUDA: the step
// that all decoders by tiles share.
#pragma once

#include <cstdint>

#include "backends/cuda/device/tensor/elements.cuh"

namespace pestle::ops {

// What Codes has:
//   static constexpr int kCodeBits, float kUnitScale: 8 codes' values times kUnitScale are right
//   static void values(codes, v): of a unit, / kUnitScale;  static bool odd(codes): must go slowly
//   static float value(code): one, exactly
// A unit's codes: 4-bit ones in x, 8-bit ones in both.
template <int kBits>
__device__ inline uint8_t code_at(uint2 codes, int i) {
  if constexpr (kBits == 4) return codes.x >> (4 * i) & 0xFu;
  return (i < 4 ? codes.x : codes.y) >> (8 * (i % 4)) & 0xFFu;
}

// By the scalar rule, by value: an array that a call may write would live in memory.
struct UnitValues {
  float v[cuda::kUnit];
};
template <class Codes>
__device__ __noinline__ UnitValues slow_values(uint2 codes, float factor) {
  UnitValues values;
  for (int i = 0; i < cuda::kUnit; ++i) {
    values.v[i] = Codes::value(code_at<Codes::kCodeBits>(codes, i)) * factor;
  }
  return values;
}

// Multiplying the factor by the unit must be exact, so that the product is rounded once.
__device__ inline bool is_exact_factor(float factor) {
  const float magnitude = fabsf(factor);
  return (magnitude >= 0x1p-100f && magnitude <= 0x1p100f) || magnitude == 0.0f;
}

template <class Codes>
__device__ inline void decode_unit(uint2 codes, float factor, float (&v)[cuda::kUnit]) {
  if (is_exact_factor(factor) && !Codes::odd(codes)) {
    Codes::values(codes, v);
    const float by = factor * Codes::kUnitScale;
    for (int i = 0; i < cuda::kUnit; ++i) v[i] *= by;
  } else {
    const UnitValues slow = slow_values<Codes>(codes, factor);
    for (int i = 0; i < cuda::kUnit; ++i) v[i] = slow.v[i];
  }
}

}  // namespace pestle::ops
