// log_softmax_backward, reference: float64, row by row.
#include "ops/softmax/log_softmax_backward/log_softmax_backward_spec.h"
#include "ops/softmax/softmax_backward_ref.h"

namespace pestle::ops::log_softmax_backward {
namespace {

double term(const GradientRow& row, int64_t i) { return row.d_out(i); }
// Finite also for out > 0, which no log_softmax makes: an infinity would take the sign of a sum
// that rounding may turn.
double probability(const GradientRow& row, int64_t i) {
  const double p = std::exp(row.y(i));
  return p > 1e200 ? 1e200 : p;
}
double gradient(const GradientRow& row, int64_t i, double sum) {
  return row.d_out(i) - probability(row, i) * sum;
}

// e^y below f32's normal range may become 0; in units of the bound.
constexpr double kExpUnderflow = 0x1p-102;

// What overflows f32 in the sum or in the product decides over the result. An exponential's
// relative error grows with its argument.
double magnitude(const GradientRow& row, int64_t i, double sum_of_sizes, double scale) {
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
  return softmax_gradient_reference<spec>(call, term, gradient, magnitude);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::log_softmax_backward
