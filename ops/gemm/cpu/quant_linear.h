// out = epilogue(x @ W^T) for any quantised W: the one CPU implementation behind every linear_* op
// and the scaled_mm_* ops of floating codes. Ops describe their weight; the kernels are shared.
#pragma once

#include <initializer_list>
#include <string>

#include "backends/cpu/quant_matrix.h"
#include "ops/gemm/epilogue/epilogue.h"

namespace pestle::ops {

// f32 factors of the finished sums of rows or columns of out, at any address; a step of 0: one for
// all.
struct SumFactors {
  const void* data = nullptr;  // null: 1
  int64_t step = 0;

  float at(int64_t i) const { return data ? cpu::float_at(data, i * step) : 1.0f; }
};

struct QuantLinear {
  cpu::QuantMatrix weight;  // N x K
  TensorView x;             // floating, or, when x_is_codes, unused
  bool x_is_codes = false;
  cpu::QuantMatrix x_codes;  // M x K
  SumFactors rows, columns;
  int64_t hadamard = 0;  // x is rotated in groups of this many columns
  int64_t m = 0;
  TensorView out;
  const Epilogue* epilogue = nullptr;
  void* workspace = nullptr;  // kQuantLinearWorkspace bytes, with tables for round_to_int8
};

// Bytes for a contract with symbols M and K: 128 rows of x as f32, columns padded to 128.
inline constexpr const char* kQuantLinearWorkspace = "(min(M,128) + 3) * round_up(K,128) * 4 + 64";
// The same and 16 floats for each byte that a scale can be.
inline constexpr const char* kQuantLinearTablesWorkspace =
    "(min(M,128) + 3) * round_up(K,128) * 4 + 64 + 16384";

Status run_quant_linear(const QuantLinear& call);

// The distance in elements between a tensor's rows when they are evenly spaced, as they are in any
// 2-D tensor; false when they are not, or when the last dimension is strided.
bool even_rows(const TensorView& t, int64_t& stride);

// Why the shared implementation can't take the call: the first of `tensors` (argument indices)
// whose rows are not dense or not evenly spaced. Empty if all are.
std::string refuse_uneven_rows(const Call& call, std::initializer_list<int> tensors);

}  // namespace pestle::ops
