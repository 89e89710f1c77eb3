// gated_activation: the contract.
#pragma once

#include "ops/activation/activation_rows.h"

namespace pestle::ops::gated_activation {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", kGatedShape, "what act takes; or both factors side by side")
        .selected_by("layout"),
    input("gate", "=x", "*M, K", "the other factor").only_if("layout == pair"),
    kQuantScaleArg,
    kQuantGlobalScaleArg,
    kept_output(output("out", "=x", "*M, K", "act(x) * gate")).within(4, "1"),
    kQuantCodesArg,
    kQuantScaleOutArg,
    activation_choice(),
    gated_layout(),
    kOutFormatArg,
    kKeepOutArg,
    kQuantHadamardArg,
    kQuantNibblesArg,
    kQuantScaleLayoutArg,
};

inline constexpr Constraint constraints[] = {
    kQuantConstraints[0], kQuantConstraints[1], kQuantConstraints[2], kQuantConstraints[3],
    kQuantConstraints[4], kQuantConstraints[5], kQuantConstraints[6],
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
    {"M=5 K=272 layout=act_first q_scale=f32 out_format=fp8_tensor"},
    {"M=4 K=512 x=f16 act=gelu layout=act_first out_format=fp8_row"},
    {"M=3 K=520 layout=act_first out_format=int8_row keep_out=true"},
    {"M=3 K=1024 x=f32 layout=act_first out_format=int8_row hadamard=256"},
    {"M=130 K=96 layout=act_first global_scale=f32 out_format=nvfp4"},
    {"M=5 K=528 x=f32 act=gelu_tanh layout=act_first out_format=nvfp4 nibbles=low_first "
     "scale_layout=plain"},
    {"M=130 K=160 x=f16 layout=act_first out_format=mxfp8"},
    {"M=2 K=9216 layout=act_first out_format=fp8_row", kEdge},
    {"M=9 K=64 x=f32 layout=act_first out_format=mxfp8", kEdge, Dist::kSpecial},
    {"M=9 K=64 layout=act_first out_format=fp8_row", kEdge, Dist::kSpecial},
    {"M=9 K=64 layout=act_first out_format=nvfp4", kEdge, Dist::kSpecial},
    {"M=5 K=64 x=f32 layout=act_first out_format=int8_row hadamard=64", kEdge},
    {"M=0 K=32 out_format=int8_row", kEdge},
    {"M=4608 K=12288 layout=act_first", kBar},
    {"M=4608 K=12288 act=gelu layout=act_last", kBar},
    {"M=32760 K=13824", kBar},
    {"M=32760 K=13824 act=gelu_tanh", kBar},
    {"M=32760 K=13824 act=gelu", kBar},
    {"M=8192 K=12288 layout=act_first q_scale=f32 out_format=fp8_tensor", kBar},
    {"M=8192 K=12288 layout=act_first out_format=fp8_row", kBar},
    {"M=8192 K=12288 layout=act_first out_format=int8_row", kBar},
    {"M=8192 K=12288 layout=act_first global_scale=f32 out_format=nvfp4", kBar},
    {"M=8192 K=12288 layout=act_first out_format=mxfp8", kBar},
};

inline constexpr OpSpec spec{
    .name = "gated_activation",
    .doc =
        "silu_mul, gelu_mul, swiglu, geglu: an activation times a gate, in two tensors or the "
        "halves of one.",
    .source = "out = act(x) * gate, act as in activation; f32, one rounding to x's dtype",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "11 * numel(out)",
    .backward = {.op = "gated_activation_backward",
                 .call = "d_out=grad(out), x=x, gate=gate",
                 .gives = "x=d_x, gate=d_gate"},
};

}  // namespace pestle::ops::gated_activation
