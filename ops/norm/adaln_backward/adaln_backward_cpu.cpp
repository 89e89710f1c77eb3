// adaln_backward on the CPU: runs of rows over threads (ops/norm/backward/norm_backward.cpp).
#include "ops/norm/adaln_backward/adaln_backward_spec.h"

namespace pestle::ops::adaln_backward {
namespace {

Status run(const Call& call) { return norm_backward_cpu(call, norm_backward<spec>(call, true)); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_norm_backward_cpu(norm_backward<spec>(call, true));
}

constexpr Impl kImpls[] = {{.id = "cpu/adaln_backward_rows",
                            .refuses = refuses,
                            .run = run,
                            .workspace = kNormBackwardCpuWorkspace}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::adaln_backward
