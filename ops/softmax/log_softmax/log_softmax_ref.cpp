// log_softmax, reference: float64, row by row.
#include "core/op.h"
#include "ops/softmax/log_softmax/log_softmax_spec.h"
#include "ops/softmax/softmax_ref.h"

namespace pestle::ops::log_softmax {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kMask = arg_index(spec, "mask");
constexpr int kOut = arg_index(spec, "out");
constexpr int kDim = arg_index(spec, "dim");
constexpr int kScale = arg_index(spec, "scale");

// Errors of an element: of t - max t, of the sum (all exponentials) and of its logarithm.
double magnitude(const SoftmaxRow& row, int64_t i) {
  return row.terms[static_cast<size_t>(i)] + std::fabs(std::log(row.sum)) + 2 + row.spread;
}

Status run(const Call& call) {
  const int64_t dim = call.integer(kDim);
  const TensorView x = rows_along(call.tensor(kX), dim);
  const TensorView out = rows_along(call.tensor(kOut), dim);
  TensorView mask;
  if (call.has(kMask)) mask = rows_along(broadcast_to(call.tensor(kMask), call.tensor(kX)), dim);
  SoftmaxRow values;
  for (int64_t row = 0; row < row_count(x); ++row) {
    load_softmax_row(x, mask, call.number(kScale), row, values);
    char* to = row_address(out, row);
    for (int64_t i = 0; i < row_length(x); ++i) {
      const double v = call.sum_magnitudes ? magnitude(values, i)
                                           : values.t[static_cast<size_t>(i)] - values.log_sum();
      store_f64(to + i * last_stride_bytes(out), out.dtype, v);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::log_softmax
