// rms_adaln_backward: the contract. Maths: ops/common/norm_backward.h
#pragma once

#include "ops/common/norm_backward.h"

namespace pestle::ops::rms_adaln_backward {

inline constexpr Arg args[] = {
    kNormX,
    kNormDOut,
    kNormResidual,
    kNormGate,
    kNormWeight,
    kNormScale,
    kNormDResidualOut,
    kNormDX,
    kNormDResidual,
    kNormDWeight,
    kNormDGate,
    kNormDScale,
    kNormDShift,
    float_attr("eps", 1e-6, "as in the forward call"),
};

inline constexpr Constraint constraints[] = {
    {kModulationGroupRule, kNormGroupSentence},
    {kNormDResidualRule, kNormDResidualSentence},
};

inline constexpr Case cases[] = {
    {"M=6 K=300 scale=bf16 G=2"},
    {"M=2x3 K=1024 x=f16 scale=f16 G=2x3 residual=f16"},
    {"M=2x3 K=64 x=f32 scale=f32 G=2x1 gate=f32 weight=f32 residual=f32"},
    {"M=40 K=2056 scale=f32 G=1 gate=f32 residual=bf16 d_residual_out=bf16"},
    {"M=0 K=16 scale=bf16 G=1", kEdge},
    {"M=3 K=0 scale=bf16 G=1", kEdge},
    {"M=1 K=1 x=f32 scale=f32 G=1", kEdge},
    {"M=9 K=64 scale=bf16 G=3", kEdge, Dist::kSpecial},
    {"M=9 K=17 x=f32 scale=f32 G=9", kEdge, Dist::kSpecial},
    {"M=4608 K=3072 scale=bf16 G=1", kBar},
    {"M=32760 K=5120 scale=bf16 G=1", kBar},
    {"M=32760 K=5120 scale=bf16 G=1 gate=bf16 residual=bf16", kBar},
};

inline constexpr OpSpec spec{
    .name = "rms_adaln_backward",
    .doc =
        "Gradients of rms_adaln: of x, residual, gate and all parameters, from x and the gradient "
        "of out.",
    .source = "ops/rms_adaln/rms_adaln.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "15*M*K",
    .backward = {.why_not = "gradients of gradients are not provided"},
};

}  // namespace pestle::ops::rms_adaln_backward
