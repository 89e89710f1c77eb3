// group_norm_backward: the contract. Maths: group_norm_backward.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::group_norm_backward {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*S", "batch, channels, and any dimensions behind them"),
    input("d_out", "=x", "*S", "gradient of out"),
    input("weight", "f32|bf16|f16", "C", "multiplies each channel").optional(),
    input("bias", "f32|bf16|f16", "C", "added to each channel after weight").optional(),
    output("d_x", "=x", "*S", "gradient of x").within(4, "S/max(1, size(x,0)*groups)"),
    output("d_weight", "=weight", "C", "gradient of weight")
        .only_if("has(weight)")
        .within(4, "S/max(1, size(x,1)) + S/max(1, size(x,0)*groups)"),
    output("d_bias", "=bias", "C", "gradient of bias")
        .only_if("has(bias)")
        .within(4, "S/max(1, size(x,1)) + S/max(1, size(x,0)*groups)"),
    int_attr("groups", 32, "as in the forward call"),
    float_attr("eps", 1e-5, "as in the forward call"),
    choice("activation", "none|silu", "as in the forward call"),
};

inline constexpr Constraint constraints[] = {
    {"rank(x) >= 2", "x must have at least two dimensions, batch and channels"},
    {"groups >= 1 && size(x,1) % max(groups,1) == 0",
     "groups must divide the channels, x's second dimension"},
    {"!has(weight) || size(weight,0) == size(x,1)", "weight must have an element a channel"},
    {"!has(bias) || size(bias,0) == size(x,1)", "bias must have an element a channel"},
};

inline constexpr Case cases[] = {
    {"S=2x8x3x5 weight=f32 bias=f32 C=8 groups=4"},
    {"S=2x64x4x8 weight=bf16 bias=f16 C=64 activation=silu"},
    {"S=3x12 x=f32 groups=3 weight=f32 C=12"},
    {"S=1x6x7x2x3 x=f16 groups=1 activation=silu bias=f32 C=6"},
    {"S=1x4x72x72 x=f32 groups=2 weight=f32 bias=f32 C=4", kSmoke, Dist::kOutliers},
    {"S=0x8x4 groups=4 weight=f32 C=8", kEdge},
    {"S=2x8x0 groups=4 weight=f32 C=8", kEdge},
    {"S=1x1 x=f32 groups=1", kEdge},
    {"S=3x4x24 groups=2 weight=f32 C=4", kEdge, Dist::kSpecial},
    {"S=3x4x5 x=f32 groups=4 activation=silu", kEdge, Dist::kSpecial},
    {"S=2x4x8 x=f32 groups=2", kEdge, Dist::kZeros},
    {"S=8x320x128x128 weight=bf16 bias=bf16 C=320 activation=silu", kBar},
};

inline constexpr OpSpec spec{
    .name = "group_norm_backward",
    .doc = "Gradients of group_norm: of x, weight and bias, from x and the gradient of out.",
    .source = "ops/group_norm_backward/group_norm_backward.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "20*S",
    .backward = {.why_not = "gradients of gradients are not provided"},
};

}  // namespace pestle::ops::group_norm_backward
