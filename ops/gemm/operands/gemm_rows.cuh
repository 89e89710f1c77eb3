// Rows of a GEMM's output and of its epilogue's operands, eight neighbours at a time, for passes
// over them.
#pragma once

#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "ops/gemm/epilogue/fused_epilogue.cuh"

namespace pestle::ops {

// Of evenly spaced matrices.
struct EvenRows {
  cuda::hopper::FloatMatrix t;
  int64_t m = 1;  // rows of a matrix
#ifdef __CUDACC__
  __device__ bool present() const { return t.data != nullptr; }
  __device__ int64_t offset(int64_t row, int64_t column) const {
    const int64_t batch = row / m;
    return batch * t.batch_stride + (row - batch * m) * t.row_stride + column * t.column_stride;
  }
  __device__ void load(int64_t row, int64_t column, int count, float (&v)[8]) const {
    cuda::hopper::load_8(t, offset(row, column), count, v);
  }
  __device__ void store(int64_t row, int64_t column, int count, const float (&v)[8]) const {
    cuda::hopper::store_8(t, offset(row, column), count, v);
  }
#endif
};

// Of any tensor.
struct StridedRows {
  cuda::AnyTensor t;
#ifdef __CUDACC__
  __device__ bool present() const { return t.data != nullptr; }
  __device__ void load(int64_t row, int64_t column, int count, float (&v)[8]) const {
    for (int i = 0; i < count; ++i) v[i] = t.load(t.at(row, column + i));
  }
  __device__ void store(int64_t row, int64_t column, int count, const float (&v)[8]) const {
    for (int i = 0; i < count; ++i) t.store(t.at(row, column + i), v[i]);
  }
#endif
};

}  // namespace pestle::ops
