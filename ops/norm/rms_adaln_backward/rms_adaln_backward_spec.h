// rms_adaln_backward: the contract. Maths: ops/norm/backward/norm_backward.h
#pragma once

#include "ops/norm/backward/adaln_backward_args.h"

namespace pestle::ops::rms_adaln_backward {

inline constexpr OpSpec spec{
    .name = "rms_adaln_backward",
    .doc =
        "Gradients of rms_adaln: of x, residual, gate and all parameters, from x and the gradient "
        "of out.",
    .source = "ops/norm/rms_adaln/rms_adaln.md",
    .args = kAdalnBackwardArgs,
    .constraints = kAdalnBackwardConstraints,
    .cases = kAdalnBackwardCases,
    .flops = "15*M*K",
    .backward = {.why_not = "gradients of gradients are not provided"},
};

}  // namespace pestle::ops::rms_adaln_backward
