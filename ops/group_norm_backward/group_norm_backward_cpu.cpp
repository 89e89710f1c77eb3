// group_norm_backward on the CPU: groups over threads, pieces of planes by row_math; sums of each
// channel of a sample in the workspace, added up over samples in order.
#include <algorithm>
#include <cmath>
#include <string>

#include "backends/cpu/parallel.h"
#include "backends/cpu/simd/row_math.h"
#include "ops/group_norm_backward/group_norm_backward_groups.h"

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
  void find_statistics() {
    const auto count = static_cast<double>(g.size());
    double sum = 0, squares = 0;
    for_pieces([&](int64_t c, int64_t i, int64_t n) {
      cpu::row_load(element(g.x, c, i), g.x.dtype, y, n);
      sum += cpu::row_sum(y, n);
    });
    mean = static_cast<float>(sum / count);
    for_pieces([&](int64_t c, int64_t i, int64_t n) {
      cpu::row_load(element(g.x, c, i), g.x.dtype, y, n);
      squares += cpu::row_sum_squared_differences(y, mean, n);
    });
    rstd = 1.0f / std::sqrt(static_cast<float>(squares / count) + g.eps);
  }
  // y, and d: the gradient behind weight and bias.
  void load(int64_t c, int64_t i, int64_t n) {
    cpu::row_load(element(g.x, c, i), g.x.dtype, y, n);
    cpu::row_normalize(y, mean, rstd, y, n);
    cpu::row_load(element(g.d_out, c, i), g.d_out.dtype, d, n);
    if (!g.silu) return;
    cpu::row_affine(y, g.weight_of(group, c), g.bias_of(group, c), t, n);
    cpu::row_sigmoid(t, s, n);
    // s * (1 + z * (1 - s))
    cpu::row_multiply(d, s, d, n);
    cpu::row_affine(s, -1.0f, 1.0f, s, n);
    cpu::row_multiply(t, s, t, n);
    cpu::row_add_constant(t, 1.0f, t, n);
    cpu::row_multiply(d, t, d, n);
  }
  void run(int64_t which, float* sums) {
    group = which;
    find_statistics();
    double m1 = 0, m2 = 0;
    for (int64_t c = 0; c < g.group_channels(); ++c) {
      double sum = 0, products = 0;
      for (int64_t i = 0; i < g.plane; i += kPiece) {
        const int64_t n = std::min(kPiece, g.plane - i);
        load(c, i, n);
        sum += cpu::row_sum(d, n);
        products += cpu::row_dot(d, y, n);
      }
      const int64_t place = group * g.group_channels() + c;
      sums[2 * place] = static_cast<float>(sum);
      sums[2 * place + 1] = static_cast<float>(products);
      m1 += sum * double{g.weight_of(group, c)};
      m2 += products * double{g.weight_of(group, c)};
    }
    const auto count = static_cast<double>(g.size());
    const auto mean_1 = static_cast<float>(m1 / count);
    const auto mean_2 = static_cast<float>(m2 / count);
    for_pieces([&](int64_t c, int64_t i, int64_t n) {
      load(c, i, n);
      cpu::row_scale(d, g.weight_of(group, c), d, n);
      cpu::row_add_scaled(d, y, -mean_2, d, n);
      cpu::row_normalize(d, mean_1, rstd, d, n);
      cpu::row_store(d, element(g.d_x, c, i), g.d_x.dtype, n);
    });
  }
};

Status run(const Call& call) {
  const Groups g(call);
  auto* sums = static_cast<float*>(call.workspace);
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, g.size()));
  cpu::parallel_for(g.count(), grain, [&](int64_t begin, int64_t end) {
    Worker worker(g);
    for (int64_t group = begin; group < end; ++group) worker.run(group, sums);
  });
  for (int64_t c = 0; c < g.channels; ++c) {
    double bias = 0, weight = 0;
    for (int64_t b = 0; b < g.x.shape[0]; ++b) {
      bias += double{sums[2 * (b * g.channels + c)]};
      weight += double{sums[2 * (b * g.channels + c) + 1]};
    }
    if (g.d_weight.data) {
      store_f32(at(g.d_weight, c), g.d_weight.dtype, static_cast<float>(weight));
    }
    if (g.d_bias.data) store_f32(at(g.d_bias, c), g.d_bias.dtype, static_cast<float>(bias));
  }
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  const Groups g(call);
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", g.x}, {"d_out", g.d_out}, {"d_x", g.d_x}};
  for (const auto& [name, tensor] : all) {
    if (!is_contiguous_from(tensor, 2)) return std::string(name) + " has gaps within a channel";
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
