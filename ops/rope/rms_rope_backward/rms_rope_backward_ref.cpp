// rms_rope_backward, reference: float64, head by head.
#include <vector>

#include "ops/rope/rms_rope_backward/rms_rope_backward_spec.h"

namespace pestle::ops::rms_rope_backward {
namespace {

constexpr int kDOut = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kDOut2 = arg_index(spec, "d_out2");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kWeight2 = arg_index(spec, "weight2");
constexpr int kDX = arg_index(spec, "d_x");
constexpr int kDWeight = arg_index(spec, "d_weight");
constexpr int kDX2 = arg_index(spec, "d_x2");
constexpr int kDWeight2 = arg_index(spec, "d_weight2");
constexpr int kEps = arg_index(spec, "eps");

using Row = std::vector<double>;

// A head's gradient, rotated back; magnitudes add up where signs would cancel.
Row rotate_back(const Call& call, const Rotations& rotations, const TensorView& d_out, int64_t b,
                int64_t h, int64_t s) {
  const char* from = head_at(d_out, b, h, s);
  const int64_t step = last_stride_bytes(d_out);
  const auto value = [&](double v) { return call.sum_magnitudes ? std::fabs(v) : v; };
  Row u(static_cast<size_t>(d_out.shape[3]));
  for (size_t i = 0; i < u.size(); ++i) {
    u[i] = value(load_f64(from + static_cast<int64_t>(i) * step, d_out.dtype));
  }
  const RotationRow turns(rotations, b, h, s);
  for (int64_t pair = 0; pair < rotations.rot / 2; ++pair) {
    const auto first = static_cast<size_t>(rotations.first(pair));
    const auto second = static_cast<size_t>(rotations.second(pair));
    double f[4];
    turns.load(pair, f);
    const double g0 = u[first], g1 = u[second];
    u[first] = value(f[0] * g0) + value(f[1] * g1);
    u[second] = value(f[2] * g0) + value(f[3] * g1);
  }
  return u;
}

void differentiate(const Call& call, const TensorView& d_out, const TensorView& x,
                   const TensorView& weight, const TensorView& d_x, Row& d_weight) {
  Rotations rotations = rotations_of<spec>(call);
  rotations.inverse = true;
  const int64_t d = x.shape[3], x_step = last_stride_bytes(x), out_step = last_stride_bytes(d_x);
  const auto value = [&](double v) { return call.sum_magnitudes ? std::fabs(v) : v; };
  for (int64_t row = 0; row < row_count(x); ++row) {
    const int64_t s = row % x.shape[2];
    const int64_t h = row / x.shape[2] % x.shape[1];
    const int64_t b = row / x.shape[2] / x.shape[1];
    const char* in = head_at(x, b, h, s);
    char* to = head_at(d_x, b, h, s);
    const double r = rope_root(in, x_step, x.dtype, d, double{call.number(kEps)});
    const Row u = rotate_back(call, rotations, d_out, b, h, s);
    double dot = 0;
    for (int64_t i = 0; i < d; ++i) {
      const double n = load_f64(in + i * x_step, x.dtype) * r;
      const double w = load_f64(at(weight, i), weight.dtype);
      dot += value(u[static_cast<size_t>(i)] * w * n);
      d_weight[static_cast<size_t>(i)] += value(u[static_cast<size_t>(i)] * n);
    }
    const double mean = dot / static_cast<double>(d);
    for (int64_t i = 0; i < d; ++i) {
      const double n = load_f64(in + i * x_step, x.dtype) * r;
      const double w = load_f64(at(weight, i), weight.dtype);
      const double straight = value(r * u[static_cast<size_t>(i)] * w);
      const double through_root = value(r * n * mean);
      store_f64(to + i * out_step, d_x.dtype,
                call.sum_magnitudes ? straight + through_root : straight - through_root);
    }
  }
}

void store_row(const Row& row, const TensorView& to) {
  for (size_t i = 0; i < row.size(); ++i) {
    store_f64(at(to, static_cast<int64_t>(i)), to.dtype, row[i]);
  }
}

Status run(const Call& call) {
  Row d_weight(static_cast<size_t>(call.tensor(kX).shape[3]));
  differentiate(call, call.tensor(kDOut), call.tensor(kX), call.tensor(kWeight), call.tensor(kDX),
                d_weight);
  if (call.has(kX2)) {
    Row d_weight2(d_weight.size());
    const bool own = call.has(kWeight2);
    differentiate(call, call.tensor(kDOut2), call.tensor(kX2),
                  call.tensor(own ? kWeight2 : kWeight), call.tensor(kDX2),
                  own ? d_weight2 : d_weight);
    if (own) store_row(d_weight2, call.tensor(kDWeight2));
  }
  store_row(d_weight, call.tensor(kDWeight));
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::rms_rope_backward
