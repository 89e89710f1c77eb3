// argmin on CUDA. Map, traffic, numerics and what was measured: ops/reduce/arg_reduce.cu.
#include "ops/reduce/argmin/argmin_spec.h"

namespace pestle::ops::argmin {
namespace {

Status run(const Call& call) { return cuda_arg_reduce(call, "argmin", -1); }
Status run_any(const Call& call) { return cuda_arg_reduce_any(call, "argmin_any", -1); }

constexpr Impl kImpls[] = {
    {.id = "cuda/argmin",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_cuda_arg_reduce,
     .run = run,
     .workspace = "8 * min(1048576, numel(out) * 1024)"},
    {.id = "cuda/argmin_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "8 * min(1048576, numel(out) * 1024)"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::argmin
