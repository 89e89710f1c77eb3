// The two factors of a gated activation as views, wherever they lie.
#pragma once

#include "core/tensor.h"

namespace pestle::ops {

// Half `index` of the last dimension.
inline TensorView half_of(const TensorView& t, int index) {
  TensorView half = t;
  const int last = t.rank - 1;
  half.shape[last] /= 2;
  half.data = t.as<char>() + index * half.shape[last] * t.strides[last] * dtype_bytes(t.dtype);
  return half;
}

struct GatedViews {
  TensorView act, gate;  // what the function takes, and the other factor
};

// layout: 0 a pair, 1 the function takes the first half, 2 the last.
inline GatedViews gated_views(const TensorView& x, const TensorView& gate, int64_t layout) {
  if (layout == 0) return {x, gate};
  return {half_of(x, layout == 1 ? 0 : 1), half_of(x, layout == 1 ? 1 : 0)};
}

}  // namespace pestle::ops
