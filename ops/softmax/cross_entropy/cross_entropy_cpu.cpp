// cross_entropy on the CPU: pieces of rows as floats; threads over rows.
// Map      a row goes to one thread, in pieces of 2,048 elements
// Traffic  logits once
// Numerics f32, sums of a piece in lanes, pieces in double; the loss itself in double
#include "ops/softmax/class_targets.h"
#include "ops/softmax/cross_entropy/cross_entropy_spec.h"
#include "ops/softmax/softmax_cpu.h"

namespace pestle::ops::cross_entropy {
namespace {

constexpr int kLogits = arg_index(spec, "logits");
constexpr int kTarget = arg_index(spec, "target");
constexpr int kLoss = arg_index(spec, "loss");
constexpr int kLse = arg_index(spec, "lse");
constexpr int kIgnore = arg_index(spec, "ignore_index");
constexpr int kSmoothing = arg_index(spec, "label_smoothing");

// In f64 from the first element on: the loss needs the distance from the largest.
double total_of(const float* t, int64_t count) {
  constexpr int64_t kChains = 8;
  double chains[kChains] = {};
  for (int64_t i = 0; i < count; ++i) chains[i % kChains] += double{t[i]};
  double all = 0;
  for (double chain : chains) all += chain;
  return all;
}

void do_row(const Call& call, int64_t row) {
  const TensorView& logits = call.tensor(kLogits);
  const int64_t n = row_length(logits);
  const double smoothing = call.number(kSmoothing);
  RowSum all;
  double total = 0;
  float t[cpu::kRowPiece];
  for_pieces(n, [&](int64_t begin, int64_t count) {
    load_piece(logits, row, begin, count, t);
    if (smoothing != 0) total += total_of(t, count);
    all.add(t, t, count);
  });
  const int64_t target = load_target(call.tensor(kTarget), row);
  double loss = std::numeric_limits<double>::quiet_NaN();
  if (target == call.integer(kIgnore)) {
    loss = 0;
  } else if (is_class(target, n)) {
    const double own =
        load_f32(row_address(logits, row) + target * last_stride_bytes(logits), logits.dtype);
    loss = all.lse() - own;
    if (smoothing != 0) {
      loss = all.lse() - ((1 - smoothing) * own + smoothing * total / static_cast<double>(n));
    }
  }
  store_f64(element_address(call.tensor(kLoss), row), DType::kF32, loss);
  store_f64(element_address(call.tensor(kLse), row), DType::kF64, all.lse());
}

Status run(const Call& call) {
  const TensorView& logits = call.tensor(kLogits);
  parallel_rows(row_count(logits), row_length(logits), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) do_row(call, row);
  });
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/cross_entropy_simd", .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::cross_entropy
