// adaln on CUDA. ops/norm/forward/norm_rows.cu chooses among eight kernels and says in which order
// it asks them; each file of ops/norm/forward says what it takes, how it works and how fast it is:
// norm_short.cu, norm_registers.cu, norm_warps.cu, norm_persistent.cu, norm_staged.cu,
// norm_rows.cu, norm_long.cu. Rows that no cluster holds go to norm_long.cu.
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
