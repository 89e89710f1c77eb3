// group_norm on the CPU: two reads of a group in pieces (row_math), groups over threads. Each piece
// gives its own mean and squared differences, which are merged in double. Codes: a second pass.
#include <algorithm>
#include <cmath>
#include <string>

#include "backends/cpu/parallel.h"
#include "backends/cpu/simd/row_math.h"
#include "ops/norm/group_norm/group_norm_groups.h"
#include "ops/quant/output/quantize_after.h"

namespace pestle::ops::group_norm {
namespace {

constexpr int64_t kPiece = 4096;

struct Worker {
  const Groups& g;
  const int64_t bytes = dtype_bytes(g.x.dtype);
  int64_t group = 0;
  alignas(64) float v[kPiece];
  alignas(64) float other[kPiece];

  explicit Worker(const Groups& groups) : g(groups) {}

  // body(channel, first, count) over pieces of the group, their sums in v.
  template <class Body>
  void for_pieces(Body&& body) {
    for (int64_t c = 0; c < g.group_channels(); ++c) {
      for (int64_t i = 0; i < g.plane; i += kPiece) {
        const int64_t count = std::min(kPiece, g.plane - i);
        cpu::row_load(g.x_channel(group, c) + i * bytes, g.x.dtype, v, count);
        if (g.gate.data) cpu::row_scale(v, g.gate_of(group, c), v, count);
        if (g.residual.data) {
          cpu::row_load(g.channel(g.residual, group, c) + i * bytes, g.x.dtype, other, count);
          cpu::row_add(v, other, v, count);
        }
        body(c, i, count);
      }
    }
  }
  void run(int64_t which, bool stream) {
    group = which;
    double mean = 0, squares = 0, seen = 0;
    for_pieces([&](int64_t, int64_t, int64_t count) {
      const auto n = static_cast<double>(count);
      const double own = cpu::row_sum(v, count) / n;
      // Differences from the f32 mean; the rest of the mean is put right exactly.
      const auto rounded = static_cast<float>(own);
      const double rest = own - double{rounded};
      const double own_squares =
          cpu::row_sum_squared_differences(v, rounded, count) - n * rest * rest;
      const double apart = own - mean;
      const double total = seen + n;
      squares += own_squares + apart * apart * seen * n / total;
      mean += apart * n / total;
      seen = total;
    });
    const auto m = static_cast<float>(mean);
    const float rstd = 1.0f / std::sqrt(static_cast<float>(squares / seen) + g.eps);
    for_pieces([&](int64_t c, int64_t i, int64_t count) {
      if (g.residual_out.data) {
        cpu::row_store(v, g.channel(g.residual_out, group, c) + i * bytes, g.x.dtype, count,
                       stream);
      }
      cpu::row_normalize(v, m, rstd, v, count);
      cpu::row_affine(v, g.factor_of(group, c), g.addend_of(group, c), v, count);
      if (g.silu) cpu::row_silu(v, v, count);
      cpu::row_store(v, g.out_channel(group, c) + i * bytes, g.out.dtype, count, stream);
    });
  }
};

Status run(const Call& call) {
  const Groups g(call);
  const bool stream = size_bytes(g.out) >= (int64_t{8} << 20);
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, g.size()));
  cpu::parallel_for(g.count(), grain, [&](int64_t begin, int64_t end) {
    Worker worker(g);
    for (int64_t group = begin; group < end; ++group) worker.run(group, stream);
    cpu::row_flush();
  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  for (int index : {kX, kOut, kResidual, kResidualOut}) {
    if (!call.has(index) || is_contiguous_from(call.tensor(index), 2)) continue;
    return std::string(spec.args[index].name) + " has gaps within a channel";
  }
  return refuse_quantized_output(call);
}

constexpr Impl kImpls[] = {
    {.id = "cpu/group_norm_pieces", .refuses = refuses, .run = run},
    {.id = "cpu/group_norm_codes",
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = kCodesWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::group_norm
