// activation_backward: the contract.
#pragma once

#include "ops/activation/activation_args.h"

namespace pestle::ops::activation_backward {

inline constexpr Arg args[] = {
    input("d_out", "bf16|f16|f32", "*M, K", "gradient of activation's result"),
    input("x", "=d_out", "*M, K", "activation's x"),
    output("d_x", "=d_out", "*M, K", "gradient of x").in_place_of("d_out").within(4, "1"),
    activation_choice(),
};

inline constexpr Case cases[] = {
    {"M=3 K=72"},
    {"M=2x5 K=1000 d_out=f32 act=gelu"},
    {"M=7 K=4104 d_out=f16 act=gelu_tanh"},
    {"M=9 K=520 d_out=f32 act=silu", kEdge, Dist::kOutliers},
    {"M=9 K=520 d_out=f32 act=gelu", kEdge, Dist::kOutliers},
    {"M=9 K=520 d_out=f32 act=gelu_tanh", kEdge, Dist::kOutliers},
    {"M=9 K=64 d_out=bf16 act=silu", kEdge, Dist::kSpecial},
    {"M=9 K=64 d_out=f32 act=gelu", kEdge, Dist::kSpecial},
    {"M=9 K=64 d_out=f16 act=gelu_tanh", kEdge, Dist::kSpecial},
    {"M=1 K=1 d_out=f32", kEdge},
    {"M=0 K=8", kEdge},
    {"M=32760 K=13824", kBar},
    {"M=4608 K=12288 act=gelu_tanh", kBar},
};

inline constexpr OpSpec spec{
    .name = "activation_backward",
    .doc = "Gradient of activation's x.",
    .source = "d_x = d_out * act'(x); f32, one rounding",
    .args = args,
    .cases = cases,
    .flops = "15 * numel(x)",
    .backward = {.why_not = "second derivatives are not provided"},
};

}  // namespace pestle::ops::activation_backward
