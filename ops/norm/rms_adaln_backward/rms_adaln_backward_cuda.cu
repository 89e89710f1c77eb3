// rms_adaln_backward on CUDA. ops/norm/backward/norm_backward.cu chooses the kernel:
// norm_backward_rows.cuh, norm_backward_cooperative.cuh where no cluster holds a row,
// norm_backward_long.cuh where that is not possible, or the one for any strides, which it has
// itself; norm_backward_sums.cuh adds up what they leave for the parameters.
#include "ops/norm/rms_adaln_backward/rms_adaln_backward_spec.h"

namespace pestle::ops::rms_adaln_backward {
namespace {

Status run(const Call& call) {
  return norm_backward_cuda(call, "rms_adaln_backward", norm_backward<spec>(call, false));
}
Status run_any(const Call& call) {
  return norm_backward_cuda_any(call, "rms_adaln_backward_any", norm_backward<spec>(call, false));
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_norm_backward_cuda(norm_backward<spec>(call, false));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/rms_adaln_backward",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run,
     .workspace = kNormBackwardCudaWorkspace},
    {.id = "cuda/rms_adaln_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = kNormBackwardAnyWorkspace},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::rms_adaln_backward
