#include "ops/norm/backward/norm_backward.h"

#include <cfloat>
#include <cmath>
#include <memory>
#include <vector>

#include "backends/cpu/simd/row_math.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops {

RowRuns RowRuns::over(int64_t rows, int64_t groups, int64_t most, int64_t least_rows) {
  RowRuns r;
  r.groups = std::max<int64_t>(1, groups);
  r.group_rows = rows / r.groups;
  if (rows == 0) return r;
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (r.groups >= most || r.group_rows <= least_rows) {
    const int64_t groups_of_run =
        std::max(ceil_div(r.groups, most), std::max<int64_t>(1, least_rows / r.group_rows));
    r.run_rows = groups_of_run * r.group_rows;
    r.runs = ceil_div(r.groups, groups_of_run);
    return r;
  }
  const int64_t wanted = std::min(most / r.groups, ceil_div(r.group_rows, least_rows));
  r.run_rows = ceil_div(r.group_rows, wanted);
  r.runs_of_group = ceil_div(r.group_rows, r.run_rows);
  r.runs = r.runs_of_group * r.groups;
  return r;
}

namespace {

// ---- reference ----

// A number and what its error is measured against; sums and products carry both along.
struct Term {
  double v = 0;
  double m = 0;
  Term() = default;
  Term(double value) : v(value), m(std::fabs(value)) {}
  Term(double value, double magnitude) : v(value), m(magnitude) {}
  friend Term operator+(Term a, Term b) { return {a.v + b.v, a.m + b.m}; }
  friend Term operator-(Term a, Term b) { return {a.v - b.v, a.m + b.m}; }
  friend Term operator*(Term a, Term b) { return {a.v * b.v, a.m * b.m}; }
};
using Terms = std::vector<Term>;

Term mean_of(const Terms& terms) {
  Term sum;
  for (const Term& t : terms) sum = sum + t;
  const double count = static_cast<double>(terms.size());
  return {sum.v / count, sum.m / count};
}

struct ReferenceGradients {
  const Call& call;
  const NormBackward& b;
  const NormRows& n = b.forward;
  const size_t k = static_cast<size_t>(n.columns());
  Terms s = Terms(k), y = Terms(k), h = Terms(k), g = Terms(k), g1 = Terms(k), g2 = Terms(k);
  Terms products = Terms(k), d_weight = Terms(k), d_bias = Terms(k);
  Terms d_gate = Terms(k), d_scale = Terms(k), d_shift = Terms(k);

  using Row = ReferenceTensorRow;

  void store(const Row& to, size_t j, const Term& term) const {
    to.put(static_cast<int64_t>(j), call.sum_magnitudes ? term.m : term.v);
  }
  static Term input(const Row& row, size_t j) { return row.load(static_cast<int64_t>(j)); }
  // Of gate and scale: the group's row.
  Row group_row(const TensorView& t, int64_t row) const {
    return t.data ? Row(t, n.group_of(t, row)) : Row();
  }

  // s, y and what is known of rstd.
  Term normalise(int64_t row) {
    const Row x(n.x, row), gate = group_row(n.gate, row), residual(n.residual, row);
    for (size_t j = 0; j < k; ++j) {
      s[j] = input(x, j);
      if (gate.data) s[j] = s[j] * input(gate, j);
      if (residual.data) s[j] = s[j] + input(residual, j);
    }
    const Term mean = n.subtract_mean ? mean_of(s) : Term();
    double squares = 0, magnitudes = 0;
    for (size_t j = 0; j < k; ++j) {
      y[j] = s[j] - mean;
      squares += y[j].v * y[j].v;
      magnitudes += y[j].m * y[j].m;
    }
    const double count = static_cast<double>(k);
    const double rstd = 1 / std::sqrt(squares / count + double{n.eps});
    // How much errors of s weigh in rstd; squares that f32 can't hold leave nothing to compare.
    double condition = 1 + std::sqrt(magnitudes / count) * rstd;
    if (!(magnitudes <= FLT_MAX / 2)) condition = INFINITY;
    for (Term& t : y) t = {t.v * rstd, std::isinf(condition) ? INFINITY : t.m * rstd * condition};
    return {rstd, rstd * condition};
  }

