// The codes of rows a second time, transposed, on the CPU.
#pragma once

#include "ops/copy/strided_copy.h"

namespace pestle::ops {

// q is [*M, K] and q_t [K, M], both of bytes: a copy into q_t seen as q is.
inline void transpose_codes(const TensorView& q, const TensorView& q_t) {
  TensorView to = q;
  to.data = q_t.data;
  int64_t step = q_t.strides[1];
  for (int d = q.rank - 2; d >= 0; --d) {
    to.strides[d] = step;
    step *= q.shape[d];
  }
  to.strides[q.rank - 1] = q_t.strides[0];
  if (numel(q) > 0) strided_copy(CopyPlan(q, to));
}

}  // namespace pestle::ops
