// layer_norm_backward on the CPU: runs of rows over threads (ops/norm/backward/norm_backward.cpp).
#include "ops/norm/layer_norm_backward/layer_norm_backward_spec.h"

namespace pestle::ops::layer_norm_backward {
namespace {

Status run(const Call& call) { return norm_backward_cpu(call, norm_backward<spec>(call, true)); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_norm_backward_cpu(norm_backward<spec>(call, true));
}

constexpr Impl kImpls[] = {{.id = "cpu/layer_norm_backward_rows",
                            .refuses = refuses,
                            .run = run,
                            .workspace = kNormBackwardCpuWorkspace}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::layer_norm_backward
