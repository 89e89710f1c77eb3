// gated_activation_backward, reference: float64, element by element.
#include <cfloat>
#include <limits>

#include "core/op.h"
#include "ops/activation/activation_args.h"
#include "ops/activation/gated_activation_backward/gated_activation_backward_spec.h"
#include "ops/activation/gated_views.h"
#include "ops/shared/element.h"

namespace pestle::ops::gated_activation_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kGate = arg_index(spec, "gate");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kDgate = arg_index(spec, "d_gate");
constexpr int kAct = arg_index(spec, "act");
constexpr int kLayout = arg_index(spec, "layout");

double at(const TensorView& t, int64_t row, int64_t i) {
  return load_f64(row_address(t, row) + i * last_stride_bytes(t), t.dtype);
}
void put(const TensorView& t, int64_t row, int64_t i, double v) {
  store_f64(row_address(t, row) + i * last_stride_bytes(t), t.dtype, v);
}

// The product with the gate comes last: what over- or underflows before decides.
double gradient_size(double first, double first_size, double gate) {
  if (std::fabs(first) > FLT_MAX / 2) return std::numeric_limits<double>::infinity();
  return (std::fabs(first_size) + kTiny) * std::fabs(gate);
}

Status run(const Call& call) {
  const int64_t layout = call.integer(kLayout);
  const GatedViews in = gated_views(call.tensor(kX), call.tensor(kGate), layout);
  const GatedViews to = gated_views(call.tensor(kDx), call.tensor(kDgate), layout);
  const TensorView& grad = call.tensor(kGrad);
  const auto act = static_cast<Activation>(call.integer(kAct));
  for (int64_t row = 0; row < row_count(grad); ++row) {
    for (int64_t i = 0; i < row_length(grad); ++i) {
      const double g = at(grad, row, i);
      const double x = at(in.act, row, i);
      const double gate = at(in.gate, row, i);
      const Activated64 y = activate64(act, x);
      const Activated64 slope = slope64(act, x);
      const double size = gradient_size(g * slope.value, g * slope.size, gate);
      put(to.act, row, i, call.sum_magnitudes ? size : g * gate * slope.value);
      put(to.gate, row, i, call.sum_magnitudes ? std::fabs(g) * y.size : g * y.value);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::gated_activation_backward
