// Is an output what the contract promises, given the reference's? And if not, where.
#pragma once

#include <cstdint>
#include <string>

#include "core/op_spec.h"
#include "core/tensor.h"

namespace pestle::harness {

struct Comparison {
  int64_t different = 0;  // elements outside the promise
  int64_t first = -1;     // row-major index of the first of them
  std::string what;       // "out[3,17] is 1.5 (0x3FC0), the reference has 1.25 (0x3FA0), 32 ulp"
  double worst = 0;       // bounded outputs: largest |out - ref| / allowed
  bool ok() const { return different == 0; }
};

// Bit for bit; in f64, f32, f16 and bf16 any NaN equals any NaN. Codes have one NaN only.
// `shape` gives dtype and dimensions; both arrays are in row-major order.
Comparison compare_exact(const char* name, const TensorView& shape, const void* got,
                         const void* want);

// |got - want| <= 1 ulp of the dtype + c * sqrt(k) * 2^-24 * magnitude, plus what f32 cannot hold:
// k * 2^-149 below, and infinities where the sum of magnitudes leaves its range.
Comparison compare_bounded(const char* name, const TensorView& shape, const void* got,
                           const double* want, const double* magnitude, double c, int64_t k);

}  // namespace pestle::harness
