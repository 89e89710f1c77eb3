// apply_rope, reference: float64, pair by pair.
#include <cmath>

#include "ops/rope/apply_rope/apply_rope_spec.h"

namespace pestle::ops::apply_rope {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOut2 = arg_index(spec, "out2");

void rotate(const Call& call, const TensorView& x, const TensorView& out) {
  const Rotations rotations = rotations_of<spec>(call);
  const int64_t x_step = last_stride_bytes(x), out_step = last_stride_bytes(out);
  const auto value = [&](double v) { return call.sum_magnitudes ? std::fabs(v) : v; };
  for (int64_t row = 0; row < row_count(x); ++row) {
    const int64_t s = row % x.shape[2];
    const int64_t h = row / x.shape[2] % x.shape[1];
    const int64_t b = row / x.shape[2] / x.shape[1];
    const char* in = head_at(x, b, h, s);
    char* to = head_at(out, b, h, s);
    const RotationRow turns(rotations, b, h, s);
    for (int64_t pair = 0; pair < rotations.rot / 2; ++pair) {
      const int64_t first = rotations.first(pair), second = rotations.second(pair);
      const double x0 = load_f64(in + first * x_step, x.dtype);
      const double x1 = load_f64(in + second * x_step, x.dtype);
      double f[4];
      turns.load(pair, f);
      store_f64(to + first * out_step, out.dtype, value(f[0] * x0) + value(f[1] * x1));
      store_f64(to + second * out_step, out.dtype, value(f[2] * x0) + value(f[3] * x1));
    }
    for (int64_t i = rotations.rot; i < x.shape[3]; ++i) {
      store_f64(to + i * out_step, out.dtype, value(load_f64(in + i * x_step, x.dtype)));
    }
  }
}

Status run(const Call& call) {
  rotate(call, call.tensor(kX), call.tensor(kOut));
  if (call.has(kX2)) rotate(call, call.tensor(kX2), call.tensor(kOut2));
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::apply_rope
