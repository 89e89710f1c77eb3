// group_norm, reference: float64, any strides; groups over the threads. Codes are the named
// quantiser's, of the result.
#include <cfloat>
#include <cmath>
#include <vector>

#include "backends/cpu/parallel.h"
#include "ops/norm/group_norm/group_norm_groups.h"
#include "ops/quant/output/quantize_after.h"

namespace pestle::ops::group_norm {
namespace {

// A number and what its error is measured against.
struct Term {
  double v = 0, magnitude = 0;
};

// Of one group.
struct Reference {
  const Groups& g;
  int64_t group;
  double mean = 0, magnitude = 0, rstd = 0;
  double condition = 0;  // how much errors of s - mean weigh in rstd

  Reference(const Groups& groups, int64_t number) : g(groups), group(number) {
    const auto count = static_cast<double>(g.size());
    for_elements([&](const Term& s, int64_t, int64_t) {
      mean += s.v / count;
      magnitude += s.magnitude / count;
    });
    double squares = 0, magnitudes = 0;
    for_elements([&](const Term& s, int64_t, int64_t) {
      squares += (s.v - mean) * (s.v - mean);
      magnitudes += (s.magnitude + magnitude) * (s.magnitude + magnitude);
    });
    rstd = 1 / std::sqrt(squares / count + double{g.eps});
    condition = std::sqrt(magnitudes / count) * rstd;
    if (!(magnitudes <= FLT_MAX / 2)) condition = INFINITY;
  }
  // body(s, channel, place in its plane)
  template <class Body>
  void for_elements(Body&& body) const {
    const bool dense = is_contiguous_from(g.x, 2);
    const bool has_residual = g.residual.data != nullptr;
    const bool dense_residual = has_residual && is_contiguous_from(g.residual, 2);
    const auto load = [](const TensorView& t, const char* plane, int64_t i, bool is_dense) {
      return load_f64(plane + Groups::plane_offset(t, i, is_dense), t.dtype);
    };
    for (int64_t c = 0; c < g.group_channels(); ++c) {
      const double gate = g.gate_of(group, c);
      const char* x = g.channel(g.x, group, c);
      const char* residual = has_residual ? g.channel(g.residual, group, c) : nullptr;
      for (int64_t i = 0; i < g.plane; ++i) {
        const double v = gate * load(g.x, x, i, dense);
        const double r = has_residual ? load(g.residual, residual, i, dense_residual) : 0;
        body({v + r, std::fabs(v) + std::fabs(r)}, c, i);
      }
    }
  }
  // Of a channel.
  struct Parameters {
    int64_t channel = -1;
    double w = 1, b = 0, by = 0, shift = 0;
  };
  void find_parameters(int64_t c, Parameters& of) const {
    if (c == of.channel) return;
    of = {c, g.weight_of(group, c), g.bias_of(group, c), g.scale_of(group, c),
          g.shift_of(group, c)};
  }
  Term output(const Term& s, const Parameters& of) const {
    const double normal = (s.v - mean) * rstd;
    Term y{normal, (s.magnitude + magnitude) * rstd};
    if (std::isinf(condition))
      y.magnitude = INFINITY;
    else
      y.magnitude += std::fabs(normal) * condition;
    y = {y.v * of.w + of.b, y.magnitude * std::fabs(of.w) + std::fabs(of.b)};
    y = {y.v * (1 + of.by) + of.shift, y.magnitude * (1 + std::fabs(of.by)) + std::fabs(of.shift)};
    if (!g.silu) return y;
    // Its slope is at most 1.1.
    const double silu = y.v / (1 + std::exp(-y.v));
    return {silu, 1.1 * y.magnitude + std::fabs(silu)};
  }
};

Status run(const Call& call) {
  const Groups g(call);
  const bool codes = wants_quantized_output(call);
  // What codes are of, dense.
  std::vector<float> memory(codes ? static_cast<size_t>(numel(g.x)) + 1 : 0);
  TensorView y = make_view(memory.data(), g.x.dtype, g.x.rank, g.x.shape);
  const auto run_group = [&](int64_t group) {
    const Reference reference(g, group);
    const auto put = [&](const TensorView& t, int64_t c, int64_t i, const Term& term) {
      if (t.data == nullptr) return;
      store_f64(g.channel(t, group, c) + Groups::plane_offset(t, i), t.dtype,
                call.sum_magnitudes ? term.magnitude : term.v);
    };
    Reference::Parameters parameters;
    reference.for_elements([&](const Term& s, int64_t c, int64_t i) {
      reference.find_parameters(c, parameters);
      const Term result = reference.output(s, parameters);
      put(g.residual_out, c, i, s);
      put(g.out, c, i, result);
      if (!codes) return;
      const int64_t element = (group * g.group_channels() + c) * g.plane + i;
      store_f64(y.as<char>() + element * dtype_bytes(y.dtype), y.dtype, result.v);
    });
  };
  cpu::parallel_for(g.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) run_group(group);
  });
  if (!codes) return {};
  std::vector<float> workspace(static_cast<size_t>(4 * row_count(y) + 2 * numel(y) + 256));
  return codes_by_rule(call, y, workspace.data(), static_cast<int64_t>(workspace.size() * 4));
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::group_norm
