// The tensors of each quantised format as a QuantMatrix, the description that the shared CPU
// kernels read. Rows must be evenly spaced (refuse_uneven_rows says if not).
#pragma once

#include <algorithm>

#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "ops/gemm/cpu/quant_linear.h"
#include "ops/quant/rowwise/fp8_scale_grid.h"

namespace pestle::ops {

inline cpu::QuantMatrix matrix_of(const TensorView& codes, cpu::CodeKind kind) {
  cpu::QuantMatrix q;
  q.code = kind;
  q.codes = codes.as<uint8_t>();
  even_rows(codes, q.row_bytes);
  q.rows = row_count(codes);
  q.columns = row_length(codes) * (kind == cpu::CodeKind::kNibble ? 2 : 1);
  q.group = std::max<int64_t>(q.columns, 1);
  return q;
}

inline cpu::CodeKind code_kind(DType dtype) {
  return dtype == DType::kE4M3   ? cpu::CodeKind::kE4M3
         : dtype == DType::kE5M2 ? cpu::CodeKind::kE5M2
                                 : cpu::CodeKind::kI8;
}

// Scales with one row for each row of codes, or one for `rows_per_scale` of them (0: for all).
inline void set_scales(cpu::QuantMatrix& q, const TensorView& scale, int64_t group,
                       int64_t rows_per_scale = 1) {
  q.scale_kind = scale.dtype == DType::kE4M3   ? cpu::ScaleKind::kE4M3
                 : scale.dtype == DType::kE8M0 ? cpu::ScaleKind::kE8M0
                                               : cpu::ScaleKind::kF32;
  q.scales = scale.data;
  even_rows(scale, q.scale_row_stride);
  q.rows_per_scale = rows_per_scale;
  q.group = std::max<int64_t>(group, 1);
}

inline cpu::QuantMatrix byte_matrix(const TensorView& codes, const TensorView& scale,
                                    Fp8Granularity granularity) {
  cpu::QuantMatrix q = matrix_of(codes, code_kind(codes.dtype));
  switch (granularity) {
    case Fp8Granularity::kTensor: set_scales(q, scale, q.columns, 0); break;
    case Fp8Granularity::kRow: set_scales(q, scale, q.columns); break;
    case Fp8Granularity::kColumn: q.column_scale = scale.data; break;
    case Fp8Granularity::kBlock1x128: set_scales(q, scale, formats::kFp8Block); break;
    case Fp8Granularity::kBlock128x128:
      set_scales(q, scale, formats::kFp8Block, formats::kFp8Block);
      break;
  }
  return q;
}

inline void set_e2m1(cpu::QuantMatrix& q, bool high_first) {
  for (int i = 0; i < 16; ++i) q.table[i] = formats::f32_from_e2m1(static_cast<uint8_t>(i));
  q.high_first = high_first;
}

inline cpu::QuantMatrix nvfp4_matrix(const TensorView& codes, const TensorView& scale,
                                     const TensorView& global_scale, bool high_first,
                                     bool swizzled) {
  cpu::QuantMatrix q = matrix_of(codes, cpu::CodeKind::kNibble);
  set_e2m1(q, high_first);
  set_scales(q, scale, formats::kNvfp4Block);
  q.swizzled = swizzled;
  q.factor = load<float>(global_scale.data);
  return q;
}

inline cpu::QuantMatrix mxfp8_matrix(const TensorView& codes, const TensorView& scale,
                                     bool swizzled) {
  cpu::QuantMatrix q = matrix_of(codes, code_kind(codes.dtype));
  set_scales(q, scale, formats::kMxBlock);
  q.swizzled = swizzled;
  return q;
}

inline cpu::QuantMatrix mxfp4_matrix(const TensorView& codes, const TensorView& scale,
                                     bool high_first, bool swizzled) {
  cpu::QuantMatrix q = matrix_of(codes, cpu::CodeKind::kNibble);
  set_e2m1(q, high_first);
  set_scales(q, scale, formats::kMxBlock);
  q.swizzled = swizzled;
  return q;
}

// Swizzled scales are one array: strides within it make no sense to the kernels.
inline std::string refuse_strided_swizzle(const Call& call, int scale, bool swizzled) {
  if (!swizzled || is_contiguous(call.tensor(scale))) return "";
  return std::string(call.spec->args[static_cast<size_t>(scale)].name) +
         " is swizzled and must be contiguous; copy it first";
}

// Groups that cut a vector of columns have no fast path.
inline std::string refuse_group(const cpu::QuantMatrix& q) {
  if (cpu::group_is_regular(q)) return "";
  return q.code == cpu::CodeKind::kNibble
             ? "group_size must be 16, 32, 64, a multiple of 128 or the whole row"
             : "group_size must be a multiple of 16 or the whole row";
}

// The arguments that every linear_* op has, beside its weight.
struct LinearArgs {
  int x;
  int out;
  int first_epilogue_arg;
};
// x: what stands for the call's.
inline Status run_linear(const Call& call, const LinearArgs& args, const cpu::QuantMatrix& weight,
                         int64_t hadamard, const TensorView* x = nullptr) {
  const Epilogue epilogue(call, args.first_epilogue_arg, call.tensor(args.out));
  QuantLinear linear;
  linear.weight = weight;
  linear.x = x != nullptr ? *x : call.tensor(args.x);
  linear.hadamard = hadamard;
  linear.m = row_count(linear.x);
  linear.out = call.tensor(args.out);
  linear.epilogue = &epilogue;
  linear.workspace = call.workspace;
  return run_quant_linear(linear);
}

// Both operands are codes; `rows`, `columns`: scales that multiply finished sums.
inline Status run_scaled_mm(const Call& call, int out, int first_epilogue_arg,
                            const cpu::QuantMatrix& a, const cpu::QuantMatrix& b,
                            const SumFactors& rows = {}, const SumFactors& columns = {}) {
  const Epilogue epilogue(call, first_epilogue_arg, call.tensor(out));
  QuantLinear linear;
  linear.weight = b;
  linear.x_is_codes = true;
  linear.x_codes = a;
  linear.rows = rows;
  linear.columns = columns;
  linear.m = a.rows;
  linear.out = call.tensor(out);
  linear.epilogue = &epilogue;
  linear.workspace = call.workspace;
  return run_quant_linear(linear);
}

}  // namespace pestle::ops
