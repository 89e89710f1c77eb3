// The three products of qkv_project, and its tensors as matrices.
#pragma once

#include "core/op.h"
#include "ops/gemm/qkv_project/qkv_project_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::qkv_project {

inline constexpr int kX = arg_index(spec, "x");

struct Part {
  int weight, bias, out;
};
inline constexpr Part kParts[3] = {
    {arg_index(spec, "weight_q"), arg_index(spec, "bias_q"), arg_index(spec, "q")},
    {arg_index(spec, "weight_k"), arg_index(spec, "bias_k"), arg_index(spec, "k")},
    {arg_index(spec, "weight_v"), arg_index(spec, "bias_v"), arg_index(spec, "v")}};

// All leading dimensions as one; false where they are not evenly spaced.
inline bool as_matrix(const TensorView& t, TensorView* matrix) {
  int64_t rows = 1, stride = row_length(t);  // any would do for a single row
  for (int d = t.rank - 2; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (rows == 1)
      stride = t.strides[d];
    else if (t.strides[d] != stride * rows)
      return false;
    rows *= t.shape[d];
  }
  *matrix = t;
  matrix->rank = 2;
  matrix->shape[0] = rows;
  matrix->shape[1] = t.shape[t.rank - 1];
  matrix->strides[0] = stride;
  matrix->strides[1] = t.strides[t.rank - 1];
  return true;
}

}  // namespace pestle::ops::qkv_project
