// log_softmax_backward: the contract.
#pragma once

#include "ops/softmax/softmax_args.h"

namespace pestle::ops::log_softmax_backward {

inline constexpr Arg args[] = {
    input("d_out", kFloats, "*S", "gradient of log_softmax's result"),
    input("out", "=d_out", "*S", "log_softmax's result"),
    output("d_x", "=d_out", "*S", "gradient of log_softmax's x")
        .in_place_of("d_out")
        .within(4, "size(out, dim)"),
    softmax_dim("the dimension that log_softmax went along"),
    softmax_scale("what log_softmax multiplied x by"),
};

inline constexpr Constraint constraints[] = {kDimOfOut};

inline constexpr Case cases[] = {
    {"S=3x64"},
    {"S=2x3x1000 d_out=f32 scale=0.125"},
    {"S=5x4104 d_out=f16"},
    {"S=3x17x8 d_out=f32 dim=1"},
    {"S=2x8x24 dim=-3", kEdge},
    {"S=2x33000 d_out=f32", kEdge},
    {"S=2x270000 d_out=f32", kEdge},
    {"S=70x96", kEdge, Dist::kSpecial},
    {"S=70x40 d_out=f32", kEdge, Dist::kSpecial},
    {"S=9x2048 d_out=f16", kEdge, Dist::kOutliers},
    {"S=3x72 d_out=f32", kEdge, Dist::kSubnormal},
    {"S=1 d_out=f32", kEdge},
    {"S=0x8", kEdge},
    {"S=3x0 d_out=f32", kEdge},
    {"S=32768x4096", kBar},
    {"S=2048x65536", kBar},
    {"S=4096x16384 d_out=f32", kBar},
    {"S=256x262144 d_out=f32", kBar},
};

inline constexpr OpSpec spec{
    .name = "log_softmax_backward",
    .doc = "Gradient of log_softmax from its result.",
    .source = "d_x = scale * (d_out - exp(out) * sum of d_out along dim)",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "6 * numel(out)",
    .backward = {.why_not = "second derivatives are not provided"},
};

}  // namespace pestle::ops::log_softmax_backward
