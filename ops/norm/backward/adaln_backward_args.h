// What the contracts of adaln_backward and rms_adaln_backward have in common: all but the mean.
#pragma once

#include "ops/norm/backward/norm_backward.h"

namespace pestle::ops {

inline constexpr Arg kAdalnBackwardArgs[] = {
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

inline constexpr Constraint kAdalnBackwardConstraints[] = {
    {kModulationGroupRule, kNormGroupSentence},
    {kNormDResidualRule, kNormDResidualSentence},
};

inline constexpr Case kAdalnBackwardCases[] = {
    {"M=6 K=300 scale=bf16 G=2"},
    {"M=2x3 K=1024 x=f16 scale=f16 G=2x3 residual=f16"},
    {"M=2x3 K=64 x=f32 scale=f32 G=2x1 gate=f32 weight=f32 residual=f32"},
    {"M=40 K=2056 scale=f32 G=1 gate=f32 residual=bf16 d_residual_out=bf16"},
    {"M=0 K=16 scale=bf16 G=1", kEdge},
    {"M=3 K=0 scale=bf16 G=1", kEdge},
    {"M=1 K=1 x=f32 scale=f32 G=1", kEdge},
    {"M=9 K=64 scale=bf16 G=3", kEdge, Dist::kSpecial},
    {"M=60 K=8 scale=bf16 G=3", kEdge, Dist::kSpecial},
    {"M=9 K=17 x=f32 scale=f32 G=9", kEdge, Dist::kSpecial},
    {"M=4608 K=3072 scale=bf16 G=1", kBar},
    {"M=32760 K=5120 scale=bf16 G=1", kBar},
    {"M=32760 K=5120 scale=bf16 G=1 gate=bf16 residual=bf16", kBar},
};

}  // namespace pestle::ops
