// adaln on CUDA: the kernels of ops/norm/forward/norm_rows.cu, which says how and how fast.
#include "ops/norm/adaln/adaln_spec.h"

namespace pestle::ops::adaln {
namespace {

Status run(const Call& call) { return norm_rows_cuda(call, "adaln", norm_rows<spec>(call, true)); }
Status run_any(const Call& call) {
  return norm_rows_cuda_any(call, "adaln_any", norm_rows<spec>(call, true));
}
std::string refuses(const Call& call, const Machine& machine) {
  return refuse_norm_rows_cuda(norm_rows<spec>(call, true), machine);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/adaln",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/adaln_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::adaln
