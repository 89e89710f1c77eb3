// Copying one tensor of any strides into another of the same shape: the fewest dimensions that
// describe it, in the order of the output's memory. Shared by the CPU's and the GPU's paths.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/tensor.h"

namespace pestle::ops {

// Strides in bytes. Dimensions of one element are gone and neighbours that lie the same way in both
// tensors are one; the last dimension is the one in which the output's elements are nearest.
struct CopyPlan {
  const char* from = nullptr;
  char* to = nullptr;
  int64_t elements = 0;
  int from_bytes = 1;  // of an element
  int to_bytes = 1;
  int rank = 0;  // 0: one element
  int64_t shape[kMaxRank] = {};
  int64_t from_stride[kMaxRank] = {};
  int64_t to_stride[kMaxRank] = {};

  CopyPlan(const TensorView& x, const TensorView& out)
      : from(x.as<char>()),
        to(out.as<char>()),
        elements(numel(x)),
        from_bytes(dtype_bytes(x.dtype)),
        to_bytes(dtype_bytes(out.dtype)) {
    if (elements == 0) return;
    for (int d = 0; d < x.rank; ++d) {
      if (x.shape[d] != 1) insert(x.shape[d], x.strides[d] * from_bytes, out.strides[d] * to_bytes);
    }
    merge();
  }

  bool is_dense_row() const {
    return rank == 0 || (from_stride[rank - 1] == from_bytes && to_stride[rank - 1] == to_bytes);
  }
  // The dimension in which x's elements are neighbours, if that is not the last one; else -1.
  int crossing() const {
    for (int d = 0; d + 1 < rank; ++d) {
      if (from_stride[d] == from_bytes && to_stride[rank - 1] == to_bytes) return d;
    }
    return -1;
  }

 private:
  void insert(int64_t size, int64_t x_stride, int64_t out_stride) {
    const auto before = [&](int d) {
      const int64_t a = std::llabs(to_stride[d]), b = std::llabs(out_stride);
      return a != b ? a > b : std::llabs(from_stride[d]) >= std::llabs(x_stride);
    };
    int place = rank;
    for (; place > 0 && !before(place - 1); --place) {
      shape[place] = shape[place - 1];
      from_stride[place] = from_stride[place - 1];
      to_stride[place] = to_stride[place - 1];
    }
    shape[place] = size;
    from_stride[place] = x_stride;
    to_stride[place] = out_stride;
    ++rank;
  }

  void merge() {
    int last = 0;  // of the dimensions that stay
    for (int d = 1; d < rank; ++d) {
      if (from_stride[last] == from_stride[d] * shape[d] &&
          to_stride[last] == to_stride[d] * shape[d]) {
        shape[last] *= shape[d];
      } else {
        shape[++last] = shape[d];
      }
      from_stride[last] = from_stride[d];
      to_stride[last] = to_stride[d];
    }
    if (rank > 0) rank = last + 1;
  }
};

// `t` with its last two dimensions exchanged.
inline TensorView transposed(TensorView t) {
  std::swap(t.shape[t.rank - 1], t.shape[t.rank - 2]);
  std::swap(t.strides[t.rank - 1], t.strides[t.rank - 2]);
  return t;
}

}  // namespace pestle::ops
