// A tensor as the C ABI takes it.
#pragma once

#include "core/tensor.h"
#include "pestle/pestle.h"

namespace pestle::harness {

inline pestle_tensor c_tensor(const TensorView& t) {
  return {t.data,
          static_cast<int32_t>(t.dtype),
          static_cast<int32_t>(t.device.type),
          t.device.index,
          t.rank,
          t.shape,
          t.strides,
          0};
}

}  // namespace pestle::harness
