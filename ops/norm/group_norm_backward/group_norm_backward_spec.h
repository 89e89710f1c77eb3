// group_norm_backward: the contract. Maths: group_norm_backward.md
#pragma once

#include "ops/norm/backward/norm_backward.h"
#include "ops/norm/group/channel_groups.h"

namespace pestle::ops::group_norm_backward {

// Terms of a sum over a channel's planes, those behind each of them included.
inline constexpr const char* kOverSamples = "M*K/max(1, size(x,1)) + M*K/max(1, size(x,0)*groups)";

inline constexpr Arg args[] = {
    kGroupsX,
    input("d_out", "=x", "*M, K", "gradient of out"),
    kGroupsWeight,
    kGroupsBias,
    kNormResidual,
    kGroupsGate,
    kGroupsScale,
    kGroupsShift,
    kNormDResidualOut,
    output("d_x", "=x", "*M, K", "gradient of x").within(4, "M*K/max(1, size(x,0)*groups)"),
    output("d_weight", "=weight", "C", "gradient of weight")
        .only_if("has(weight)")
        .within(4, kOverSamples),
    output("d_bias", "=bias", "C", "gradient of bias").only_if("has(bias)").within(4, kOverSamples),
    output("d_residual", "=x", "*M, K", "gradient of residual")
        .only_if("has(residual)")
        .within(4, "M*K/max(1, size(x,0)*groups)"),
    output("d_gate", "=gate", "G, C", "gradient of gate")
        .only_if("has(gate)")
        .within(4, kOverSamples),
    output("d_scale", "=scale", "G, C", "gradient of scale")
        .only_if("has(scale)")
        .within(4, kOverSamples),
    output("d_shift", "=shift", "G, C", "gradient of shift")
        .only_if("has(shift)")
        .within(4, kOverSamples),
    int_attr("groups", 32, "as in the forward call"),
    float_attr("eps", 1e-5, "as in the forward call"),
    choice("activation", "none|silu", "as in the forward call"),
};

inline constexpr Constraint constraints[] = {
    kGroupsConstraints[0], kGroupsConstraints[1], kGroupsConstraints[2],
    kGroupsConstraints[3], kGroupsConstraints[4], kGroupsConstraints[5],
    kGroupsConstraints[6], kGroupsConstraints[7], {kNormDResidualRule, kNormDResidualSentence},
};

inline constexpr Case cases[] = {
    {"M=2x8x3 K=5 weight=f32 bias=f32 C=8 groups=4"},
    {"M=2x64x4 K=8 weight=bf16 bias=f16 C=64 activation=silu"},
    {"M=3 K=12 x=f32 groups=3 weight=f32 C=12"},
    {"M=1x6x7x2 K=3 x=f16 groups=1 activation=silu bias=f32 C=6"},
    {"M=1x4x72 K=72 x=f32 groups=2 weight=f32 bias=f32 C=4", kSmoke, Dist::kOutliers},
    {"M=2x64x4 K=8 weight=f32 bias=f32 scale=bf16 shift=bf16 C=64 G=2 activation=silu"},
    {"M=4x8x3 K=5 x=f32 scale=f32 bias=f32 C=8 G=2 groups=4"},
    {"M=4x8x20 K=16 x=f16 shift=f32 C=8 G=1 groups=4"},
    {"M=2x8x4 K=8 x=f16 residual=f16 weight=f32 d_residual_out=f16 C=8 groups=4"},
    {"M=4x8x3 K=8 x=f32 residual=f32 gate=bf16 scale=f32 shift=f32 weight=f32 C=8 G=2 groups=2 "
     "activation=silu d_residual_out=f32"},
    {"M=2x4 K=40 gate=f32 C=4 G=2 groups=2"},
    {"M=2x4x70 K=40 residual=bf16 gate=f32 weight=f32 C=4 G=2 groups=2"},
    {"M=0x8 K=4 groups=4 weight=f32 C=8", kEdge},
    {"M=0x8 K=4 groups=4 scale=f32 gate=f32 C=8 G=2", kEdge},
    {"M=2x8 K=0 groups=4 weight=f32 C=8", kEdge},
    {"M=1 K=1 x=f32 groups=1", kEdge},
    {"M=3x4 K=24 groups=2 weight=f32 C=4", kEdge, Dist::kSpecial},
    {"M=3x4 K=5 x=f32 groups=4 activation=silu", kEdge, Dist::kSpecial},
    {"M=3x4 K=8 x=f32 groups=4 residual=f32 gate=f32 scale=f32 C=4 G=1", kEdge, Dist::kSpecial},
    {"M=2x4 K=8 x=f32 groups=2", kEdge, Dist::kZeros},
    {"M=8x320x128 K=128 weight=bf16 bias=bf16 C=320 activation=silu", kBar},
    {"M=8x320x128 K=128 weight=bf16 bias=bf16 scale=bf16 shift=bf16 C=320 G=8 activation=silu",
     kBar},
    {"M=8x320x128 K=128 weight=bf16 bias=bf16 residual=bf16 d_residual_out=bf16 C=320 "
     "activation=silu",
     kBar},
    {"M=1x128x512 K=512 weight=bf16 bias=bf16 C=128 activation=silu", kBar},
};

// With a residual or a gate, and where x and d_out of a group are more than the shared memory of a
// cluster, x and residual are read three times and d_out twice.
inline constexpr OpSpec spec{
    .name = "group_norm_backward",
    .doc =
        "Gradients of group_norm: of x, weight, bias, residual, gate, scale and shift, from the "
        "inputs and the gradients of out and residual_out.",
    .source = "ops/norm/group_norm_backward/group_norm_backward.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "20*M*K",
    .bytes =
        "M*K*bytes(x)*(3 + 2*has(residual) + has(d_residual_out) + "
        "if(has(residual) || has(gate) || "
        "M*K/max(1, size(x,0)*groups)*bytes(x)*2 > 3670016, 3 + 2*has(residual), 0))",
    .backward = {.why_not = "gradients of gradients are not provided"},
};

}  // namespace pestle::ops::group_norm_backward
