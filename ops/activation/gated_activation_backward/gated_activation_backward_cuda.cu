// gated_activation_backward on CUDA; the kernels are ops/activation/activation_rows.cuh's.
// Map      blocks of 128 threads take 4,096 elements of a row, 4 units of 8 a thread; dense tensors
//          are one row. _any: elements one by one, any strides.
// Traffic  everything once.
// Numerics f32: sigmoids as 1 / (1 + 2^t) and 2^t / (1 + 2^t), Phi's tail as 2^polynomial (8e-8).
// Measured H200, bf16 [32760, 13824] silu, pair: 1,054 us, 106 % of a copy.
#include "ops/activation/activation_rows.cuh"
#include "ops/activation/gated_activation_backward/gated_activation_backward_spec.h"

namespace pestle::ops::gated_activation_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kGate = arg_index(spec, "gate");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kDgate = arg_index(spec, "d_gate");
constexpr int kAct = arg_index(spec, "act");
constexpr int kLayout = arg_index(spec, "layout");

ActivationTensors tensors_of(const Call& call) {
  const int64_t layout = call.integer(kLayout);
  const GatedViews in = gated_views(call.tensor(kX), call.tensor(kGate), layout);
  const GatedViews to = gated_views(call.tensor(kDx), call.tensor(kDgate), layout);
  return {.x = in.act, .gate = in.gate, .grad = call.tensor(kGrad), .out = {to.act, to.gate}};
}

Status start(const Call& call, bool any) {
  const auto act = static_cast<Activation>(call.integer(kAct));
  return run_activation(call, any ? "gated_activation_backward_any" : "gated_activation_backward",
                        activation_job(tensors_of(call), act, any), any);
}
Status run(const Call& call) { return start(call, false); }
Status run_any(const Call& call) { return start(call, true); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_activation(tensors_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/gated_activation_backward",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/gated_activation_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::gated_activation_backward
