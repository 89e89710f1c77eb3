// argmin: the contract.
#pragma once

#include "ops/reduce/arg_reduce.h"

namespace pestle::ops::argmin {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M", "any values; NaN counts as the smallest"),
    output(
        "out", "i64", "reduced(*M, dims, keepdim)",
        "place of the smallest among the reduced elements, in row-major order; the first of equal "
        "ones; -1 of none"),
    kArgReduceDims,
    kArgReduceKeepdim,
};

inline constexpr OpSpec spec{
    .name = "argmin",
    .doc = "Place of the smallest element over any set of dimensions.",
    .source = "ops/reduce/argmin/argmin.md",
    .args = args,
    .cases = kArgReduceCases,
    .flops = "numel(x)",
    .backward = {.why_not = "a place is a whole number: it has no gradient"},
};

}  // namespace pestle::ops::argmin
