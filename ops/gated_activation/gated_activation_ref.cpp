// gated_activation, reference: float64, element by element.
#include "core/op.h"
#include "ops/common/activation_args.h"
#include "ops/common/element.h"
#include "ops/common/gated_views.h"
#include "ops/gated_activation/gated_activation_spec.h"

namespace pestle::ops::gated_activation {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kGate = arg_index(spec, "gate");
constexpr int kOut = arg_index(spec, "out");
constexpr int kAct = arg_index(spec, "act");
constexpr int kLayout = arg_index(spec, "layout");

Status run(const Call& call) {
  const GatedViews in = gated_views(call.tensor(kX), call.tensor(kGate), call.integer(kLayout));
  const TensorView& out = call.tensor(kOut);
  const auto act = static_cast<Activation>(call.integer(kAct));
  const auto at = [](const TensorView& t, int64_t row, int64_t i) {
    return load_f64(row_address(t, row) + i * last_stride_bytes(t), t.dtype);
  };
  for (int64_t row = 0; row < row_count(out); ++row) {
    for (int64_t i = 0; i < row_length(out); ++i) {
      const Activated64 y = activate64(act, at(in.act, row, i));
      const double g = at(in.gate, row, i);
      store_f64(row_address(out, row) + i * last_stride_bytes(out), out.dtype,
                call.sum_magnitudes ? y.size * std::fabs(g) : y.value * g);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::gated_activation
