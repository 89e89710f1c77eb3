// log_softmax_backward on CUDA; the kernels are ops/softmax/softmax_backward_rows.cuh's.
// Map      as log_softmax's: a row in the registers of lanes, a block or a cluster, 32 elements of
//          both inputs a thread; longer rows are read twice, and so is everything in _any.
// Traffic  d_out, out and d_x once; the inputs twice where no group of CTAs holds a row.
// Numerics f32, sums as trees of fused multiply-adds, the same order in every run.
// Measured H200, bf16 [32768, 4096]: 186 us, 109 % of a copy.
#include "ops/softmax/log_softmax_backward/log_softmax_backward_spec.h"
#include "ops/softmax/softmax_backward_cooperative.cuh"

namespace pestle::ops::log_softmax_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kOut = arg_index(spec, "out");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kDim = arg_index(spec, "dim");
constexpr int kScale = arg_index(spec, "scale");

Status start(const Call& call, bool any) {
  SoftmaxBackwardJob job =
      softmax_backward_job(call.tensor(kGrad), call.tensor(kOut), call.tensor(kDx),
                           call.integer(kDim), call.number(kScale));
  return run_softmax_backward<SoftmaxKind::kLogSoftmax>(
      call, any ? "log_softmax_backward_any" : "log_softmax_backward", job, any);
}
Status run(const Call& call) { return start(call, false); }
Status run_any(const Call& call) { return start(call, true); }

std::string refuses(const Call& call, const Machine&) {
  for (int index : {kGrad, kOut, kDx}) {
    std::string why = refuse_rows_along(spec.args[static_cast<size_t>(index)].name,
                                        call.tensor(index), call.integer(kDim));
    if (!why.empty()) return why;
  }
  return {};
}

Status run_cooperative(const Call& call) {
  SoftmaxBackwardJob job =
      softmax_backward_job(call.tensor(kGrad), call.tensor(kOut), call.tensor(kDx),
                           call.integer(kDim), call.number(kScale));
  return run_softmax_backward_cooperative<SoftmaxKind::kLogSoftmax>(
      call, "log_softmax_backward_teams", job);
}

std::string refuses_cooperative(const Call& call, const Machine& machine) {
  if (std::string why = refuses(call, machine); !why.empty()) return why;
  return refuse_cooperative(call.tensor(kOut), call.integer(kDim), 1 << 20, 64 << 10, machine);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/log_softmax_backward_teams",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_cooperative,
     .run = run_cooperative,
     .workspace = kCooperativeBackwardWorkspace},
    {.id = "cuda/log_softmax_backward",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/log_softmax_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::log_softmax_backward
