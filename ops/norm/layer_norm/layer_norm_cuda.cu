// layer_norm on CUDA: the kernels of ops/norm/forward/norm_rows.cu, which says how and how fast.
#include "ops/norm/forward/norm_teams.h"
#include "ops/norm/layer_norm/layer_norm_spec.h"

namespace pestle::ops::layer_norm {
namespace {

Status run(const Call& call) {
  return norm_rows_cuda(call, "layer_norm", norm_rows<spec>(call, true));
}
Status run_any(const Call& call) {
  return norm_rows_cuda_any(call, "layer_norm_any", norm_rows<spec>(call, true));
}
std::string refuses(const Call& call, const Machine& machine) {
  return refuse_norm_rows_cuda(norm_rows<spec>(call, true), machine);
}

Status run_teams(const Call& call) {
  return norm_teams_cuda(call, "layer_norm_teams", norm_rows<spec>(call, true));
}
std::string refuses_teams(const Call& call, const Machine& machine) {
  return refuse_norm_teams_cuda(norm_rows<spec>(call, true), machine);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/layer_norm_teams",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_teams,
     .run = run_teams,
     .workspace = kNormTeamsWorkspace},
    {.id = "cuda/layer_norm",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/layer_norm_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::layer_norm
