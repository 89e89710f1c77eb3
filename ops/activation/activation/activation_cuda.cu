// activation on CUDA; ops/activation/activation_rows.cu has the kernels and their headers.
// Measured H200, bf16 [32760, 13824] silu: 430 us, 99 % of a copy.
#include "ops/activation/activation/activation_call.h"

namespace pestle::ops::activation {
namespace {

Status run(const Call& call) { return activation_cuda(call, "activation", read(call)); }
Status run_any(const Call& call) { return activation_cuda_any(call, "activation_any", read(call)); }
std::string refuses(const Call& call, const Machine& machine) {
  return refuse_activation_cuda(read(call), machine);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/activation",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/activation_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::activation
