#include "ops/gemm/epilogue/epilogue_rows.h"

#include <algorithm>

#include "backends/cpu/simd/row_math.h"
#include "ops/gemm/cpu/cpu_gemm.h"

namespace pestle::ops {
namespace {

void activate_piece(Activation activation, float* y, int64_t count) {
  switch (activation) {
    case Activation::kNone: return;
    case Activation::kGelu: return cpu::row_activation(pestle::Activation::kGelu, y, y, count);
    case Activation::kGeluTanh:
      return cpu::row_activation(pestle::Activation::kGeluTanh, y, y, count);
    case Activation::kSilu: return cpu::row_activation(pestle::Activation::kSilu, y, y, count);
  }
}

// alpha and bias of `count` columns of the product from `column` on; `other` is worked in.
void start_piece(const Epilogue& e, int64_t column, int64_t count, float* y, float* other) {
  if (e.alpha != 1) cpu::row_scale(y, e.alpha, y, count);
  if (!e.bias.data) return;
  load_values(e.bias, 0, column, count, other);
  cpu::row_add(y, other, y, count);
}

// Columns [column, column + count) of out, of the product's y, and of its last half's z for pairs.
void finish_piece(const Epilogue& e, const TensorView& out, int64_t row, int64_t column,
                  int64_t count, float* y, float* z) {
  float other[cpu::kRowPiece];
  start_piece(e, column, count, y, other);
  if (e.gated) {
    start_piece(e, column + e.columns, count, z, other);
    activate_piece(e.activation, e.act_first ? y : z, count);
    cpu::row_multiply(y, z, y, count);
  } else {
    activate_piece(e.activation, y, count);
  }
  if (e.gate.data) {
    load_values(e.gate, row / e.rows_per_gate, column, count, other);
    cpu::row_multiply(y, other, y, count);
  }
  if (e.residual.data) {
    load_values(e.residual, row, column, count, other);
    cpu::row_add_scaled(y, other, e.beta, y, count);
  }
  store_values(out, row, column, count, y);
}

}  // namespace

void finish_row(const Epilogue& e, const TensorView& out, int64_t row, float* sums) {
  for (int64_t column = 0; column < e.columns; column += cpu::kRowPiece)
    finish_piece(e, out, row, column, std::min(cpu::kRowPiece, e.columns - column), sums + column,
                 sums + e.columns + column);
}

}  // namespace pestle::ops
