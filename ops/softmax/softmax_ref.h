// What the references of softmax, log_softmax and cross_entropy share: one row in float64, and the
// magnitudes that its error bound is made of.
#pragma once

#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/shared/element.h"
#include "ops/shared/rows_along.h"

namespace pestle::ops {

// t = scale * x + mask. An exponential's relative error is the absolute error of its argument
// t - max(t): where t is x itself, that difference is all there is, and the results do not depend
// on an offset; else f32 makes it from terms of the sizes |scale * x|, |mask| and |max(t)|. `terms`
// holds their sum for each element. It is infinite for the whole row where t may leave f32's range:
// what overflows there decides over all elements.
struct SoftmaxRow {
  std::vector<double> t;
  std::vector<double> terms;
  double largest = -std::numeric_limits<double>::infinity();
  double sum = 0;         // of exp(t - largest)
  double spread = 0;      // sum of p * terms: how errors of the others reach an element
  bool is_plain = false;  // t is x

  void clear(int64_t length) {
    t.resize(static_cast<size_t>(length));
    terms.resize(static_cast<size_t>(length));
    largest = -std::numeric_limits<double>::infinity();
    sum = spread = 0;
  }
  void set(int64_t i, double scaled, double mask) {
    t[static_cast<size_t>(i)] = scaled + mask;
    terms[static_cast<size_t>(i)] = std::fabs(scaled) + std::fabs(mask);
  }
  // exp(t - largest) / sum
  double p(int64_t i) const { return std::exp(t[static_cast<size_t>(i)] - base()) / sum; }
  // -infinity where all of the row is.
  double log_sum() const { return base() + std::log(sum); }
  double base() const { return std::isinf(largest) && largest < 0 ? 0 : largest; }

  void finish() {
    double most = 0;
    for (size_t i = 0; i < t.size(); ++i) {
      largest = std::fmax(largest, t[i]);  // NaN comes in by the sum
      if (std::isfinite(terms[i])) most = std::fmax(most, terms[i]);
    }
    for (double v : t) sum += std::exp(v - base());
    const bool may_overflow = most > FLT_MAX / 2;
    for (size_t i = 0; i < t.size(); ++i) {
      // What is -infinity becomes exactly 0 and adds no error.
      terms[i] = may_overflow           ? std::numeric_limits<double>::infinity()
                 : !std::isfinite(t[i]) ? 0
                 : is_plain             ? largest - t[i]
                                        : terms[i] + std::fabs(largest);
      if (const double part = p(static_cast<int64_t>(i)); part > 0) spread += part * terms[i];
    }
    if (may_overflow) spread = std::numeric_limits<double>::infinity();
  }
};

// Row `row` of x and of mask (absent: no data), both with the reduced dimension last.
inline void load_softmax_row(const TensorView& x, const TensorView& mask, double scale, int64_t row,
                             SoftmaxRow& result) {
  const int64_t n = row_length(x);
  const char* from = row_address(x, row);
  const char* added = mask.data != nullptr ? row_address(mask, row) : nullptr;
  result.clear(n);
  result.is_plain = scale == 1 && added == nullptr;
  for (int64_t i = 0; i < n; ++i) {
    const double value = load_f64(from + i * last_stride_bytes(x), x.dtype);
    result.set(i, scale * value,
               added ? load_f64(added + i * last_stride_bytes(mask), mask.dtype) : 0);
  }
  result.finish();
}

}  // namespace pestle::ops
