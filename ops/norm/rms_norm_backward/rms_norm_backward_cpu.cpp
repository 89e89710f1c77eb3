// rms_norm_backward on the CPU: runs of rows over threads (ops/norm/backward/norm_backward.cpp).
#include "ops/norm/rms_norm_backward/rms_norm_backward_spec.h"

namespace pestle::ops::rms_norm_backward {
namespace {

Status run(const Call& call) { return norm_backward_cpu(call, norm_backward<spec>(call, false)); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_norm_backward_cpu(norm_backward<spec>(call, false));
}

constexpr Impl kImpls[] = {{.id = "cpu/rms_norm_backward_rows",
                            .refuses = refuses,
                            .run = run,
                            .workspace = kNormBackwardCpuWorkspace}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::rms_norm_backward
