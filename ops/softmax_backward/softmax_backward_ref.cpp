// softmax_backward, reference: float64, row by row.
#include <cfloat>
#include <cmath>
#include <limits>

#include "core/op.h"
#include "ops/common/element.h"
#include "ops/common/rows_along.h"
#include "ops/softmax_backward/softmax_backward_spec.h"

namespace pestle::ops::softmax_backward {
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

double term(const Row& row, int64_t i) { return row.d_out(i) * row.y(i); }
double gradient(const Row& row, int64_t i, double sum) { return row.y(i) * (row.d_out(i) - sum); }

// What overflows f32 in the sum or in the product decides over the result.
double magnitude(const Row& row, int64_t i, double sum_of_sizes, double scale) {
  const double parts = std::fabs(row.d_out(i)) + sum_of_sizes;
  const double product = std::fabs(row.y(i)) * parts;
  if (parts > FLT_MAX / 2 || product > FLT_MAX / 2) return std::numeric_limits<double>::infinity();
  return std::fabs(scale) * product;
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

}  // namespace pestle::ops::softmax_backward
