// group_norm_backward, reference: float64, any strides; groups of a sample over the threads.
#include <cfloat>
#include <cmath>
#include <vector>

#include "backends/cpu/parallel.h"
#include "ops/norm/group_norm_backward/group_norm_backward_groups.h"

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
  static Term of(double value) { return {value, std::fabs(value)}; }
  Term times(const Term& t) const { return {v * t.v, m * t.m}; }
  Term plus(const Term& t) const { return {v + t.v, m + t.m}; }
};

// What a group's elements need of their channel.
struct Channel {
  Term w, b, by, shift, gate;
  Term factor, addend;  // out = y * factor + addend

  Channel(const Groups& g, int64_t group, int64_t c)
      : w(Term::of(double{g.weight_of(group, c)})),
        b(Term::of(double{g.bias_of(group, c)})),
        shift(Term::of(double{g.shift_of(group, c)})),
        gate(Term::of(double{g.gate_of(group, c)})) {
    const double scale = g.scale_of(group, c);
    by = {1 + scale, 1 + std::fabs(scale)};
    factor = w.times(by);
    addend = b.times(by).plus(shift);
  }
};

struct Reference {
  const Groups& g;
  Term mean = {}, rstd = {};
  double condition = 1;

  const bool dense = is_contiguous_from(g.x, 2) && is_contiguous_from(g.d_out, 2) &&
                     (g.residual.data == nullptr || is_contiguous_from(g.residual, 2)) &&
                     (g.d_residual_out.data == nullptr || is_contiguous_from(g.d_residual_out, 2));

  double load(const TensorView& t, int64_t group, int64_t c, int64_t i) const {
    return load_f64(g.channel(t, group, c) + Groups::plane_offset(t, i, dense), t.dtype);
  }
  Term sum_at(int64_t group, int64_t c, int64_t i, const Channel& of) const {
    Term s = Term::of(of.gate.v * load(g.x, group, c, i));
    if (g.residual.data) s.add(Term::of(load(g.residual, group, c, i)));
    return s;
  }
  // body(channel, place in its plane, what is known of the channel)
  template <class Body>
  void for_elements(int64_t group, Body&& body) const {
    for (int64_t c = 0; c < g.group_channels(); ++c) {
      const Channel of(g, group, c);
      for (int64_t i = 0; i < g.plane; ++i) body(c, i, of);
    }
  }
  void find_statistics(int64_t group) {
    const auto count = static_cast<double>(g.size());
    mean = {};
    for_elements(group, [&](int64_t c, int64_t i, const Channel& of) {
      const Term s = sum_at(group, c, i, of);
      mean.add({s.v / count, s.m / count});
    });
    double squares = 0, magnitudes = 0;
    for_elements(group, [&](int64_t c, int64_t i, const Channel& of) {
      const Term s = sum_at(group, c, i, of);
      squares += (s.v - mean.v) * (s.v - mean.v);
      magnitudes += (s.m + mean.m) * (s.m + mean.m);
    });
    rstd.v = 1 / std::sqrt(squares / count + double{g.eps});
    condition = 1 + std::sqrt(magnitudes / count) * rstd.v;
    // Squares that f32 can't hold leave nothing to compare with.
    if (!(magnitudes <= FLT_MAX / 2)) condition = INFINITY;
    rstd.m = rstd.v * condition;
  }
  Term y_at(int64_t group, int64_t c, int64_t i, const Channel& of) const {
    const Term s = sum_at(group, c, i, of);
    const double m = std::isinf(condition) ? INFINITY : (s.m + mean.m) * rstd.m;
    return {(s.v - mean.v) * rstd.v, m};
  }
  // The gradient behind weight and modulation.
  Term gradient_at(int64_t group, int64_t c, int64_t i, const Term& y, const Channel& of) const {
    const double d = load(g.d_out, group, c, i);
    if (!g.silu) return Term::of(d);
    const double z = y.v * of.factor.v + of.addend.v;
    const double sigmoid = 1 / (1 + std::exp(-z));
    // The slope is at most 1.1, its own slope at most 0.5.
    const double m = 1.1 + 0.5 * (y.m * of.factor.m + of.addend.m);
    return {d * sigmoid * (1 + z * (1 - sigmoid)), std::fabs(d) * m};
  }
};

