// adaln: the contract. Maths, floor and figures: adaln.md
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops::adaln {

inline constexpr Arg args[] = {
    kNormX,
    kNormResidual,
    kNormGate,
    kNormWeight,
    kNormScale,
    kNormShift,
    kQuantScaleArg,
    kQuantGlobalScaleArg,
    kNormOut,
    kNormResidualOut,
    kQuantCodesArg,
    kQuantScaleOutArg,
    float_attr("eps", 1e-6, "added to the mean squared difference, the variance"),
    kOutFormatArg,
    kKeepOutArg,
    kQuantHadamardArg,
    kQuantNibblesArg,
    kQuantScaleLayoutArg,
};

inline constexpr Constraint constraints[] = {
    {kModulationGroupRule, kNormGroupSentence},
    kQuantConstraints[0],
    kQuantConstraints[1],
    kQuantConstraints[2],
    kQuantConstraints[3],
    kQuantConstraints[4],
    kQuantConstraints[5],
    kQuantConstraints[6],
};

inline constexpr Case cases[] = {
    {"M=6 K=300 scale=bf16 shift=bf16 G=2"},
    {"M=2x3 K=1024 x=f16 scale=f16 shift=f16 G=2x3 residual=f16"},
    {"M=2x3 K=64 x=f32 scale=f32 shift=f32 G=2x1 gate=f32 weight=f32 residual=f32"},
    {"M=4 K=2056 scale=f32 shift=f32 G=1 gate=f32 residual=bf16"},
    {"M=4 K=512 scale=bf16 shift=bf16 G=1 out_format=fp8_row"},
    {"M=130 K=96 scale=bf16 shift=bf16 G=2 out_format=nvfp4"},
    {"M=3 K=1024 scale=bf16 shift=bf16 G=1 out_format=int8_row hadamard=256"},
    {"M=5 K=160 x=f32 scale=f32 shift=f32 G=5 out_format=mxfp8"},
    {"M=5 K=33 scale=bf16 shift=bf16 G=1 q_scale=f32 out_format=fp8_tensor"},
    {"M=0 K=16 scale=bf16 shift=bf16 G=1", kEdge},
    {"M=3 K=0 scale=bf16 shift=bf16 G=1", kEdge},
    {"M=1 K=1 x=f32 scale=f32 shift=f32 G=1", kEdge},
    {"M=9 K=64 scale=bf16 shift=bf16 G=3", kEdge, Dist::kSpecial},
    {"M=9 K=17 x=f32 scale=f32 shift=f32 G=9", kEdge, Dist::kSpecial},
    {"M=4608 K=3072 scale=bf16 shift=bf16 G=1", kBar},
    {"M=32760 K=5120 scale=bf16 shift=bf16 G=1", kBar},
    {"M=8192 K=4096 x=f32 scale=f32 shift=f32 G=2", kBar},
    {"M=32760 K=5120 scale=bf16 shift=bf16 G=1 gate=bf16 residual=bf16", kBar},
    {"M=20480 K=5120 scale=bf16 shift=bf16 G=1 out_format=fp8_row", kBar},
    {"M=20480 K=5120 scale=bf16 shift=bf16 G=1 out_format=nvfp4", kBar},
};

inline constexpr OpSpec spec{
    .name = "adaln",
    .doc =
        "Layer norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + "
        "scale) + shift.",
    .source = "arXiv:2212.09748; ops/norm/adaln/adaln.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "7*M*K",
    .backward = {.op = "adaln_backward",
                 .call = "d_out=grad(out), x=x, residual=residual, gate=gate, weight=weight, "
                         "d_residual_out=grad(residual_out), scale=scale",
                 .gives = "x=d_x, residual=d_residual, gate=d_gate, weight=d_weight, "
                          "scale=d_scale, shift=d_shift"},
};

}  // namespace pestle::ops::adaln
