// What the CPU paths of softmax, log_softmax and cross_entropy share: a row of logits in pieces of
// floats, its largest and the sum of its exponentials by the online algorithm.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "backends/cpu/simd/row_math.h"
#include "ops/common/cpu_rows.h"
#include "ops/common/rows_along.h"

namespace pestle::ops {

// x and mask (absent: no data) with the row's dimension last.
struct CpuLogits {
  TensorView x, mask;
  float scale = 1;

  CpuLogits(const TensorView& all, const TensorView& added, int64_t dim, float factor)
      : x(rows_along(all, dim)), scale(factor) {
    if (added.data != nullptr) mask = rows_along(broadcast_to(added, all), dim);
  }
  // t = scale * x + mask of `count` elements from `begin` on; at most cpu::kRowPiece.
  void load(int64_t row, int64_t begin, int64_t count, float* t) const {
    cpu::row_load(row_address(x, row) + begin * dtype_bytes(x.dtype), x.dtype, t, count);
    if (scale != 1) cpu::row_scale(t, scale, t, count);
    if (mask.data == nullptr) return;
    const char* added = row_address(mask, row);
    if (mask.strides[mask.rank - 1] == 0) {
      cpu::row_add_constant(t, load_f32(added, mask.dtype), t, count);
      return;
    }
    float m[cpu::kRowPiece];
    cpu::row_load(added + begin * dtype_bytes(mask.dtype), mask.dtype, m, count);
    cpu::row_add(t, m, t, count);
  }
};

// Largest t (NaN if any is) and the sum of exp(t - base).
struct RowSum {
  float largest = -std::numeric_limits<float>::infinity();
  double sum = 0;

  // What exponents are taken from: 0 in a row of -infinity alone, so that the sum is 0, not NaN.
  float base() const { return largest == -std::numeric_limits<float>::infinity() ? 0.0f : largest; }
  double lse() const { return static_cast<double>(base()) + std::log(sum); }
  // Leaves exp(t - base) in e, which may be t.
  void add(const float* t, float* e, int64_t count) {
    const float before = base();
    const float most = cpu::row_max(t, count);
    if (most > largest || std::isnan(most)) largest = most;
    if (sum != 0) sum *= std::exp(static_cast<double>(before) - static_cast<double>(base()));
    sum += cpu::row_exp(t, base(), e, count);
  }
};

// body(begin, count) over the pieces of a row.
template <class Body>
void for_pieces(int64_t length, Body&& body) {
  for (int64_t begin = 0; begin < length; begin += cpu::kRowPiece) {
    body(begin, std::min(cpu::kRowPiece, length - begin));
  }
}

// Why a CPU path that takes whole rows along dim refuses a tensor; a mask may repeat one element.
inline std::string refuse_row_strides(const char* name, const TensorView& t, int64_t dim) {
  return refuse_strided_row(name, rows_along(t, dim));
}
inline std::string refuse_mask_strides(const TensorView& mask, const TensorView& x, int64_t dim) {
  const TensorView rows = rows_along(broadcast_to(mask, x), dim);
  if (rows.strides[rows.rank - 1] == 0) return {};
  return refuse_strided_row("mask", rows);
}

}  // namespace pestle::ops
