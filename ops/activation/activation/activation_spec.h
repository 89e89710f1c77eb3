// activation: the contract.
#pragma once

#include "ops/activation/activation_rows.h"

namespace pestle::ops::activation {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M, K", "any values"),
    kQuantScaleArg,
    kQuantGlobalScaleArg,
    kept_output(output("out", "=x", "*M, K", "act(x)")).in_place_of("x").within(4, "1"),
    kQuantCodesArg,
    kQuantScaleOutArg,
    activation_choice(),
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
    {"M=2x5 K=1000 x=f32 act=gelu"},
    {"M=7 K=4104 x=f16 act=gelu_tanh"},
    {"M=5 K=33 x=f32 act=gelu_tanh", kEdge, Dist::kOutliers},
    {"M=9 K=520 x=f32 act=silu", kEdge, Dist::kOutliers},
    {"M=9 K=520 x=f32 act=gelu", kEdge, Dist::kOutliers},
    {"M=9 K=64 x=bf16 act=silu", kEdge, Dist::kSpecial},
    {"M=9 K=64 x=f32 act=gelu", kEdge, Dist::kSpecial},
    {"M=9 K=64 x=f16 act=gelu_tanh", kEdge, Dist::kSpecial},
    {"M=4 K=40 x=f32 act=gelu", kEdge, Dist::kSubnormal},
    {"M=4 K=40 x=bf16 act=silu", kEdge, Dist::kZeros},
    {"M=1 K=1 x=f32", kEdge},
    {"M=0 K=8", kEdge},
    {"M=3 K=0", kEdge},
    {"M=5 K=272 q_scale=f32 out_format=fp8_tensor"},
    {"M=4 K=512 x=f16 act=gelu out_format=fp8_row"},
    {"M=3 K=520 out_format=int8_row keep_out=true"},
    {"M=3 K=1024 x=f32 out_format=int8_row hadamard=256"},
    {"M=130 K=96 global_scale=f32 out_format=nvfp4"},
    {"M=5 K=528 x=f32 act=gelu_tanh out_format=nvfp4 nibbles=low_first scale_layout=plain"},
    {"M=130 K=160 x=f16 out_format=mxfp8"},
    {"M=2 K=9216 out_format=fp8_row", kEdge},
    {"M=3 K=4104 x=f16 act=gelu out_format=int8_row", kEdge},
    {"M=2 K=2056 x=f32 out_format=fp8_row", kEdge, Dist::kSpecial},
    {"M=9 K=64 x=f32 out_format=mxfp8", kEdge, Dist::kSpecial},
    {"M=9 K=64 out_format=fp8_row", kEdge, Dist::kSpecial},
    {"M=9 K=64 out_format=nvfp4", kEdge, Dist::kSpecial},
    {"M=5 K=64 x=f32 out_format=int8_row hadamard=64", kEdge},
    {"M=0 K=32 out_format=int8_row", kEdge},
    {"M=4608 K=12288 act=gelu_tanh", kBar},
    {"M=32760 K=13824", kBar},
    {"M=32760 K=13824 act=gelu", kBar},
    {"M=4608 K=12288 act=silu x=f32", kBar},
    {"M=12288 K=12288 q_scale=f32 out_format=fp8_tensor", kBar},
    {"M=12288 K=12288 out_format=fp8_row", kBar},
    {"M=12288 K=12288 out_format=int8_row", kBar},
    {"M=12288 K=12288 global_scale=f32 out_format=nvfp4", kBar},
    {"M=12288 K=12288 out_format=mxfp8", kBar},
};

inline constexpr OpSpec spec{
    .name = "activation",
    .doc = "SiLU (swish) or GELU, exact or by tanh, of every element.",
    .source =
        "silu = x / (1 + e^-x); gelu = x * Phi(x); gelu_tanh = x * (1 + tanh(sqrt(2/pi) * "
        "(x + 0.044715 x^3))) / 2; f32, one rounding to x's dtype",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "10 * numel(x)",
    .backward = {.op = "activation_backward", .call = "d_out=grad(out), x=x", .gives = "x=d_x"},
};

}  // namespace pestle::ops::activation
