// cross_entropy_backward, reference: float64, element by element.
#include <cmath>
#include <limits>

#include "core/op.h"
#include "ops/softmax/class_targets.h"
#include "ops/softmax/cross_entropy_backward/cross_entropy_backward_spec.h"

namespace pestle::ops::cross_entropy_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_loss");
constexpr int kLogits = arg_index(spec, "logits");
constexpr int kTarget = arg_index(spec, "target");
constexpr int kLse = arg_index(spec, "lse");
constexpr int kDlogits = arg_index(spec, "d_logits");
constexpr int kIgnore = arg_index(spec, "ignore_index");
constexpr int kSmoothing = arg_index(spec, "label_smoothing");

struct Row {
  double d_loss;
  double lse;
  double own;     // what the target's class loses
  double shared;  // what every class loses
};

// Never above 1 with cross_entropy's lse; with another, what f32 can't hold is Inf.
double probability(const Row& row, double logit) {
  const double p = std::exp(logit - row.lse);
  return p > std::numeric_limits<float>::max() ? std::numeric_limits<double>::infinity() : p;
}

double gradient(const Row& row, double logit, bool is_target) {
  return row.d_loss * (probability(row, logit) - (is_target ? row.own : 0) - row.shared);
}
// e^y below f32's normal range may become 0; in units of the bound.
constexpr double kExpUnderflow = 0x1p-102;
// An exponential's relative error grows with its argument, the difference of logit and lse.
double magnitude(const Row& row, double logit, bool is_target) {
  const double p = probability(row, logit);
  const double parts = p == 0 ? 0 : kExpUnderflow + p * (2 + std::fabs(logit - row.lse));
  return std::fabs(row.d_loss) * (parts + (is_target ? row.own : 0) + row.shared);
}

Status run(const Call& call) {
  const TensorView& logits = call.tensor(kLogits);
  const TensorView& to = call.tensor(kDlogits);
  const int64_t n = row_length(logits);
  const double smoothing = call.number(kSmoothing);
  for (int64_t i = 0; i < row_count(logits); ++i) {
    const int64_t target = load_target(call.tensor(kTarget), i);
    const bool ignored = target == call.integer(kIgnore);
    const Row row{load_f64(element_address(call.tensor(kGrad), i), DType::kF32),
                  load_f64(element_address(call.tensor(kLse), i), DType::kF64), 1 - smoothing,
                  smoothing / static_cast<double>(n)};
    for (int64_t j = 0; j < n; ++j) {
      const double logit =
          load_f64(row_address(logits, i) + j * last_stride_bytes(logits), logits.dtype);
      double v = call.sum_magnitudes ? magnitude(row, logit, j == target)
                                     : gradient(row, logit, j == target);
      if (ignored)
        v = 0;
      else if (!is_class(target, n))
        v = std::numeric_limits<double>::quiet_NaN();
      store_f64(row_address(to, i) + j * last_stride_bytes(to), to.dtype, v);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::cross_entropy_backward
