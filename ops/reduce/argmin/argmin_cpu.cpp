// argmin on the CPU: ops/reduce/arg_reduce.cpp.
#include "ops/reduce/argmin/argmin_spec.h"

namespace pestle::ops::argmin {
namespace {

Status run(const Call& call) { return cpu_arg_reduce(call, -1); }

constexpr Impl kImpls[] = {
    {.id = "cpu/argmin_rows",
     .refuses = refuse_cpu_arg_reduce,
     .run = run,
     .workspace = "16 * (numel(x) / 65536 + numel(out))"},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::argmin
