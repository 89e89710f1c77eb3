// activation, reference: float64, element by element.
#include "core/op.h"
#include "ops/activation/activation_spec.h"
#include "ops/common/activation_args.h"
#include "ops/common/element.h"

namespace pestle::ops::activation {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");
constexpr int kAct = arg_index(spec, "act");

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& out = call.tensor(kOut);
  const auto act = static_cast<Activation>(call.integer(kAct));
  for (int64_t row = 0; row < row_count(x); ++row) {
    const char* from = row_address(x, row);
    char* to = row_address(out, row);
    for (int64_t i = 0; i < row_length(x); ++i) {
      const Activated64 y = activate64(act, load_f64(from + i * last_stride_bytes(x), x.dtype));
      store_f64(to + i * last_stride_bytes(out), out.dtype, call.sum_magnitudes ? y.size : y.value);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::activation
