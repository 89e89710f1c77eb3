// What the CPU paths of softmax, log_softmax and cross_entropy share: a row of logits in pieces of
// floats, its largest and the sum of its exponentials by the online algorithm.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "backends/cpu/simd/row_math.h"
#include "ops/shared/cpu_rows.h"
#include "ops/shared/rows_along.h"

namespace pestle::ops {

// `count` elements of a row from `begin` on, to floats and back with one rounding. Rows with gaps
// go element by element: neighbouring rows, which a thread takes one after another, share cache
// lines.
inline void load_piece(const TensorView& t, int64_t row, int64_t begin, int64_t count, float* v) {
  const int64_t step = last_stride_bytes(t);
  const char* from = row_address(t, row) + begin * step;
  if (step == dtype_bytes(t.dtype) || count == 1) return cpu::row_load(from, t.dtype, v, count);
  for (int64_t i = 0; i < count; ++i) v[i] = load_f32(from + i * step, t.dtype);
}
inline void store_piece(const TensorView& t, int64_t row, int64_t begin, int64_t count,
                        const float* v) {
  const int64_t step = last_stride_bytes(t);
  char* to = row_address(t, row) + begin * step;
  if (step == dtype_bytes(t.dtype) || count == 1) return cpu::row_store(v, to, t.dtype, count);
  for (int64_t i = 0; i < count; ++i) store_f32(to + i * step, t.dtype, v[i]);
}

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
    load_piece(x, row, begin, count, t);
    if (scale != 1) cpu::row_scale(t, scale, t, count);
    if (mask.data == nullptr) return;
    if (mask.strides[mask.rank - 1] == 0) {
      cpu::row_add_constant(t, load_f32(row_address(mask, row), mask.dtype), t, count);
      return;
    }
    float m[cpu::kRowPiece];
    load_piece(mask, row, begin, count, m);
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

}  // namespace pestle::ops
