// copy_transpose on CUDA: a strided copy into out seen transposed. Map, traffic, numerics and what
// was measured: ops/copy/strided_copy.cu.
#include "backends/cuda/host/launch.h"
#include "ops/copy/copy_transpose/copy_transpose_spec.h"
#include "ops/copy/strided_copy_cuda.h"

namespace pestle::ops::copy_transpose {
namespace {

CopyPlan plan_of(const Call& call) {
  return {call.tensor(arg_index(spec, "x")), transposed(call.tensor(arg_index(spec, "out")))};
}

std::string refuses(const Call& call, const Machine&) { return refuse_fast_copy(plan_of(call)); }
Status run(const Call& call) { return fast_copy(call, "copy_transpose", plan_of(call)); }
Status run_any(const Call& call) { return any_copy(call, "copy_transpose_any", plan_of(call)); }

constexpr Impl kImpls[] = {
    {.id = "cuda/copy_transpose",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/copy_transpose_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::copy_transpose
