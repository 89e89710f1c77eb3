// layer_norm_backward: the contract. Maths: ops/norm/backward/norm_backward.h
#pragma once

#include "ops/norm/backward/norm_backward.h"

namespace pestle::ops::layer_norm_backward {

inline constexpr Arg args[] = {
    kNormX,
    kNormDOut,
    kNormResidual,
    kNormGate,
    kNormWeight,
    kNormBias,
    kNormDResidualOut,
    kNormDX,
    kNormDResidual,
    kNormDWeight,
    kNormDGate,
    kNormDBias,
    float_attr("eps", 1e-5, "as in the forward call"),
};

inline constexpr Constraint constraints[] = {
    {kNormGroupRule, kNormGroupSentence},
    {kNormDResidualRule, kNormDResidualSentence},
};

inline constexpr Case cases[] = {
    {"M=5 K=300 weight=f32 bias=f32"},
    {"M=2x3 K=1024 x=f16 weight=f16 bias=f32 residual=f16"},
    {"M=7 K=64 x=f32 weight=bf16 gate=f32 G=1 eps=0.001", kSmoke, Dist::kOutliers},
    {"M=24 K=2056 weight=bf16 residual=bf16 gate=bf16 G=3 d_residual_out=bf16"},
    {"M=40 K=1000 bias=f32"},
    {"M=5 K=20000 weight=f32"},
    {"M=0 K=16 weight=f32 bias=f32", kEdge},
    {"M=3 K=0 weight=f32", kEdge},
    {"M=1 K=1 x=f32 weight=f32", kEdge},
    {"M=9 K=17 x=f32 weight=f32", kEdge, Dist::kSpecial},
    {"M=9 K=64 weight=f32 residual=bf16", kEdge, Dist::kSpecial},
    {"M=60 K=8 weight=f32", kEdge, Dist::kSpecial},
    {"M=60 K=8", kEdge, Dist::kSpecial},
    {"M=5 K=40 x=f32 weight=f32", kEdge, Dist::kZeros},
    {"M=11264 K=4096 weight=f32 bias=f32", kBar},
    {"M=2816 K=16384 weight=f32 bias=f32", kBar},
    {"M=704 K=65536 weight=f32 bias=f32", kBar},
    {"M=5632 K=4096 x=f32 weight=f32 bias=f32", kBar},
    {"M=4608 K=3072 weight=bf16 bias=bf16", kBar},
    {"M=32760 K=5120 weight=bf16 bias=bf16", kBar},
};

inline constexpr OpSpec spec{
    .name = "layer_norm_backward",
    .doc =
        "Gradients of layer_norm: of x, residual, gate and all parameters, from x and the gradient "
        "of out.",
    .source = "ops/norm/layer_norm/layer_norm.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "15*M*K",
    .backward = {.why_not = "gradients of gradients are not provided"},
};

}  // namespace pestle::ops::layer_norm_backward
