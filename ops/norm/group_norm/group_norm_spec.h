// group_norm: the contract. Maths, floor and figures: group_norm.md
#pragma once

#include "ops/norm/group/channel_groups.h"

namespace pestle::ops::group_norm {

inline constexpr Arg args[] = {
    kGroupsX,
    kGroupsWeight,
    kGroupsBias,
    kNormResidual,
    kGroupsGate,
    kGroupsScale,
    kGroupsShift,
    kQuantScaleArg,
    kQuantGlobalScaleArg,
    kept_output(output("out", "=x", "*M, K", "the normalised groups").in_place_of("x"))
        .within(4, "M*K/max(1, size(x,0)*groups)"),
    kNormResidualOut,
    kQuantCodesArg,
    kQuantScaleOutArg,
    int_attr("groups", 32, "neighbouring channels are normalised together: channels / groups each"),
    float_attr("eps", 1e-5, "added to the variance"),
    choice("activation", "none|silu", "what is applied to the result"),
    kOutFormatArg,
    kKeepOutArg,
    kQuantHadamardArg,
    kQuantNibblesArg,
    kQuantScaleLayoutArg,
};

inline constexpr Constraint constraints[] = {
    kGroupsConstraints[0], kGroupsConstraints[1], kGroupsConstraints[2], kGroupsConstraints[3],
    kGroupsConstraints[4], kGroupsConstraints[5], kGroupsConstraints[6], kGroupsConstraints[7],
    kQuantConstraints[0],  kQuantConstraints[1],  kQuantConstraints[2],  kQuantConstraints[3],
    kQuantConstraints[4],  kQuantConstraints[5],  kQuantConstraints[6],
};

inline constexpr Case cases[] = {
    {"M=2x8x3 K=5 weight=f32 bias=f32 C=8 groups=4"},
    {"M=2x64x8 K=8 weight=bf16 bias=f16 C=64 activation=silu"},
    {"M=3 K=12 x=f32 groups=3 weight=f32 C=12"},
    {"M=1x6x7x2 K=3 x=f16 groups=1 activation=silu bias=f32 C=6"},
    {"M=1x4x96 K=96 x=f32 groups=2 weight=f32 bias=f32 C=4", kSmoke, Dist::kOutliers},
    {"M=1x2 K=65544 groups=1 weight=f32 C=2"},
    {"M=1x65 K=2048 groups=1 bias=f32 C=65 activation=silu"},
    {"M=2x64x8 K=8 weight=f32 bias=f32 scale=bf16 shift=bf16 C=64 G=2 activation=silu"},
    {"M=4x8x3 K=5 x=f32 scale=f32 C=8 G=2 groups=4"},
    {"M=2x8x40 K=40 x=f16 residual=f16 weight=f32 bias=f32 shift=f32 C=8 G=1 groups=4"},
    {"M=2x8x8 K=8 x=f32 residual=f32 gate=bf16 weight=f32 C=8 G=2 groups=2 activation=silu"},
    {"M=1x4 K=16424 residual=bf16 gate=f32 C=4 G=1 groups=1 weight=bf16"},
    {"M=1x2x160 K=512 groups=1 weight=f32 bias=bf16 C=2 activation=silu"},
    {"M=1x2x40 K=512 x=f16 residual=f16 gate=f32 shift=f32 C=2 G=1 groups=1"},
    {"M=2x8x8 K=16 weight=f32 C=8 groups=4 q_scale=f32 out_format=fp8_tensor activation=silu"},
    {"M=2x8x5 K=33 residual=bf16 groups=4 out_format=fp8_row"},
    {"M=1x4x6 K=64 x=f32 groups=2 out_format=int8_row hadamard=16"},
    {"M=1x4x40 K=48 scale=f32 C=4 G=1 groups=2 out_format=nvfp4"},
    {"M=2x4 K=96 x=f16 groups=2 out_format=mxfp8 scale_layout=plain"},
    {"M=3x8x128 K=128 groups=1 weight=bf16 bias=f32 scale=f32 C=8 G=3 activation=silu"},
    {"M=1x6x128 K=128 x=f16 groups=1 shift=bf16 C=6 G=1 q_scale=f32 out_format=fp8_tensor"},
    {"M=1x4x128 K=128 x=f32 groups=1 weight=f32 bias=f32 C=4 activation=silu"},
    {"M=0x8 K=4 groups=4", kEdge},
    {"M=2x8 K=0 groups=4 weight=f32 C=8", kEdge},
    {"M=1 K=1 x=f32 groups=1", kEdge},
    {"M=3x4 K=24 groups=2 weight=f32 C=4", kEdge, Dist::kSpecial},
    {"M=3x4 K=5 x=f32 groups=4 activation=silu", kEdge, Dist::kSpecial},
    {"M=4x4 K=24 residual=bf16 gate=f32 scale=f32 shift=f32 C=4 G=2 groups=2", kEdge,
     Dist::kSpecial},
    {"M=1x2x40 K=512 x=f32 residual=f32 groups=1 activation=silu", kEdge, Dist::kSpecial},
    {"M=1x8x128 K=128 groups=1 weight=f32 C=8 activation=silu", kEdge, Dist::kSpecial},
    {"M=2x4 K=32 groups=2 out_format=mxfp8", kEdge, Dist::kSpecial},
    {"M=2x4 K=8 x=f32 groups=2", kEdge, Dist::kZeros},
    {"M=16x256x128 K=128 weight=bf16 bias=bf16 C=256 activation=silu", kBar},
    {"M=4x128x320 K=320 weight=f32 bias=f32 C=128", kBar},
    {"M=16x256x128 K=128 weight=bf16 bias=bf16 scale=bf16 shift=bf16 C=256 G=16 activation=silu",
     kBar},
    {"M=16x256x128 K=128 weight=bf16 bias=bf16 residual=bf16 C=256 activation=silu", kBar},
    {"M=1x128x512 K=512 weight=bf16 residual=bf16 gate=bf16 C=128 G=1", kBar},
    {"M=1x128x1024 K=1024 weight=bf16 bias=bf16 C=128 activation=silu", kBar},
    {"M=16x256x128 K=128 weight=bf16 bias=bf16 C=256 activation=silu q_scale=f32 "
     "out_format=fp8_tensor",
     kBar},
};

// Groups beyond 3.5 MiB, with the residual's, are more than the shared memory of a cluster and have
// to be read twice.
inline constexpr OpSpec spec{
    .name = "group_norm",
    .doc =
        "Normalises groups of neighbouring channels of each sample to mean 0 and variance 1, then "
        "weight and bias a channel, modulation a sample and channel, and silu if asked; what is "
        "normalised may be a sum with a residual, the result quantised.",
    .source = "arXiv:1803.08494; ops/norm/group_norm/group_norm.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "8*M*K",
    .bytes =
        "M*K*bytes(x)*(1 + 2*has(residual) + (out_format == none || keep_out)) + "
        "if(out_format == none, 0, if(out_format == nvfp4, M*K*9/16, M*K)) + "
        "if(M*K/max(1, size(x,0)*groups)*bytes(x)*(1 + has(residual)) > 3670016, "
        "M*K*bytes(x)*(1 + has(residual)), 0)",
    .backward = {.op = "group_norm_backward",
                 .call = "d_out=grad(out), x=x, weight=weight, bias=bias, residual=residual, "
                         "gate=gate, scale=scale, shift=shift, d_residual_out=grad(residual_out)",
                 .gives = "x=d_x, weight=d_weight, bias=d_bias, residual=d_residual, gate=d_gate, "
                          "scale=d_scale, shift=d_shift"},
};

}  // namespace pestle::ops::group_norm
