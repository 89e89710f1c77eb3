// group_norm, reference: float64, any strides.
#include <cfloat>
#include <cmath>

#include "ops/group_norm/group_norm_groups.h"

namespace pestle::ops::group_norm {
namespace {

template <class Body>
void for_elements(const Groups& g, int64_t group, Body&& body) {
  const bool dense = is_contiguous_from(g.x, 2);
  for (int64_t c = 0; c < g.group_channels(); ++c) {
    for (int64_t i = 0; i < g.plane; ++i) {
      body(load_f64(g.x_channel(group, c) + Groups::plane_offset(g.x, i, dense), g.x.dtype), c, i);
    }
  }
}

struct Statistics {
  double mean = 0, magnitude = 0, rstd = 0;
  double condition = 0;  // how much errors of x - mean weigh in rstd
};

Statistics statistics_of(const Groups& g, int64_t group) {
  Statistics s;
  const auto count = static_cast<double>(g.size());
  for_elements(g, group, [&](double v, int64_t, int64_t) {
    s.mean += v / count;
    s.magnitude += std::fabs(v) / count;
  });
  double squares = 0, magnitudes = 0;
  for_elements(g, group, [&](double v, int64_t, int64_t) {
    squares += (v - s.mean) * (v - s.mean);
    magnitudes += (std::fabs(v) + s.magnitude) * (std::fabs(v) + s.magnitude);
  });
  s.rstd = 1 / std::sqrt(squares / count + double{g.eps});
  s.condition = std::sqrt(magnitudes / count) * s.rstd;
  if (!(magnitudes <= FLT_MAX / 2)) s.condition = INFINITY;
  return s;
}

Status run(const Call& call) {
  const Groups g(call);
  const bool dense = is_contiguous_from(g.out, 2);
  for (int64_t group = 0; group < g.count(); ++group) {
    const Statistics s = statistics_of(g, group);
    for_elements(g, group, [&](double v, int64_t c, int64_t i) {
      const double w = g.weight_of(group, c), b = g.bias_of(group, c);
      const double normal = (v - s.mean) * s.rstd;
      double y = normal * w + b;
      double magnitude = (std::fabs(v) + s.magnitude) * s.rstd;
      if (std::isinf(s.condition))
        magnitude = INFINITY;
      else
        magnitude += std::fabs(normal) * s.condition;
      magnitude = magnitude * std::fabs(w) + std::fabs(b);
      if (g.silu) {
        // Its slope is at most 1.1.
        y = y / (1 + std::exp(-y));
        magnitude = 1.1 * magnitude + std::fabs(y);
      }
      store_f64(g.out_channel(group, c) + Groups::plane_offset(g.out, i, dense), g.out.dtype,
                call.sum_magnitudes ? magnitude : y);
    });
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::group_norm
