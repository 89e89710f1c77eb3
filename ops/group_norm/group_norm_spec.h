// group_norm: the contract. Maths, floor and figures: group_norm.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::group_norm {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*S", "batch, channels, and any dimensions behind them"),
    input("weight", "f32|bf16|f16", "C", "multiplies each channel").optional(),
    input("bias", "f32|bf16|f16", "C", "added to each channel after weight").optional(),
    output("out", "=x", "*S", "the normalised groups")
        .in_place_of("x")
        .within(4, "S/max(1, size(x,0)*groups)"),
    int_attr("groups", 32, "neighbouring channels are normalised together: channels / groups each"),
    float_attr("eps", 1e-5, "added to the variance"),
    choice("activation", "none|silu", "what is applied to the result"),
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
    {"S=2x64x8x8 weight=bf16 bias=f16 C=64 activation=silu"},
    {"S=3x12 x=f32 groups=3 weight=f32 C=12"},
    {"S=1x6x7x2x3 x=f16 groups=1 activation=silu bias=f32 C=6"},
    {"S=1x4x96x96 x=f32 groups=2 weight=f32 bias=f32 C=4", kSmoke, Dist::kOutliers},
    {"S=1x2x131104 groups=1 weight=f32 C=2"},
    {"S=0x8x4 groups=4", kEdge},
    {"S=2x8x0 groups=4 weight=f32 C=8", kEdge},
    {"S=1x1 x=f32 groups=1", kEdge},
    {"S=3x4x24 groups=2 weight=f32 C=4", kEdge, Dist::kSpecial},
    {"S=3x4x5 x=f32 groups=4 activation=silu", kEdge, Dist::kSpecial},
    {"S=2x4x8 x=f32 groups=2", kEdge, Dist::kZeros},
    {"S=16x256x128x128 weight=bf16 bias=bf16 C=256 activation=silu", kBar},
    {"S=4x128x320x320 weight=f32 bias=f32 C=128", kBar},
};

// Groups beyond 3.5 MiB, more than the shared memory of a cluster, have to be read twice.
inline constexpr OpSpec spec{
    .name = "group_norm",
    .doc =
        "Normalises groups of neighbouring channels of each sample to mean 0 and variance 1, then "
        "weight and bias a channel, and silu if asked.",
    .source = "arXiv:1803.08494; ops/group_norm/group_norm.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "8*S",
    .bytes = "S*bytes(x)*if(S/max(1, size(x,0)*groups)*bytes(x) > 3670016, 3, 2)",
    .backward = {.op = "group_norm_backward",
                 .call = "d_out=grad(out), x=x, weight=weight, bias=bias",
                 .gives = "x=d_x, weight=d_weight, bias=d_bias"},
};

}  // namespace pestle::ops::group_norm
