// argmax: the contract.
#pragma once

#include "ops/reduce/arg_reduce.h"

namespace pestle::ops::argmax {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M", "any values; NaN counts as the largest"),
    output(
        "out", "i64", "reduced(*M, dims, keepdim)",
        "place of the largest among the reduced elements, in row-major order; the first of equal "
        "ones; -1 of none"),
    kArgReduceDims,
    kArgReduceKeepdim,
};

inline constexpr OpSpec spec{
    .name = "argmax",
    .doc = "Place of the largest element over any set of dimensions.",
    .source = "ops/reduce/argmax/argmax.md",
    .args = args,
    .cases = kArgReduceCases,
    .flops = "numel(x)",
    .backward = {.why_not = "a place is a whole number: it has no gradient"},
};

}  // namespace pestle::ops::argmax
