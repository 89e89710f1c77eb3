// The elements of a tensor and the set of a reduction that each belongs to, for gradients: every
// stride in bytes, in the dimensions of x, 0 where a result does not depend on the dimension.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace pestle::ops {

struct ReduceSets {
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t x[kMaxRank] = {};
  int64_t d_x[kMaxRank] = {};
  int64_t d_out[kMaxRank] = {};
  int64_t y[kMaxRank] = {};
  int64_t set[kMaxRank] = {};  // its number, row-major
  int64_t sets = 1;
  int64_t count = 1;  // elements of a set

  ReduceSets(const TensorView& in, const TensorView& gradient, const TensorView& result_gradient,
             const TensorView& result, int64_t dims, bool keepdim)
      : rank(in.rank) {
    int place = result.rank - 1;
    for (int d = rank - 1; d >= 0; --d) {
      shape[d] = in.shape[d];
      x[d] = in.strides[d] * dtype_bytes(in.dtype);
      d_x[d] = gradient.strides[d] * dtype_bytes(gradient.dtype);
      const bool goes = (dims >> d & 1) != 0;
      if (!goes) {
        d_out[d] = result_gradient.strides[place] * dtype_bytes(result_gradient.dtype);
        y[d] = result.strides[place] * dtype_bytes(result.dtype);
        set[d] = sets;
      }
      (goes ? count : sets) *= in.shape[d];
      place -= !goes || keepdim;
    }
  }
};

}  // namespace pestle::ops
