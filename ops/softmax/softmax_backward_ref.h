// The row loop that the references of softmax_backward and log_softmax_backward share.
#pragma once

#include <cfloat>
#include <cmath>
#include <limits>

#include "core/op.h"
#include "ops/shared/element.h"
#include "ops/shared/rows_along.h"

namespace pestle::ops {

struct GradientRow {
  const char* grad;
  const char* out;
  int64_t grad_step, out_step;
  DType dtype;
  double d_out(int64_t i) const { return load_f64(grad + i * grad_step, dtype); }
  double y(int64_t i) const { return load_f64(out + i * out_step, dtype); }
};

// term(row, i): what is summed over the row; gradient(row, i, sum); magnitude(row, i, sum of sizes,
// scale), for the bound.
template <const OpSpec& spec, class Term, class Gradient, class Magnitude>
Status softmax_gradient_reference(const Call& call, const Term& term, const Gradient& gradient,
                                  const Magnitude& magnitude) {
  constexpr int kScale = arg_index(spec, "scale");
  const int64_t dim = call.integer(arg_index(spec, "dim"));
  const TensorView grad = rows_along(call.tensor(arg_index(spec, "d_out")), dim);
  const TensorView out = rows_along(call.tensor(arg_index(spec, "out")), dim);
  const TensorView d_x = rows_along(call.tensor(arg_index(spec, "d_x")), dim);
  for (int64_t r = 0; r < row_count(out); ++r) {
    const GradientRow row{row_address(grad, r), row_address(out, r), last_stride_bytes(grad),
                          last_stride_bytes(out), out.dtype};
    char* to = row_address(d_x, r);
    double sum = 0;
    double sum_of_sizes = 0;
    for (int64_t i = 0; i < row_length(out); ++i) {
      sum += term(row, i);
      sum_of_sizes += std::fabs(term(row, i));
    }
    for (int64_t i = 0; i < row_length(out); ++i) {
      const double v = call.sum_magnitudes ? magnitude(row, i, sum_of_sizes, call.number(kScale))
                                           : call.number(kScale) * gradient(row, i, sum);
      store_f64(to + i * last_stride_bytes(d_x), d_x.dtype, v);
    }
  }
  return {};
}

}  // namespace pestle::ops
