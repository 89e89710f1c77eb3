// layer_norm: the contract. Maths, floor and figures: layer_norm.md
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops::layer_norm {

inline constexpr Arg args[] = {
    kNormX,
    kNormResidual,
    kNormGate,
    kNormWeight,
    kNormBias,
    kQuantScaleArg,
    kQuantGlobalScaleArg,
    kNormOut,
    kNormResidualOut,
    kQuantCodesArg,
    kQuantScaleOutArg,
    float_attr("eps", 1e-5, "added to the mean squared difference, the variance"),
    kOutFormatArg,
    kKeepOutArg,
    kQuantHadamardArg,
    kQuantNibblesArg,
    kQuantScaleLayoutArg,
};

inline constexpr Constraint constraints[] = {
    {kNormGroupRule, kNormGroupSentence},
    kQuantConstraints[0],
    kQuantConstraints[1],
    kQuantConstraints[2],
    kQuantConstraints[3],
    kQuantConstraints[4],
    kQuantConstraints[5],
    kQuantConstraints[6],
};

inline constexpr Case cases[] = {
    {"M=5 K=300 weight=f32 bias=f32"},
    {"M=2x3 K=1024 x=f16 weight=f16 bias=bf16 residual=f16"},
    {"M=7 K=64 x=f32 weight=bf16 gate=f32 G=1 eps=0.001", kSmoke, Dist::kOutliers},
    {"M=6 K=2056 weight=bf16 bias=bf16 residual=bf16 gate=bf16 G=3"},
    {"M=2 K=40000 weight=f32"},
    {"M=4 K=512 weight=f32 bias=f32 out_format=fp8_row"},
    {"M=3 K=1024 weight=f32 out_format=int8_row hadamard=64"},
    {"M=130 K=96 weight=f32 bias=bf16 out_format=nvfp4"},
    {"M=5 K=160 x=f32 out_format=mxfp8 residual=f32"},
    {"M=5 K=33 x=f16 q_scale=f32 out_format=fp8_tensor"},
    {"M=9 K=64 out_format=fp8_row", kEdge, Dist::kSpecial},
    {"M=0 K=16 weight=f32", kEdge},
    {"M=9 K=1000 x=f32", kEdge, Dist::kOffset},
    {"M=9 K=2056", kEdge, Dist::kOffset},
    {"M=3 K=0", kEdge},
    {"M=1 K=1 x=f32 bias=f32", kEdge},
    {"M=9 K=17 x=f32 weight=f32", kEdge, Dist::kSpecial},
    {"M=9 K=64 weight=f32 residual=bf16", kEdge, Dist::kSpecial},
    {"M=5 K=40 x=f32", kEdge, Dist::kZeros},
    {"M=5 K=40 x=f32 weight=f32 eps=1e-12", kEdge, Dist::kSubnormal},
    {"M=16384 K=4096 weight=f32 bias=f32", kBar},
    {"M=1024 K=65536 weight=f32 bias=f32", kBar},
    {"M=8192 K=4096 x=f32 weight=f32 bias=f32", kBar},
    {"M=4608 K=3072 weight=bf16 bias=bf16", kBar},
    {"M=32760 K=5120 weight=bf16 bias=bf16", kBar},
    {"M=20480 K=5120 weight=bf16 bias=bf16 out_format=int8_row", kBar},
    {"M=20480 K=5120 weight=bf16 out_format=int8_row hadamard=256", kBar},
};

inline constexpr OpSpec spec{
    .name = "layer_norm",
    .doc =
        "Subtracts each row's mean and divides by its standard deviation (variance plus eps), "
        "times weight, plus bias; the row may be a sum with a residual, the result quantised.",
    .source = "arXiv:1607.06450; ops/norm/layer_norm/layer_norm.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "7*M*K",
    .backward = {.op = "layer_norm_backward",
                 .call = "d_out=grad(out), x=x, residual=residual, gate=gate, weight=weight, "
                         "d_residual_out=grad(residual_out), bias=bias",
                 .gives = "x=d_x, residual=d_residual, gate=d_gate, weight=d_weight, bias=d_bias"},
};

}  // namespace pestle::ops::layer_norm
