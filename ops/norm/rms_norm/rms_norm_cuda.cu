// rms_norm on CUDA. ops/norm/forward/norm_rows.cu chooses among eight kernels and says in which
// order it asks them; each file of ops/norm/forward says what it takes, how it works and how fast
// it is: norm_short.cu, norm_registers.cu, norm_warps.cu, norm_persistent.cu, norm_staged.cu,
// norm_rows.cu, norm_long.cu, and norm_cooperative.cu as an implementation of its own (rows that no
// cluster holds).
#include "ops/norm/forward/norm_cooperative.h"
#include "ops/norm/rms_norm/rms_norm_spec.h"

namespace pestle::ops::rms_norm {
namespace {

Status run(const Call& call) {
  return norm_rows_cuda(call, "rms_norm", norm_rows<spec>(call, false));
}
Status run_any(const Call& call) {
  return norm_rows_cuda_any(call, "rms_norm_any", norm_rows<spec>(call, false));
}
std::string refuses(const Call& call, const Machine& machine) {
  return refuse_norm_rows_cuda(norm_rows<spec>(call, false), machine);
}

Status run_cooperative(const Call& call) {
  return norm_cooperative_cuda(call, "rms_norm_teams", norm_rows<spec>(call, false));
}
std::string refuses_cooperative(const Call& call, const Machine& machine) {
  return refuse_norm_cooperative_cuda(norm_rows<spec>(call, false), machine);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/rms_norm_teams",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_cooperative,
     .run = run_cooperative,
     .workspace = kNormCooperativeWorkspace},
    {.id = "cuda/rms_norm",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/rms_norm_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::rms_norm
