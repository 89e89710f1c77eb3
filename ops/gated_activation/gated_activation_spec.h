// gated_activation: the contract.
#pragma once

#include "ops/common/activation_args.h"

namespace pestle::ops::gated_activation {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", kGatedShape, "what act takes; or both factors side by side")
        .selected_by("layout"),
    input("gate", "=x", "*M, K", "the other factor").only_if("layout == pair"),
    output("out", "=x", "*M, K", "act(x) * gate").within(4, "1"),
    activation_choice(),
    gated_layout(),
};

inline constexpr Case cases[] = {
    {"M=3 K=72"},
    {"M=2x5 K=1000 x=f32 act=gelu layout=act_last"},
    {"M=7 K=4104 x=f16 act=gelu_tanh layout=act_first"},
    {"M=5 K=33 x=f32 act=gelu_tanh layout=act_last", kEdge, Dist::kOutliers},
    {"M=9 K=520 x=bf16", kEdge, Dist::kOutliers},
    {"M=9 K=64 x=bf16", kEdge, Dist::kSpecial},
    {"M=9 K=64 x=f32 act=gelu layout=act_last", kEdge, Dist::kSpecial},
    {"M=9 K=64 x=f16 act=gelu_tanh layout=act_first", kEdge, Dist::kSpecial},
    {"M=1 K=1 x=f32 layout=act_first", kEdge},
    {"M=0 K=8", kEdge},
    {"M=3 K=0 layout=act_last", kEdge},
    {"M=4608 K=12288 layout=act_first", kBar},
    {"M=4608 K=12288 act=gelu layout=act_last", kBar},
    {"M=32760 K=13824", kBar},
    {"M=32760 K=13824 act=gelu_tanh", kBar},
    {"M=32760 K=13824 act=gelu", kBar},
};

inline constexpr OpSpec spec{
    .name = "gated_activation",
    .doc =
        "silu_mul, gelu_mul, swiglu, geglu: an activation times a gate, in two tensors or the "
        "halves of one.",
    .source = "out = act(x) * gate, act as in activation; f32, one rounding to x's dtype",
    .args = args,
    .cases = cases,
    .flops = "11 * numel(out)",
    .backward = {.op = "gated_activation_backward",
                 .call = "d_out=grad(out), x=x, gate=gate",
                 .gives = "x=d_x, gate=d_gate"},
};

}  // namespace pestle::ops::gated_activation
