// softmax on the CPU: pieces of rows as floats; threads over rows.
// Map      a row goes to one thread, in pieces of 2,048 elements
// Traffic  x twice (from the cache where a row fits it) and out once; rows of one piece once
// Numerics f32, sums of a piece in lanes, pieces in double; one factor 1 / sum
#include "ops/softmax/softmax_cpu.h"
#include "ops/softmax/softmax/softmax_spec.h"

namespace pestle::ops::softmax {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kMask = arg_index(spec, "mask");
constexpr int kOut = arg_index(spec, "out");
constexpr int kDim = arg_index(spec, "dim");
constexpr int kScale = arg_index(spec, "scale");

void do_row(const CpuLogits& logits, const TensorView& out, int64_t row) {
  const int64_t n = row_length(out);
  RowSum all;
  float t[cpu::kRowPiece];
  for_pieces(n, [&](int64_t begin, int64_t count) {
    logits.load(row, begin, count, t);
    all.add(t, t, count);
  });
  const auto factor = static_cast<float>(1 / all.sum);
  if (n <= cpu::kRowPiece) {
    cpu::row_scale(t, factor, t, n);
    store_piece(out, row, 0, n, t);
    return;
  }
  for_pieces(n, [&](int64_t begin, int64_t count) {
    logits.load(row, begin, count, t);
    cpu::row_exp_scaled(t, all.base(), factor, t, count);
    store_piece(out, row, begin, count, t);
  });
}

Status run(const Call& call) {
  const int64_t dim = call.integer(kDim);
  const CpuLogits logits(call.tensor(kX), call.has(kMask) ? call.tensor(kMask) : TensorView(), dim,
                         call.number(kScale));
  const TensorView out = rows_along(call.tensor(kOut), dim);
  parallel_rows(row_count(out), row_length(out), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) do_row(logits, out, row);
  });
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/softmax_simd", .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::softmax
