// rms_adaln on CUDA. ops/norm/forward/norm_rows.cu chooses among eight kernels and says in which
// order it asks them; each file of ops/norm/forward says what it takes, how it works and how fast
// it is: norm_short.cu, norm_registers.cu, norm_warps.cu, norm_persistent.cu, norm_staged.cu,
// norm_rows.cu, norm_long.cu. Rows that no cluster holds go to norm_long.cu.
#include "ops/norm/rms_adaln/rms_adaln_spec.h"

namespace pestle::ops::rms_adaln {
namespace {

Status run(const Call& call) {
  return norm_rows_cuda(call, "rms_adaln", norm_rows<spec>(call, false));
}
Status run_any(const Call& call) {
  return norm_rows_cuda_any(call, "rms_adaln_any", norm_rows<spec>(call, false));
}
std::string refuses(const Call& call, const Machine& machine) {
  return refuse_norm_rows_cuda(norm_rows<spec>(call, false), machine);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/rms_adaln",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/rms_adaln_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::rms_adaln