  void row(int64_t row) {
    const Term rstd = normalise(row);
    const Row x(n.x, row), d_out(b.d_out, row), weight(n.weight, 0), bias(n.bias, 0);
    const Row gate = group_row(n.gate, row), scale = group_row(n.scale, row);
    const Row d_residual_out(b.d_residual_out, row);
    const Row d_x(b.d_x, row), d_residual(b.d_residual, row);
    for (size_t j = 0; j < k; ++j) {
      h[j] = y[j];
      g[j] = g1[j] = input(d_out, j);
      if (scale.data) g1[j] = g1[j] * (Term(1) + input(scale, j));
      g2[j] = g1[j];
      if (weight.data) {
        h[j] = h[j] * input(weight, j);
        g2[j] = g2[j] * input(weight, j);
      }
      if (bias.data) h[j] = h[j] + input(bias, j);
      products[j] = g2[j] * y[j];
    }
    const Term m1 = n.subtract_mean ? mean_of(g2) : Term();
    const Term m2 = mean_of(products);
    const double count = static_cast<double>(k);
    // Sums of products with what rstd has not scaled yet, distances from any element of the row.
    double on_the_way = 0, largest = 0;
    for (size_t j = 0; j < k; ++j) largest = std::max(largest, s[j].m);
    for (size_t j = 0; j < k; ++j) on_the_way += g2[j].m * (s[j].m + largest);
    const double sums = std::max(std::max(mean_of(g2).m, m2.m) * count, on_the_way);
    for (size_t j = 0; j < k; ++j) {
      Term d = rstd * (g2[j] - m1 - y[j] * m2);
      // Sums on the way that f32 can't hold leave nothing to compare with.
      if (!(std::max(sums, (y[j] * m2).m) <= FLT_MAX / 2)) d.m = INFINITY;
      if (d_residual_out.data) d = d + input(d_residual_out, j);
      store(d_residual, j, d);
      d_weight[j] = d_weight[j] + g1[j] * y[j];
      d_bias[j] = d_bias[j] + g1[j];
      d_gate[j] = d_gate[j] + d * input(x, j);
      d_scale[j] = d_scale[j] + g[j] * h[j];
      d_shift[j] = d_shift[j] + g[j];
      if (gate.data) d = d * input(gate, j);
      store(d_x, j, d);
    }
  }
  // Sums of other rows of the group.
  void add(const ReferenceGradients& more) {
    for (size_t j = 0; j < k; ++j) {
      d_weight[j] = d_weight[j] + more.d_weight[j];
      d_bias[j] = d_bias[j] + more.d_bias[j];
      d_gate[j] = d_gate[j] + more.d_gate[j];
      d_scale[j] = d_scale[j] + more.d_scale[j];
      d_shift[j] = d_shift[j] + more.d_shift[j];
    }
  }
  void end_group(int64_t group) {
    for (size_t j = 0; j < k; ++j) {
      store(Row(b.d_gate, group), j, d_gate[j]);
      store(Row(b.d_scale, group), j, d_scale[j]);
      store(Row(b.d_shift, group), j, d_shift[j]);
      d_gate[j] = d_scale[j] = d_shift[j] = Term();
    }
  }
  void end() {
    for (size_t j = 0; j < k; ++j) {
      store(Row(b.d_weight, 0), j, d_weight[j]);
      store(Row(b.d_bias, 0), j, d_bias[j]);
    }
  }
};

}  // namespace

Status norm_backward_reference(const Call& call, const NormBackward& b) {
  ReferenceGradients gradients{call, b};
  const int64_t groups = b.groups();
  const int64_t rows = groups == 0 ? 0 : b.forward.rows() / groups;
  // Runs of rows over the threads, fewer where rows are long and sums of them large.
  const int64_t most = (int64_t{1} << 20) / std::max<int64_t>(1, b.forward.columns());
  const int64_t runs = std::clamp<int64_t>(std::min<int64_t>(rows / 8, most), 1, 32);
  for (int64_t group = 0; group < groups; ++group) {
    std::vector<std::unique_ptr<ReferenceGradients>> parts(static_cast<size_t>(runs));
    cpu::parallel_for(runs, 1, [&](int64_t begin, int64_t end) {
      for (int64_t run = begin; run < end; ++run) {
        auto part = std::make_unique<ReferenceGradients>(call, b);
        const int64_t last = rows * (run + 1) / runs;
        for (int64_t i = rows * run / runs; i < last; ++i) part->row(group * rows + i);
        parts[static_cast<size_t>(run)] = std::move(part);
      }
    });
    for (const auto& part : parts) gradients.add(*part);
    gradients.end_group(group);
  }
  gradients.end();
  return {};
}

// ---- the CPU's fast path ----

