// activation_backward, reference: float64, element by element.
#include "core/op.h"
#include "ops/activation/activation_args.h"
#include "ops/activation/activation_backward/activation_backward_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::activation_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kAct = arg_index(spec, "act");

Status run(const Call& call) {
  const TensorView& grad = call.tensor(kGrad);
  const TensorView& x = call.tensor(kX);
  const TensorView& d_x = call.tensor(kDx);
  const auto act = static_cast<Activation>(call.integer(kAct));
  for (int64_t row = 0; row < row_count(x); ++row) {
    for (int64_t i = 0; i < row_length(x); ++i) {
      const double g = load_f64(row_address(grad, row) + i * last_stride_bytes(grad), grad.dtype);
      const Activated64 slope =
          slope64(act, load_f64(row_address(x, row) + i * last_stride_bytes(x), x.dtype));
      store_f64(row_address(d_x, row) + i * last_stride_bytes(d_x), d_x.dtype,
                call.sum_magnitudes ? std::fabs(g) * slope.size : g * slope.value);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::activation_backward
