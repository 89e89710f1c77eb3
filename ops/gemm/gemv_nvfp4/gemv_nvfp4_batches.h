// One batch of a tensor of gemv_nvfp4.
#pragma once

#include <algorithm>

#include "core/tensor.h"

namespace pestle::ops::gemv_nvfp4 {

// Batch `z`, without its first dimension.
inline TensorView batch_of(const TensorView& t, int64_t z) {
  TensorView one = t;
  one.data = t.as<char>() + z * t.strides[0] * dtype_bytes(t.dtype);
  one.rank = t.rank - 1;
  std::copy(t.shape + 1, t.shape + t.rank, one.shape);
  std::copy(t.strides + 1, t.strides + t.rank, one.strides);
  return one;
}

}  // namespace pestle::ops::gemv_nvfp4