namespace {

constexpr int64_t kMostRuns = 16;  // as in kNormBackwardCpuWorkspace
constexpr int64_t kPiece = 2048;
enum Array { kWeightSum, kBiasSum, kGateSum, kScaleSum, kArrays };  // d_shift shares kBiasSum

// Rows in pieces of kPiece elements; what a piece needs is made again for each of three passes.
struct GradientWorker {
  const NormBackward& b;
  float* sums;  // kArrays rows of K floats: this run's
  const NormRows& n = b.forward;
  const int64_t k = n.columns();
  int64_t row = 0;
  float mean = 0, rstd = 0, m1 = 0, m2 = 0;
  alignas(64) float s[kPiece];
  alignas(64) float g1[kPiece];
  alignas(64) float g2[kPiece];
  alignas(64) float other[kPiece];

  GradientWorker(const NormBackward& backward, float* to) : b(backward), sums(to) {}

  static char* element(const TensorView& t, int64_t r, int64_t j) {
    return row_address(t, r) + j * dtype_bytes(t.dtype);
  }
  const float* load(const TensorView& t, int64_t r, int64_t j, int64_t count) {
    cpu::row_load(element(t, r, j), t.dtype, other, count);
    return other;
  }
  template <class Body>
  void for_pieces(Body&& body) {
    for (int64_t j = 0; j < k; j += kPiece) body(j, std::min(kPiece, k - j));
  }
  void load_sum(int64_t j, int64_t count) {
    cpu::row_load(element(n.x, row, j), n.x.dtype, s, count);
    if (n.gate.data) {
      cpu::row_multiply(s, load(n.gate, n.group_of(n.gate, row), j, count), s, count);
    }
    if (n.residual.data) cpu::row_add(s, load(n.residual, row, j, count), s, count);
  }
  // s becomes y; g1 and g2 are made.
  void load_gradients(int64_t j, int64_t count) {
    load_sum(j, count);
    cpu::row_normalize(s, mean, rstd, s, count);
    cpu::row_load(element(b.d_out, row, j), b.d_out.dtype, g1, count);
    if (n.scale.data) {
      load(n.scale, n.group_of(n.scale, row), j, count);
      cpu::row_add_constant(other, 1.0f, other, count);
      cpu::row_multiply(g1, other, g1, count);
    }
    cpu::row_scale(g1, 1.0f, g2, count);
    if (n.weight.data) cpu::row_multiply(g2, load(n.weight, 0, j, count), g2, count);
  }
  void find_statistics() {
    const auto count = static_cast<double>(k);
    mean = 0;
    if (n.subtract_mean) {
      double sum = 0;
      for_pieces([&](int64_t j, int64_t c) {
        load_sum(j, c);
        sum += cpu::row_sum(s, c);
      });
      mean = static_cast<float>(sum / count);
    }
    double squares = 0, gradients = 0, products = 0;
    for_pieces([&](int64_t j, int64_t c) {
      load_sum(j, c);
      squares += cpu::row_sum_squared_differences(s, mean, c);
    });
    rstd = 1.0f / std::sqrt(static_cast<float>(squares / count) + n.eps);
    for_pieces([&](int64_t j, int64_t c) {
      load_gradients(j, c);
      gradients += cpu::row_sum(g2, c);
      products += cpu::row_dot(g2, s, c);
    });
    m1 = n.subtract_mean ? static_cast<float>(gradients / count) : 0.0f;
    m2 = static_cast<float>(products / count);
  }
  void add_product(Array array, int64_t j, const float* a, const float* c, int64_t count) {
    float* to = sums + array * k + j;
    cpu::row_multiply_add(a, c, to, to, count);
  }
  void run(int64_t r) {
    row = r;
    find_statistics();
    for_pieces([&](int64_t j, int64_t c) {
      load_gradients(j, c);
      add_product(kWeightSum, j, g1, s, c);
      if (b.d_scale.data) {
        // d_out * h, and d_out itself.
        cpu::row_scale(s, 1.0f, g1, c);
        if (n.weight.data) cpu::row_multiply(g1, load(n.weight, 0, j, c), g1, c);
        load(b.d_out, row, j, c);
        add_product(kScaleSum, j, g1, other, c);
        cpu::row_add(sums + kBiasSum * k + j, other, sums + kBiasSum * k + j, c);
      } else {
        cpu::row_add(sums + kBiasSum * k + j, g1, sums + kBiasSum * k + j, c);
      }
      // g2 becomes d_s.
      cpu::row_add_scaled(g2, s, -m2, g2, c);
      cpu::row_normalize(g2, m1, rstd, g2, c);
      if (b.d_residual_out.data) cpu::row_add(g2, load(b.d_residual_out, row, j, c), g2, c);
      if (b.d_residual.data) cpu::row_store(g2, element(b.d_residual, row, j), n.x.dtype, c);
      if (n.gate.data) {
        add_product(kGateSum, j, g2, load(n.x, row, j, c), c);
        cpu::row_multiply(g2, load(n.gate, n.group_of(n.gate, row), j, c), g2, c);
      }
      cpu::row_store(g2, element(b.d_x, row, j), n.x.dtype, c);
    });
  }
};

void store_sums(const float* sums, const TensorView& t, int64_t row) {
  if (t.data) cpu::row_store(sums, GradientWorker::element(t, row, 0), t.dtype, row_length(t));
}

void store_group(const NormBackward& b, const float* sums, int64_t group) {
  const int64_t k = b.forward.columns();
  store_sums(sums + kGateSum * k, b.d_gate, group);
  store_sums(sums + kScaleSum * k, b.d_scale, group);
  store_sums(sums + kBiasSum * k, b.d_shift, group);
}

}  // namespace

