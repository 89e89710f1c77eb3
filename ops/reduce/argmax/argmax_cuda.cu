// argmax on CUDA. Map, traffic, numerics and what was measured: ops/reduce/arg_reduce.cu.
#include "ops/reduce/argmax/argmax_spec.h"

namespace pestle::ops::argmax {
namespace {

Status run(const Call& call) { return cuda_arg_reduce(call, "argmax", 1); }
Status run_any(const Call& call) { return cuda_arg_reduce_any(call, "argmax_any", 1); }

constexpr Impl kImpls[] = {
    {.id = "cuda/argmax",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_cuda_arg_reduce,
     .run = run,
     .workspace = "8 * min(1048576, numel(out) * 1024)"},
    {.id = "cuda/argmax_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "8 * min(1048576, numel(out) * 1024)"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::argmax
