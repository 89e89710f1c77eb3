// cross_entropy, reference: float64, row by row.
#include "core/op.h"
#include "ops/softmax/class_targets.h"
#include "ops/softmax/cross_entropy/cross_entropy_spec.h"
#include "ops/softmax/softmax_ref.h"

namespace pestle::ops::cross_entropy {
namespace {

constexpr int kLogits = arg_index(spec, "logits");
constexpr int kTarget = arg_index(spec, "target");
constexpr int kLoss = arg_index(spec, "loss");
constexpr int kLse = arg_index(spec, "lse");
constexpr int kIgnore = arg_index(spec, "ignore_index");
constexpr int kSmoothing = arg_index(spec, "label_smoothing");

// (1 - smoothing) * logit of the target + smoothing * mean
double expected_logit(const SoftmaxRow& row, int64_t target, double smoothing) {
  const double own = (1 - smoothing) * row.t[static_cast<size_t>(target)];
  if (smoothing == 0) return own;
  double sum = 0;
  for (double t : row.t) sum += t;
  return own + smoothing * sum / static_cast<double>(row.t.size());
}

// Beside the largest logit, which is exact: nothing here grows with an offset of the row.
double lse_magnitude(const SoftmaxRow& row) {
  return std::fabs(std::log(row.sum)) + 2 + row.spread;
}

double loss_magnitude(const SoftmaxRow& row, int64_t target, double smoothing) {
  double sizes = std::fabs(row.base() - row.t[static_cast<size_t>(target)]);
  if (smoothing != 0) {
    double sum = 0, apart = 0;
    for (double t : row.t) {
      sum += std::fabs(t);
      apart += std::fabs(row.base() - t);
    }
    // A sum beyond f32's range decides over the mean.
    if (sum > FLT_MAX / 2) return std::numeric_limits<double>::infinity();
    sizes += apart / static_cast<double>(row.t.size());
  }
  return lse_magnitude(row) + sizes;
}

double loss_of(const Call& call, const SoftmaxRow& row, int64_t target) {
  const double smoothing = call.number(kSmoothing);
  if (target == call.integer(kIgnore)) return 0;
  if (!is_class(target, static_cast<int64_t>(row.t.size()))) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (call.sum_magnitudes) return loss_magnitude(row, target, smoothing);
  return row.base() - expected_logit(row, target, smoothing) + std::log(row.sum);
}

Status run(const Call& call) {
  const TensorView& logits = call.tensor(kLogits);
  const TensorView& loss = call.tensor(kLoss);
  const TensorView& lse = call.tensor(kLse);
  SoftmaxRow row;
  for (int64_t i = 0; i < row_count(logits); ++i) {
    load_softmax_row(logits, {}, 1, i, row);
    const int64_t target = load_target(call.tensor(kTarget), i);
    store_f64(element_address(loss, i), loss.dtype, loss_of(call, row, target));
    store_f64(element_address(lse, i), lse.dtype,
              call.sum_magnitudes ? lse_magnitude(row) : row.log_sum());
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::cross_entropy
