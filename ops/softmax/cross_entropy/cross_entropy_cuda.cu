// cross_entropy on CUDA; the kernels are ops/softmax/softmax_rows.cuh's.
// Map      a block a row, which threads read through rings of 8 pieces of 16 bytes in shared
//          memory; straight from memory where 16-bit rows are many (loss_rows.cuh); a cluster a row
//          where rows are few. One thread finishes the row. _any: rows of neighbours by 16 bytes
//          but for their ends, others by single elements.
// Traffic  logits once, whatever their number (again where a row holds NaN or infinities); one
//          logit of each row again, from the cache.
// Numerics f32; lse = largest + log(sum of e^(logit - largest)) in f64, sums as trees in a fixed
//          order; the loss from differences to the largest, so that it does not depend on an offset.
// Measured H200, share of a copy: bf16 [8192, 128256] 94 %, [16384, 32000] 89 %; f32 98 %.
#include "ops/softmax/cross_entropy/cross_entropy_spec.h"
#include "ops/softmax/softmax_rows.cuh"

namespace pestle::ops::cross_entropy {
namespace {

constexpr int kLogits = arg_index(spec, "logits");
constexpr int kTarget = arg_index(spec, "target");
constexpr int kLoss = arg_index(spec, "loss");
constexpr int kLse = arg_index(spec, "lse");
constexpr int kIgnore = arg_index(spec, "ignore_index");
constexpr int kSmoothing = arg_index(spec, "label_smoothing");

Status start(const Call& call, bool any) {
  const TensorView& logits = call.tensor(kLogits);
  SoftmaxJob job = softmax_job(logits, {}, logits, -1, 1);
  job.loss = {cuda::AnyTensor(call.tensor(kTarget)), cuda::AnyTensor(call.tensor(kLoss)),
              cuda::AnyTensor(call.tensor(kLse)), call.integer(kIgnore), call.number(kSmoothing)};
  return run_softmax<SoftmaxKind::kLoss>(call, any ? "cross_entropy_any" : "cross_entropy", job,
                                         any);
}
Status run(const Call& call) { return start(call, false); }
Status run_any(const Call& call) { return start(call, true); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_rows_along("logits", call.tensor(kLogits), -1);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/cross_entropy",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/cross_entropy_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::cross_entropy
