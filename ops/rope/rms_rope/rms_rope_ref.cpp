// rms_rope, reference: float64, pair by pair.
#include "ops/rope/rms_rope/rms_rope_spec.h"

namespace pestle::ops::rms_rope {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kWeight2 = arg_index(spec, "weight2");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOut2 = arg_index(spec, "out2");
constexpr int kEps = arg_index(spec, "eps");

void rotate(const Call& call, const TensorView& x, const TensorView& weight,
            const TensorView& out) {
  const Rotations rotations = rotations_of<spec>(call);
  const int64_t x_step = last_stride_bytes(x), out_step = last_stride_bytes(out);
  const auto value = [&](double v) { return call.sum_magnitudes ? std::fabs(v) : v; };
  for (int64_t row = 0; row < row_count(x); ++row) {
    const int64_t s = row % x.shape[2];
    const int64_t h = row / x.shape[2] % x.shape[1];
    const int64_t b = row / x.shape[2] / x.shape[1];
    const char* in = head_at(x, b, h, s);
    char* to = head_at(out, b, h, s);
    const double r = rope_root(in, x_step, x.dtype, x.shape[3], double{call.number(kEps)});
    const auto normal = [&](int64_t i) {
      return load_f64(in + i * x_step, x.dtype) * r * load_f64(at(weight, i), weight.dtype);
    };
    const RotationRow turns(rotations, b, h, s);
    for (int64_t pair = 0; pair < rotations.rot / 2; ++pair) {
      const int64_t first = rotations.first(pair), second = rotations.second(pair);
      const double u0 = normal(first), u1 = normal(second);
      double f[4];
      turns.load(pair, f);
      store_f64(to + first * out_step, out.dtype, value(f[0] * u0) + value(f[1] * u1));
      store_f64(to + second * out_step, out.dtype, value(f[2] * u0) + value(f[3] * u1));
    }
    for (int64_t i = rotations.rot; i < x.shape[3]; ++i) {
      store_f64(to + i * out_step, out.dtype, value(normal(i)));
    }
  }
}

Status run(const Call& call) {
  rotate(call, call.tensor(kX), call.tensor(kWeight), call.tensor(kOut));
  if (!call.has(kX2)) return {};
  rotate(call, call.tensor(kX2), call.tensor(call.has(kWeight2) ? kWeight2 : kWeight),
         call.tensor(kOut2));
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::rms_rope
