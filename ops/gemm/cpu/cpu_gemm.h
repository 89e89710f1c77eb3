// GEMMs of two matrices of floats of any strides on the CPU, 128 rows of out at a time.
// Map      rows of a as f32 in the caller's memory; blocks of columns of out over the threads, each
//          with its piece of b as f32 in the second-level cache, as b lies: along k or across it
//          (backends/cpu/simd/float_gemm.h).
// Traffic  a once, b once for every 128 rows of a.
// Numerics f32 sums in an order that depends on the instruction set and the shape alone.
#pragma once

#include <functional>

#include "core/op.h"

namespace pestle::ops {

// One matrix of a stack; strides in elements.
struct CpuMatrix {
  const char* data = nullptr;
  DType dtype = DType::kNone;
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  CpuMatrix(const TensorView& t, int64_t batch);
  CpuMatrix transposed() const;
};

// Rows [first, first + rows) of a @ b: row i at sums + i * stride. They may be worked in.
struct GemmRows {
  int64_t first = 0, rows = 0;
  float* sums = nullptr;
  int64_t stride = 0;
};

// `memory`: (min(a.rows, 128) + 3) * (round_up(k, 128) + round_up(b.columns, 96)) * 4 + 64 bytes.
// `take` gets the output's rows in order, on this thread.
void multiply_matrices(const CpuMatrix& a, const CpuMatrix& b, void* memory,
                       const std::function<void(const GemmRows&)>& take);

// `count` elements of any float dtype, 8-bit ones too, that lie `stride` elements apart, as f32.
void load_values(const char* p, DType dtype, int64_t stride, int64_t count, float* out);
// The same of a row of t, from `column` on; and back, of f32, bf16 and f16.
void load_values(const TensorView& t, int64_t row, int64_t column, int64_t count, float* out);
void store_values(const TensorView& t, int64_t row, int64_t column, int64_t count,
                  const float* from);

}  // namespace pestle::ops
