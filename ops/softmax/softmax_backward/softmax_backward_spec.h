// softmax_backward: the contract.
#pragma once

#include "ops/softmax/softmax_args.h"

namespace pestle::ops::softmax_backward {

inline constexpr Arg args[] = {
    input("d_out", kFloats, "*S", "gradient of softmax's result"),
    input("out", "=d_out", "*S", "softmax's result"),
    output("d_x", "=d_out", "*S", "gradient of softmax's x")
        .in_place_of("d_out")
        .within(4, "size(out, dim)"),
    softmax_dim("the dimension that softmax went along"),
    softmax_scale("what softmax multiplied x by"),
};

inline constexpr Constraint constraints[] = {kDimOfOut};

inline constexpr Case cases[] = {
    {"S=3x64"},
    {"S=2x3x1000 d_out=f32 scale=0.125"},
    {"S=5x4104 d_out=f16"},
    {"S=3x17x8 d_out=f32 dim=1"},
    {"S=2x8x24 dim=-3", kEdge},
    {"S=2x33000 d_out=f32", kEdge},
    {"S=2x270000 d_out=f32", kEdge, Dist::kSpecial},
    {"S=70x96", kEdge, Dist::kSpecial},
    {"S=70x40 d_out=f32", kEdge, Dist::kSpecial},
    {"S=9x2048 d_out=f16", kEdge, Dist::kOutliers},
    {"S=3x72 d_out=f32", kEdge, Dist::kSubnormal},
    {"S=1 d_out=f32", kEdge},
    {"S=0x8", kEdge},
    {"S=3x0 d_out=f32", kEdge},
    {"S=131072x1024", kBar},
    {"S=32768x4096", kBar},
    {"S=8192x16384", kBar},
    {"S=2048x65536", kBar},
    {"S=512x262144", kBar},
    {"S=65536x1024 d_out=f32", kBar},
    {"S=16384x4096 d_out=f32", kBar},
    {"S=4096x16384 d_out=f32", kBar},
    {"S=1024x65536 d_out=f32", kBar},
    {"S=256x262144 d_out=f32", kBar},
    {"S=32760x5120", kBar},
};

inline constexpr OpSpec spec{
    .name = "softmax_backward",
    .doc = "Gradient of softmax from its result.",
    .source = "d_x = scale * out * (d_out - sum of d_out * out along dim)",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "5 * numel(out)",
    .backward = {.why_not = "second derivatives are not provided"},
};

}  // namespace pestle::ops::softmax_backward
