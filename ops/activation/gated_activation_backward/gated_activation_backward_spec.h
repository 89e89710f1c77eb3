// gated_activation_backward: the contract.
#pragma once

#include "ops/activation/activation_args.h"

namespace pestle::ops::gated_activation_backward {

inline constexpr Arg args[] = {
    input("d_out", "bf16|f16|f32", "*M, K", "gradient of gated_activation's result"),
    input("x", "=d_out", kGatedShape, "gated_activation's x").selected_by("layout"),
    input("gate", "=d_out", "*M, K", "gated_activation's gate").only_if("layout == pair"),
    output("d_x", "=d_out", kGatedShape, "gradient of x, of both halves where x holds both")
        .selected_by("layout")
        .within(4, "1"),
    output("d_gate", "=d_out", "*M, K", "gradient of gate")
        .only_if("layout == pair")
        .within(4, "1"),
    activation_choice(),
    gated_layout(),
};

inline constexpr Case cases[] = {
    {"M=3 K=72"},
    {"M=2x5 K=1000 d_out=f32 act=gelu layout=act_last"},
    {"M=7 K=4104 d_out=f16 act=gelu_tanh layout=act_first"},
    {"M=9 K=520 d_out=f32", kEdge, Dist::kOutliers},
    {"M=9 K=64", kEdge, Dist::kSpecial},
    {"M=9 K=64 d_out=f32 act=gelu layout=act_last", kEdge, Dist::kSpecial},
    {"M=9 K=64 d_out=f16 act=gelu_tanh layout=act_first", kEdge, Dist::kSpecial},
    {"M=1 K=1 d_out=f32 layout=act_first", kEdge},
    {"M=0 K=8", kEdge},
    {"M=32760 K=13824", kBar},
    {"M=4608 K=12288 act=gelu layout=act_last", kBar},
};

inline constexpr OpSpec spec{
    .name = "gated_activation_backward",
    .doc = "Gradients of gated_activation (silu_mul, gelu_mul, swiglu, geglu).",
    .source = "d_x = (d_out * gate) * act'(x), d_gate = d_out * act(x); f32, one rounding",
    .args = args,
    .cases = cases,
    .flops = "25 * numel(d_out)",
    .backward = {.why_not = "second derivatives are not provided"},
};

}  // namespace pestle::ops::gated_activation_backward
