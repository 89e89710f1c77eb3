// activation_backward on CUDA; the kernels are ops/activation/activation_rows.cuh's.
// Map      blocks of 128 threads take 4,096 elements of a row, 4 units of 8 a thread; dense tensors
//          are one row. _any: elements one by one, any strides.
// Traffic  everything once.
// Numerics f32: sigmoids as 1 / (1 + 2^t) and 2^t / (1 + 2^t), Phi's tail as 2^polynomial (8e-8).
// Measured H200, bf16 [32760, 13824] silu: 811 us, 84 % of a copy.
#include "ops/activation/activation_backward/activation_backward_spec.h"
#include "ops/activation/activation_rows.cuh"

namespace pestle::ops::activation_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kAct = arg_index(spec, "act");

ActivationTensors tensors_of(const Call& call) {
  return {.x = call.tensor(kX), .grad = call.tensor(kGrad), .out = {call.tensor(kDx), {}}};
}

Status start(const Call& call, bool any) {
  const auto act = static_cast<Activation>(call.integer(kAct));
  return run_activation(call, any ? "activation_backward_any" : "activation_backward",
                        activation_job(tensors_of(call), act, any), any);
}
Status run(const Call& call) { return start(call, false); }
Status run_any(const Call& call) { return start(call, true); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_activation(tensors_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/activation_backward",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/activation_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::activation_backward
