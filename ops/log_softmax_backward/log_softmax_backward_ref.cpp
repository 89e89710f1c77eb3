// log_softmax_backward, reference: float64, row by row.
#include <cfloat>
#include <cmath>
#include <limits>

#include "core/op.h"
#include "ops/common/element.h"
#include "ops/common/rows_along.h"
#include "ops/log_softmax_backward/log_softmax_backward_spec.h"

namespace pestle::ops::log_softmax_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kOut = arg_index(spec, "out");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kDim = arg_index(spec, "dim");
constexpr int kScale = arg_index(spec, "scale");

struct Row {
  const char* grad;
  const char* out;
  int64_t grad_step, out_step;
  DType dtype;
  double d_out(int64_t i) const { return load_f64(grad + i * grad_step, dtype); }
  double y(int64_t i) const { return load_f64(out + i * out_step, dtype); }
};

double term(const Row& row, int64_t i) { return row.d_out(i); }
// Finite also for out > 0, which no log_softmax makes: an infinity would take the sign of a sum
// that rounding may turn.
double probability(const Row& row, int64_t i) {
  const double p = std::exp(row.y(i));
  return p > 1e200 ? 1e200 : p;
}
double gradient(const Row& row, int64_t i, double sum) {
  return row.d_out(i) - probability(row, i) * sum;
}

// e^y below f32's normal range may become 0; in units of the bound.
constexpr double kExpUnderflow = 0x1p-102;

// What overflows f32 in the sum or in the product decides over the result. An exponential's
// relative error grows with its argument.
double magnitude(const Row& row, int64_t i, double sum_of_sizes, double scale) {
  const double p = probability(row, i);
  const double product =
      p == 0 ? 0 : (kExpUnderflow + p * (2 + std::fabs(row.y(i)))) * sum_of_sizes;
  const double parts = std::fabs(row.d_out(i)) + product;
  if (sum_of_sizes > FLT_MAX / 2 || p > FLT_MAX / 2 || parts > FLT_MAX / 2) {
    return std::numeric_limits<double>::infinity();
  }
  return std::fabs(scale) * parts;
}

Status run(const Call& call) {
  const int64_t dim = call.integer(kDim);
  const TensorView grad = rows_along(call.tensor(kGrad), dim);
  const TensorView out = rows_along(call.tensor(kOut), dim);
  const TensorView d_x = rows_along(call.tensor(kDx), dim);
  for (int64_t r = 0; r < row_count(out); ++r) {
    const Row row{row_address(grad, r), row_address(out, r), last_stride_bytes(grad),
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

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::log_softmax_backward
