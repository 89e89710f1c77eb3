// group_norm_backward on the CPU: groups over threads, pieces of planes by row_math; sums of each
// channel of a sample in the workspace, added up over samples in order.
#include <algorithm>
#include <cmath>
#include <string>

#include "backends/cpu/parallel.h"
#include "backends/cpu/simd/row_math.h"
#include "ops/norm/group_norm_backward/group_norm_backward_groups.h"

namespace pestle::ops::group_norm_backward {
namespace {

constexpr int64_t kPiece = 2048;

struct Worker {
  const Groups& g;
  int64_t group = 0;
  float mean = 0, rstd = 0;
  alignas(64) float y[kPiece] = {};
  alignas(64) float d[kPiece] = {};
  alignas(64) float s[kPiece] = {};
  alignas(64) float t[kPiece] = {};

  explicit Worker(const Groups& groups) : g(groups) {}

  template <class Body>
  void for_pieces(Body&& body) const {
    for (int64_t c = 0; c < g.group_channels(); ++c) {
      for (int64_t i = 0; i < g.plane; i += kPiece) body(c, i, std::min(kPiece, g.plane - i));
    }
  }
  char* element(const TensorView& tensor, int64_t c, int64_t i) const {
    return g.channel(tensor, group, c) + i * dtype_bytes(tensor.dtype);
  }
  // s = residual + gate * x
  void load_sum(int64_t c, int64_t i, int64_t n) {
    cpu::row_load(element(g.x, c, i), g.x.dtype, y, n);
    if (g.gate.data) cpu::row_scale(y, g.gate_of(group, c), y, n);
    if (!g.residual.data) return;
    cpu::row_load(element(g.residual, c, i), g.x.dtype, t, n);
    cpu::row_add(y, t, y, n);
  }
  void find_statistics() {
    const auto count = static_cast<double>(g.size());
    double sum = 0, squares = 0;
    for_pieces([&](int64_t c, int64_t i, int64_t n) {
      load_sum(c, i, n);
      sum += cpu::row_sum(y, n);
    });
    mean = static_cast<float>(sum / count);
    for_pieces([&](int64_t c, int64_t i, int64_t n) {
      load_sum(c, i, n);
      squares += cpu::row_sum_squared_differences(y, mean, n);
    });
    rstd = 1.0f / std::sqrt(static_cast<float>(squares / count) + g.eps);
  }
  // y, and d: the gradient behind weight and modulation.
  void load(int64_t c, int64_t i, int64_t n) {
    load_sum(c, i, n);
    cpu::row_normalize(y, mean, rstd, y, n);
    cpu::row_load(element(g.d_out, c, i), g.d_out.dtype, d, n);
    if (!g.silu) return;
    cpu::row_affine(y, g.factor_of(group, c), g.addend_of(group, c), t, n);
    cpu::row_sigmoid(t, s, n);
    // s * (1 + z * (1 - s))
    cpu::row_multiply(d, s, d, n);
    cpu::row_affine(s, -1.0f, 1.0f, s, n);
    cpu::row_multiply(t, s, t, n);
    cpu::row_add_constant(t, 1.0f, t, n);
    cpu::row_multiply(d, t, d, n);
  }
  // d becomes d_s, then d_x; returns the sum of d_s * x.
  double finish(int64_t c, int64_t i, int64_t n, float mean_1, float mean_2) {
    load(c, i, n);
    cpu::row_scale(d, g.factor_of(group, c), d, n);
    cpu::row_add_scaled(d, y, -mean_2, d, n);
    cpu::row_normalize(d, mean_1, rstd, d, n);
    if (g.d_residual_out.data) {
      cpu::row_load(element(g.d_residual_out, c, i), g.x.dtype, t, n);
      cpu::row_add(d, t, d, n);
    }
    if (g.d_residual.data) cpu::row_store(d, element(g.d_residual, c, i), g.x.dtype, n);
    double products = 0;
    if (g.gate.data) {
      cpu::row_load(element(g.x, c, i), g.x.dtype, t, n);
      products = cpu::row_dot(d, t, n);
      cpu::row_scale(d, g.gate_of(group, c), d, n);
    }
    cpu::row_store(d, element(g.d_x, c, i), g.d_x.dtype, n);
    return products;
  }
  void run(int64_t which, float* sums) {
    group = which;
    find_statistics();
    double m1 = 0, m2 = 0;
    const auto place = [&](int64_t c) { return sums + 3 * (group * g.group_channels() + c); };
    for (int64_t c = 0; c < g.group_channels(); ++c) {
      double sum = 0, products = 0;
      for (int64_t i = 0; i < g.plane; i += kPiece) {
        const int64_t n = std::min(kPiece, g.plane - i);
        load(c, i, n);
        sum += cpu::row_sum(d, n);
        products += cpu::row_dot(d, y, n);
      }
      place(c)[0] = static_cast<float>(sum);
      place(c)[1] = static_cast<float>(products);
      m1 += sum * double{g.factor_of(group, c)};
      m2 += products * double{g.factor_of(group, c)};
    }
    const auto count = static_cast<double>(g.size());
    const auto mean_1 = static_cast<float>(m1 / count);
    const auto mean_2 = static_cast<float>(m2 / count);
    for (int64_t c = 0; c < g.group_channels(); ++c) {
      double products = 0;
      for (int64_t i = 0; i < g.plane; i += kPiece) {
        products += finish(c, i, std::min(kPiece, g.plane - i), mean_1, mean_2);
      }
      place(c)[2] = static_cast<float>(products);
    }
  }
};

// A channel's gradients out of its sums in all samples.
void put_channel(const Groups& g, const float* sums, int64_t c) {
  double d_bias = 0, d_weight = 0;
  const auto put = [](const TensorView& t, char* to, double v) {
    store_f32(to, t.dtype, static_cast<float>(v));
  };
  for (int64_t row = 0; row < g.modulations(); ++row) {
    double one[3] = {0, 0, 0};
    for (int64_t i = 0; i < g.samples_each(); ++i) {
      const int64_t sample = row * g.samples_each() + i;
      for (int k = 0; k < 3; ++k) one[k] += double{sums[3 * (sample * g.channels + c) + k]};
    }
    const auto value = [&](const TensorView& t, int64_t r, double absent) {
      if (!t.data) return absent;
      return load_f64(t.rank == 1 ? at(t, c) : at(t, r, c), t.dtype);
    };
    const double by = 1 + value(g.scale, row, 0);
    d_bias += one[0] * by;
    d_weight += one[1] * by;
    if (g.d_shift.data) put(g.d_shift, at(g.d_shift, row, c), one[0]);
    if (g.d_scale.data) {
      const double w = value(g.weight, 0, 1), b = value(g.bias, 0, 0);
      put(g.d_scale, at(g.d_scale, row, c), one[1] * w + one[0] * b);
    }
    if (g.d_gate.data) put(g.d_gate, at(g.d_gate, row, c), one[2]);
  }
  if (g.d_weight.data) put(g.d_weight, at(g.d_weight, c), d_weight);
  if (g.d_bias.data) put(g.d_bias, at(g.d_bias, c), d_bias);
}

Status run(const Call& call) {
  const Groups g(call);
  auto* sums = static_cast<float*>(call.workspace);
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, g.size()));
  cpu::parallel_for(g.count(), grain, [&](int64_t begin, int64_t end) {
    Worker worker(g);
    for (int64_t group = begin; group < end; ++group) worker.run(group, sums);
  });
  for (int64_t c = 0; c < g.channels && g.has_sums(); ++c) put_channel(g, sums, c);
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  const Groups g(call);
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", g.x},
             {"d_out", g.d_out},
             {"d_x", g.d_x},
             {"residual", g.residual},
             {"d_residual_out", g.d_residual_out},
             {"d_residual", g.d_residual}};
  for (const auto& [name, tensor] : all) {
    if (tensor.data != nullptr && !is_contiguous_from(tensor, 2)) {
      return std::string(name) + " has gaps within a channel";
    }
  }
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/group_norm_backward_pieces",
                            .refuses = refuses,
                            .run = run,
                            .workspace = kWorkspace}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::group_norm_backward
