// Reducing a tensor of any strides over any set of its dimensions: the fewest dimensions that
// describe it. Shared by the CPU's and the GPU's paths of the ops that reduce.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor.h"

namespace pestle::ops {

// Strides in bytes. Dimensions of one element are gone; neighbours that follow one another in
// memory are one, so that the order of the reduced elements stays that of the logical tensor.
struct ReducePlan {
  struct Dims {
    int rank = 0;
    int64_t size[kMaxRank];
    int64_t x_stride[kMaxRank];
    int64_t out_stride[kMaxRank];  // kept ones

    void add(int64_t count, int64_t x, int64_t out) {
      const int last = rank - 1;
      if (rank > 0 && x_stride[last] == x * count && out_stride[last] == out * count) {
        size[last] *= count;
        x_stride[last] = x;
        out_stride[last] = out;
        return;
      }
      size[rank] = count;
      x_stride[rank] = x;
      out_stride[rank] = out;
      ++rank;
    }
  };
  const char* x = nullptr;
  char* out = nullptr;
  DType x_dtype, out_dtype;
  int64_t outs = 1;   // elements of out
  int64_t count = 1;  // elements behind each
  Dims kept, gone;

  // `dims`: a bit for each dimension that goes. out lacks those or has ones.
  ReducePlan(const TensorView& in, const TensorView& result, int64_t dims, bool keepdim)
      : x(in.as<char>()), out(result.as<char>()), x_dtype(in.dtype), out_dtype(result.dtype) {
    const int x_bytes = dtype_bytes(in.dtype), out_bytes = dtype_bytes(result.dtype);
    int place = 0;
    for (int d = 0; d < in.rank; ++d) {
      const bool goes = (dims >> d & 1) != 0;
      (goes ? count : outs) *= in.shape[d];
      if (in.shape[d] != 1) {
        if (goes)
          gone.add(in.shape[d], in.strides[d] * x_bytes, 0);
        else
          kept.add(in.shape[d], in.strides[d] * x_bytes, result.strides[place] * out_bytes);
      }
      place += !goes || keepdim;
    }
  }

  int x_bytes() const { return dtype_bytes(x_dtype); }
  // The reduced elements are neighbours.
  bool is_rows() const {
    return gone.rank == 0 || (gone.rank == 1 && gone.x_stride[0] == x_bytes());
  }
  // The innermost kept ones are, and the reduced ones lie at one distance.
  bool is_columns() const {
    return gone.rank == 1 && kept.rank > 0 && kept.x_stride[kept.rank - 1] == x_bytes();
  }
  // Byte offsets of result `index` in x and out.
  void place(int64_t index, int64_t& x_offset, int64_t& out_offset) const {
    x_offset = out_offset = 0;
    for (int d = kept.rank - 1; d >= 0; --d) {
      x_offset += index % kept.size[d] * kept.x_stride[d];
      out_offset += index % kept.size[d] * kept.out_stride[d];
      index /= kept.size[d];
    }
  }
};

}  // namespace pestle::ops
