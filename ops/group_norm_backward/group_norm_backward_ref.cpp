// group_norm_backward, reference: float64, any strides.
#include <cfloat>
#include <cmath>
#include <vector>

#include "ops/group_norm_backward/group_norm_backward_groups.h"

namespace pestle::ops::group_norm_backward {
namespace {

// A number and what its error is measured against.
struct Term {
  double v = 0;
  double m = 0;
  void add(const Term& t) {
    v += t.v;
    m += t.m;
  }
};

struct Reference {
  const Groups& g;
  Term mean = {}, rstd = {};
  double condition = 1;

  const bool dense = is_contiguous_from(g.x, 2) && is_contiguous_from(g.d_out, 2);

  double load(const TensorView& t, int64_t group, int64_t c, int64_t i) const {
    return load_f64(g.channel(t, group, c) + Groups::plane_offset(t, i, dense), t.dtype);
  }
  template <class Body>
  void for_elements(Body&& body) const {
    for (int64_t c = 0; c < g.group_channels(); ++c) {
      for (int64_t i = 0; i < g.plane; ++i) body(c, i);
    }
  }
  void find_statistics(int64_t group) {
    const auto count = static_cast<double>(g.size());
    mean = {};
    for_elements([&](int64_t c, int64_t i) {
      const double v = load(g.x, group, c, i);
      mean.add({v / count, std::fabs(v) / count});
    });
    double squares = 0, magnitudes = 0;
    for_elements([&](int64_t c, int64_t i) {
      const double v = load(g.x, group, c, i);
      squares += (v - mean.v) * (v - mean.v);
      magnitudes += (std::fabs(v) + mean.m) * (std::fabs(v) + mean.m);
    });
    rstd.v = 1 / std::sqrt(squares / count + double{g.eps});
    condition = 1 + std::sqrt(magnitudes / count) * rstd.v;
    // Squares that f32 can't hold leave nothing to compare with.
    if (!(magnitudes <= FLT_MAX / 2)) condition = INFINITY;
    rstd.m = rstd.v * condition;
  }
  Term y_at(int64_t group, int64_t c, int64_t i) const {
    const double v = load(g.x, group, c, i);
    const double m = std::isinf(condition) ? INFINITY : (std::fabs(v) + mean.m) * rstd.m;
    return {(v - mean.v) * rstd.v, m};
  }
  // The gradient behind weight and bias.
  Term gradient_at(int64_t group, int64_t c, int64_t i, const Term& y) const {
    const double d = load(g.d_out, group, c, i);
    if (!g.silu) return {d, std::fabs(d)};
    const double w = g.weight_of(group, c), b = g.bias_of(group, c);
    const double z = y.v * w + b;
    const double sigmoid = 1 / (1 + std::exp(-z));
    // The slope is at most 1.1, its own slope at most 0.5.
    const double m = 1.1 + 0.5 * (y.m * std::fabs(w) + std::fabs(b));
    return {d * sigmoid * (1 + z * (1 - sigmoid)), std::fabs(d) * m};
  }
};

Status run(const Call& call) {
  const Groups g(call);
  Reference reference{g};
  const auto count = static_cast<double>(g.size());
  std::vector<Term> d_weight(static_cast<size_t>(g.channels)), d_bias(d_weight.size());
  const auto value = [&](const Term& t) { return call.sum_magnitudes ? t.m : t.v; };
  for (int64_t group = 0; group < g.count(); ++group) {
    reference.find_statistics(group);
    Term m1, m2;
    reference.for_elements([&](int64_t c, int64_t i) {
      const Term y = reference.y_at(group, c, i);
      const Term d = reference.gradient_at(group, c, i, y);
      const double w = g.weight_of(group, c);
      const auto channel = static_cast<size_t>(group % g.groups * g.group_channels() + c);
      d_bias[channel].add(d);
      d_weight[channel].add({d.v * y.v, d.m * y.m});
      m1.add({d.v * w / count, d.m * std::fabs(w) / count});
      m2.add({d.v * w * y.v / count, d.m * std::fabs(w) * y.m / count});
    });
    reference.for_elements([&](int64_t c, int64_t i) {
      const Term y = reference.y_at(group, c, i);
      const Term d = reference.gradient_at(group, c, i, y);
      const double w = g.weight_of(group, c);
      const double inner = d.m * std::fabs(w) + m1.m + y.m * m2.m;
      Term d_x{reference.rstd.v * (d.v * w - m1.v - y.v * m2.v), reference.rstd.m * inner};
      // Sums on the way that f32 can't hold leave nothing to compare with.
      if (!(std::max(inner, std::max(m1.m, m2.m) * count) <= FLT_MAX / 2)) d_x.m = INFINITY;
      store_f64(g.channel(g.d_x, group, c) + Groups::plane_offset(g.d_x, i), g.d_x.dtype,
                value(d_x));
    });
  }
  for (int64_t c = 0; c < g.channels; ++c) {
    const auto at_c = static_cast<size_t>(c);
    if (g.d_weight.data) store_f64(at(g.d_weight, c), g.d_weight.dtype, value(d_weight[at_c]));
    if (g.d_bias.data) store_f64(at(g.d_bias, c), g.d_bias.dtype, value(d_bias[at_c]));
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::group_norm_backward
