// What quantising cost: sums over a chunk of weights and their decoded values, while both are in
// the cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"

namespace pestle::files {

struct ErrorSums {
  double signal = 0;    // sum of w^2
  double noise = 0;     // sum of (w - decoded)^2
  float max_error = 0;  // largest |w - decoded|
  uint64_t elements = 0;
  uint64_t clipped = 0;  // largest code, and |w| > |decoded|

  void add(const ErrorSums& other) {
    signal += other.signal;
    noise += other.noise;
    max_error = std::max(max_error, other.max_error);
    elements += other.elements;
    clipped += other.clipped;
  }
};

// Bits of the largest |w| as f32; above those of infinity when a NaN is among them.
// `w`: contiguous bf16, f16 or f32.
uint32_t largest_magnitude_bits(const TensorView& w);

// Which codes are the largest: those with (code & mask) equal to one of `values`.
struct TopCodes {
  bool nibbles = false;    // two codes a byte
  bool low_first = false;  // the even element in the low nibble
  uint8_t mask = 0xFF;
  uint8_t values[3] = {};
};

// The codes that `decoded` comes from, `stride` bytes from row to row; without data, nothing counts
// as clipped.
struct StoredCodes {
  const uint8_t* data = nullptr;
  int64_t stride = 0;
  TopCodes top;
};

// `w`: [rows, k] of bf16, f16 or f32, contiguous. `decoded`: f32, `stride` elements from row to
// row. Weights are clipped that have one of the largest codes and lie beyond what it decodes to.
ErrorSums error_sums(const TensorView& w, const float* decoded, int64_t stride,
                     const StoredCodes& codes = {});

// The same sums of one run of `count` consecutive elements.
ErrorSums error_sums_of_run(const void* w, DType dtype, const float* decoded, int64_t count);

float load_weight(const void* data, DType dtype, int64_t index);

}  // namespace pestle::files