// Sums over samples of a channel, and over those that share a modulation.
struct Sums {
  Term weight, bias;
  std::vector<Term> gate, scale, shift;
};

struct Gradients {
  const Call& call;
  const Groups& g;
  std::vector<Sums> sums = std::vector<Sums>(static_cast<size_t>(g.channels));

  void store(char* to, DType dtype, const Term& t) const {
    store_f64(to, dtype, call.sum_magnitudes ? t.m : t.v);
  }
  void put(const TensorView& t, int64_t group, int64_t c, int64_t i, const Term& term) const {
    if (t.data) store(g.channel(t, group, c) + Groups::plane_offset(t, i), t.dtype, term);
  }
  Sums& sums_of(int64_t group, int64_t c) {
    return sums[static_cast<size_t>(group % g.groups * g.group_channels() + c)];
  }
  void run_group(int64_t group) {
    const auto count = static_cast<double>(g.size());
    Reference reference{g};
    reference.find_statistics(group);
    const auto modulation =
        static_cast<size_t>(group / g.groups / std::max<int64_t>(1, g.samples_each()));
    Term m1, m2;
    reference.for_elements(group, [&](int64_t c, int64_t i, const Channel& of) {
      const Term y = reference.y_at(group, c, i, of);
      const Term d = reference.gradient_at(group, c, i, y, of);
      Sums& to = sums_of(group, c);
      to.bias.add(d.times(of.by));
      to.weight.add(d.times(y).times(of.by));
      to.shift[modulation].add(d);
      to.scale[modulation].add(d.times(y.times(of.w).plus(of.b)));
      m1.add({d.v * of.factor.v / count, d.m * of.factor.m / count});
      m2.add({d.v * of.factor.v * y.v / count, d.m * of.factor.m * y.m / count});
    });
    reference.for_elements(group, [&](int64_t c, int64_t i, const Channel& of) {
      const Term y = reference.y_at(group, c, i, of);
      const Term d = reference.gradient_at(group, c, i, y, of);
      const double inner = d.m * of.factor.m + m1.m + y.m * m2.m;
      Term d_s{reference.rstd.v * (d.v * of.factor.v - m1.v - y.v * m2.v),
               reference.rstd.m * inner};
      // Sums on the way that f32 can't hold leave nothing to compare with.
      if (!(std::max(inner, std::max(m1.m, m2.m) * count) <= FLT_MAX / 2)) d_s.m = INFINITY;
      if (g.d_residual_out.data) {
        d_s.add(Term::of(reference.load(g.d_residual_out, group, c, i)));
      }
      put(g.d_residual, group, c, i, d_s);
      put(g.d_x, group, c, i, d_s.times(of.gate));
      sums_of(group, c).gate[modulation].add(d_s.times(Term::of(reference.load(g.x, group, c, i))));
    });
  }
  void run() {
    const auto rows = static_cast<size_t>(g.modulations());
    for (Sums& one : sums) one.gate = one.scale = one.shift = std::vector<Term>(rows);
    // A channel's sums belong to one thread.
    cpu::parallel_for(g.groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t of_sample = begin; of_sample < end; ++of_sample) {
        for (int64_t i = 0; i < g.samples(); ++i) run_group(i * g.groups + of_sample);
      }
    });
    for (int64_t c = 0; c < g.channels; ++c) {
      const Sums& of = sums[static_cast<size_t>(c)];
      if (g.d_weight.data) store(at(g.d_weight, c), g.d_weight.dtype, of.weight);
      if (g.d_bias.data) store(at(g.d_bias, c), g.d_bias.dtype, of.bias);
      const auto put_rows = [&](const TensorView& t, const std::vector<Term>& terms) {
        if (!t.data) return;
        for (int64_t row = 0; row < g.modulations(); ++row) {
          store(at(t, row, c), t.dtype, terms[static_cast<size_t>(row)]);
        }
      };
      put_rows(g.d_gate, of.gate);
      put_rows(g.d_scale, of.scale);
      put_rows(g.d_shift, of.shift);
    }
  }
};

Status run(const Call& call) {
  const Groups g(call);
  Gradients{call, g}.run();
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::group_norm_backward