Status norm_backward_cpu(const Call& call, const NormBackward& b) {
  const int64_t k = b.forward.columns();
  const RowRuns runs = RowRuns::over(b.forward.rows(), b.groups(), kMostRuns, 1);
  auto* all = static_cast<float*>(call.workspace);
  std::fill(all, all + runs.runs * kArrays * k, 0.0f);
  const auto sums_of = [&](int64_t run) { return all + run * kArrays * k; };
  cpu::parallel_for(runs.runs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t run = begin; run < end; ++run) {
      GradientWorker worker{b, sums_of(run)};
      for (int64_t row = runs.begin(run); row < runs.end(run); ++row) {
        worker.run(row);
        if (runs.splits_groups() || (row + 1) % runs.group_rows != 0) continue;
        if (b.groups() == 1 && !b.d_gate.data && !b.d_scale.data) continue;
        // The group ends here: its sums are whole.
        store_group(b, sums_of(run), row / runs.group_rows);
        float* sums = sums_of(run);
        std::fill(sums + kGateSum * k, sums + kArrays * k, 0.0f);
        if (b.d_shift.data) std::fill(sums + kBiasSum * k, sums + kGateSum * k, 0.0f);
      }
    }
  });
  // Runs that split groups are added up in order.
  if (runs.splits_groups()) {
    for (int64_t group = 0; group < runs.groups; ++group) {
      float* sums = sums_of(group * runs.runs_of_group);
      for (int64_t i = 1; i < runs.runs_of_group; ++i) {
        const float* more = sums_of(group * runs.runs_of_group + i);
        cpu::row_add(sums + kBiasSum * k, more + kBiasSum * k, sums + kBiasSum * k,
                     (kArrays - 1) * k);
        cpu::row_add(sums, more, sums, k);
      }
      store_group(b, sums, group);
    }
  }
  const int64_t step = runs.splits_groups() ? runs.runs_of_group : 1;
  if (runs.runs == 0) std::fill(all, all + kArrays * k, 0.0f);
  for (int64_t run = step; run < runs.runs; run += step) {
    cpu::row_add(all, sums_of(run), all, 2 * k);
  }
  store_sums(all + kWeightSum * k, b.d_weight, 0);
  store_sums(all + kBiasSum * k, b.d_bias, 0);
  if (b.forward.rows() == 0) {
    for (int64_t group = 0; group < b.groups(); ++group) store_group(b, all, group);
  }
  return {};
}

std::string refuse_norm_backward_cpu(const NormBackward& b) {
  const NormRows& n = b.forward;
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", n.x},
             {"residual", n.residual},
             {"gate", n.gate},
             {"weight", n.weight},
             {"scale", n.scale},
             {"d_out", b.d_out},
             {"d_residual_out", b.d_residual_out},
             {"d_x", b.d_x},
             {"d_residual", b.d_residual},
             {"d_weight", b.d_weight},
             {"d_bias", b.d_bias},
             {"d_gate", b.d_gate},
             {"d_scale", b.d_scale},
             {"d_shift", b.d_shift}};
  for (const auto& [name, tensor] : all) {
    if (std::string why = refuse_strided_row(name, tensor); !why.empty()) return why;
  }
  return {};
}

}  // namespace pestle::ops
