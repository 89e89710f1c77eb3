// Class indices of rows, for cross entropy on the host.
#pragma once

#include <cmath>

#include "ops/shared/element.h"

namespace pestle::ops {

// Element `index` of a tensor in row-major order.
inline char* element_address(const TensorView& t, int64_t index) {
  int64_t offset = 0;
  for (int d = t.rank - 1; d >= 0; --d) {
    offset += index % t.shape[d] * t.strides[d];
    index /= t.shape[d];
  }
  return t.as<char>() + offset * dtype_bytes(t.dtype);
}

inline int64_t load_target(const TensorView& target, int64_t row) {
  const char* p = element_address(target, row);
  return target.dtype == DType::kI32 ? load<int32_t>(p) : load<int64_t>(p);
}

// A row's lse as two floats: logit - high is exact near it, and low is what high lacks.
struct LseParts {
  float high, low;
  explicit LseParts(double lse)
      : high(static_cast<float>(lse)),
        low(std::isfinite(high) ? static_cast<float>(lse - double{high}) : 0) {}
};

inline bool is_class(int64_t target, int64_t classes) { return target >= 0 && target < classes; }

}  // namespace pestle::ops
