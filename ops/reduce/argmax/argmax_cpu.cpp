// argmax on the CPU: ops/reduce/arg_extreme.cpp.
#include "ops/reduce/argmax/argmax_spec.h"

namespace pestle::ops::argmax {
namespace {

Status run(const Call& call) { return cpu_arg_extreme(call, 1); }

constexpr Impl kImpls[] = {
    {.id = "cpu/argmax_rows",
     .refuses = refuse_cpu_arg_extreme,
     .run = run,
     .workspace = "16 * (numel(x) / 65536 + numel(out))"},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::argmax
