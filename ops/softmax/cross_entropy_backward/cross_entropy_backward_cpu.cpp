// cross_entropy_backward on the CPU: pieces of rows as floats; threads over rows.
// Map      a row goes to one thread, in pieces of 2,048 elements
// Traffic  logits and d_logits once
// Numerics f32, one rounding an operation; lse in two parts, so that logit - lse keeps what f32
//          would lose of large ones
#include "ops/softmax/class_targets.h"
#include "ops/softmax/cross_entropy_backward/cross_entropy_backward_spec.h"
#include "ops/softmax/softmax_cpu.h"

namespace pestle::ops::cross_entropy_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_loss");
constexpr int kLogits = arg_index(spec, "logits");
constexpr int kTarget = arg_index(spec, "target");
constexpr int kLse = arg_index(spec, "lse");
constexpr int kDlogits = arg_index(spec, "d_logits");
constexpr int kIgnore = arg_index(spec, "ignore_index");
constexpr int kSmoothing = arg_index(spec, "label_smoothing");

void do_row(const Call& call, int64_t row) {
  const TensorView& logits = call.tensor(kLogits);
  const TensorView& to = call.tensor(kDlogits);
  const int64_t n = row_length(logits);
  const int64_t target = load_target(call.tensor(kTarget), row);
  const bool is_ignored = target == call.integer(kIgnore);
  const float smoothing = call.number(kSmoothing);
  const LseParts lse(load_f64(element_address(call.tensor(kLse), row), DType::kF64));
  float d_loss = load_f32(element_address(call.tensor(kGrad), row), DType::kF32);
  if (!is_ignored && !is_class(target, n)) d_loss = std::numeric_limits<float>::quiet_NaN();
  float v[cpu::kRowPiece];
  for_pieces(n, [&](int64_t begin, int64_t count) {
    load_piece(logits, row, begin, count, v);
    cpu::row_add_constant(v, -lse.high, v, count);
    cpu::row_exp(v, lse.low, v, count);
    if (target >= begin && target < begin + count) v[target - begin] -= 1 - smoothing;
    if (smoothing != 0) {
      cpu::row_add_constant(v, -smoothing / static_cast<float>(n), v, count);
    }
    if (is_ignored)
      std::fill(v, v + count, 0.0f);
    else
      cpu::row_scale(v, d_loss, v, count);
    store_piece(to, row, begin, count, v);
  });
}

Status run(const Call& call) {
  const TensorView& logits = call.tensor(kLogits);
  parallel_rows(row_count(logits), row_length(logits), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) do_row(call, row);
  });
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/cross_entropy_backward_simd", .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::cross_entropy_backward
