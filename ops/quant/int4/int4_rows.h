// A matrix of values and its INT4 form, as the fast paths of both directions see it: row by row,
// strides in bytes.
#pragma once

#include "core/tensor.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops {

struct Int4Rows {
  int64_t rows;
  int64_t columns;
  int64_t group;
  int64_t hadamard;
  DType dtype;  // of the values
  char* values;
  int64_t values_row;
  char* codes;
  int64_t codes_row;
  char* scale;
  int64_t scale_row;
  int64_t scale_step;
  char* zero = nullptr;  // absent: symmetric
  int64_t zero_row = 0;
  int64_t zero_step = 0;
  bool stream = false;  // store past the caches

  Int4Rows(const TensorView& v, const TensorView& q, const TensorView& s, const TensorView* z,
           int64_t group_size, int64_t rotation)
      : rows(v.shape[0]),
        columns(v.shape[1]),
        group(int4_group(group_size, v.shape[1])),
        hadamard(rotation),
        dtype(v.dtype),
        values(v.as<char>()),
        values_row(v.strides[0] * dtype_bytes(v.dtype)),
        codes(q.as<char>()),
        codes_row(q.strides[0]),
        scale(s.as<char>()),
        scale_row(s.strides[0] * 4),
        scale_step(s.strides[1] * 4) {
    if (z == nullptr) return;
    zero = z->as<char>();
    zero_row = z->strides[0];
    zero_step = z->strides[1];
  }
};

}  // namespace pestle::ops
