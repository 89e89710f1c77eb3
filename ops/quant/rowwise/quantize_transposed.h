// The codes of rows a second time, transposed.
#pragma once

#include "ops/copy/strided_copy.h"

namespace pestle::ops {

// q is [*M, K] and q_t [K, M], both of bytes: q_t seen as q is.
inline TensorView seen_by_rows(const TensorView& q, const TensorView& q_t) {
  TensorView to = q;
  to.data = q_t.data;
  int64_t step = q_t.strides[1];
  for (int d = q.rank - 2; d >= 0; --d) {
    to.strides[d] = step;
    step *= q.shape[d];
  }
  to.strides[q.rank - 1] = q_t.strides[0];
  return to;
}
// On the CPU.
inline void transpose_codes(const TensorView& q, const TensorView& q_t) {
  if (numel(q) > 0) strided_copy(CopyPlan(q, seen_by_rows(q, q_t)));
}

}  // namespace pestle::ops
