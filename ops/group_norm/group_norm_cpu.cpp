// group_norm on the CPU: two reads of a group in pieces (row_math), groups over threads. Each piece
// gives its own mean and squared differences, which are merged in double.
#include <algorithm>
#include <cmath>
#include <string>

#include "backends/cpu/parallel.h"
#include "backends/cpu/simd/row_math.h"
#include "ops/group_norm/group_norm_groups.h"

namespace pestle::ops::group_norm {
namespace {

constexpr int64_t kPiece = 4096;

// body(channel, first, count) over pieces of a group.
template <class Body>
void for_pieces(const Groups& g, Body&& body) {
  for (int64_t c = 0; c < g.group_channels(); ++c) {
    for (int64_t i = 0; i < g.plane; i += kPiece) body(c, i, std::min(kPiece, g.plane - i));
  }
}

void run_group(const Groups& g, int64_t group, bool stream) {
  alignas(64) float v[kPiece];
  const int64_t bytes = dtype_bytes(g.x.dtype);
  double mean = 0, squares = 0, seen = 0;
  for_pieces(g, [&](int64_t c, int64_t i, int64_t count) {
    cpu::row_load(g.x_channel(group, c) + i * bytes, g.x.dtype, v, count);
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
  for_pieces(g, [&](int64_t c, int64_t i, int64_t count) {
    cpu::row_load(g.x_channel(group, c) + i * bytes, g.x.dtype, v, count);
    cpu::row_normalize(v, m, rstd, v, count);
    cpu::row_affine(v, g.weight_of(group, c), g.bias_of(group, c), v, count);
    if (g.silu) cpu::row_silu(v, v, count);
    cpu::row_store(v, g.out_channel(group, c) + i * bytes, g.out.dtype, count, stream);
  });
}

Status run(const Call& call) {
  const Groups g(call);
  const bool stream = size_bytes(g.out) >= (int64_t{8} << 20);
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, g.size()));
  cpu::parallel_for(g.count(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) run_group(g, group, stream);
    cpu::row_flush();
  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  for (int index : {kX, kOut}) {
    if (is_contiguous_from(call.tensor(index), 2)) continue;
    return std::string(spec.args[index].name) + " has gaps within a channel";
  }
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/group_norm_pieces", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::group_norm
