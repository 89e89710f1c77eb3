// Views for ops over one dimension of a tensor: the dimension moved to the end, so that whatever
// works on rows of the last dimension serves any.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace pestle::ops {

// `dim` may count from the end; the contract has checked it.
inline TensorView rows_along(const TensorView& t, int64_t dim) {
  const int from = static_cast<int>(dim < 0 ? dim + t.rank : dim);
  TensorView moved = t;
  for (int d = from; d + 1 < t.rank; ++d) {
    moved.shape[d] = t.shape[d + 1];
    moved.strides[d] = t.strides[d + 1];
  }
  moved.shape[t.rank - 1] = t.shape[from];
  moved.strides[t.rank - 1] = t.strides[from];
  return moved;
}

// `t` with the shape of `to`: the same elements again where it has 1 or nothing.
inline TensorView broadcast_to(const TensorView& t, const TensorView& to) {
  TensorView wide = to;
  wide.data = t.data;
  wide.dtype = t.dtype;
  for (int d = 0; d < to.rank; ++d) {
    const int own = d - (to.rank - t.rank);
    wide.strides[d] = own < 0 || t.shape[own] == 1 ? 0 : t.strides[own];
  }
  return wide;
}

}  // namespace pestle::ops
