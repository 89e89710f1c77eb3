// softmax_backward, reference: float64, row by row.
#include "ops/softmax/softmax_backward_ref.h"
#include "ops/softmax/softmax_backward/softmax_backward_spec.h"

namespace pestle::ops::softmax_backward {
namespace {

double term(const GradientRow& row, int64_t i) { return row.d_out(i) * row.y(i); }
double gradient(const GradientRow& row, int64_t i, double sum) {
  return row.y(i) * (row.d_out(i) - sum);
}

// What overflows f32 in the sum or in the product decides over the result.
double magnitude(const GradientRow& row, int64_t i, double sum_of_sizes, double scale) {
  const double parts = std::fabs(row.d_out(i)) + sum_of_sizes;
  const double product = std::fabs(row.y(i)) * parts;
  if (parts > FLT_MAX / 2 || product > FLT_MAX / 2) return std::numeric_limits<double>::infinity();
  return std::fabs(scale) * product;
}

Status run(const Call& call) {
  return softmax_gradient_reference<spec>(call, term, gradient, magnitude);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::softmax_backward
