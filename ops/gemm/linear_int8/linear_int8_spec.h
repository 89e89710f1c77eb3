// linear_int8: the contract. Numerics: docs/formats/int8.md
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/linear/linear_args.h"
#include "ops/gemm/linear/linear_output.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::linear_int8 {

inline constexpr Arg own_args[] = {
    kInputX,
    input("weight", "i8", "N, K", "codes, one row per output column"),
    input("scale", "f32", "tensor: 1; row: N, 1; group: N, cdiv(K,group_size)",
          "decode scale: a code stands for code * scale")
        .selected_by("granularity"),
    kept_output(output("out", PESTLE_GEMM_DTYPES("x"), "*M, " PESTLE_OUT_COLUMNS,
                       "epilogue(x @ W^T), W the decoded weight"))
        .selected_by("out_format")
        .within(4, "K"),
    choice("granularity", "tensor|row|group", "which elements of the weight share a scale"),
    int_attr("group_size", 128, "columns that share a scale, granularity=group"),
    int_attr("hadamard", 0, kLinearHadamardDoc),
    choice(
        "activations", "float|row",
        "row: x, rotated if the weight is, becomes INT8 codes with a scale a row, and the product "
        "is one of integers"),
};
inline constexpr auto args = joined(joined(with_epilogue(own_args), kInputArgs), kRowsOutputArgs);

inline constexpr Constraint own_constraints[] = {
    kInputConstraint,
    kEvenPairs,
    kGateRows,
    kBetaNeedsResidual,
    {"group_size >= 1", "group_size must be at least 1"},
    kHadamardRule,
    {"activations == float || granularity != group",
     "activations=row multiplies integers, so the weight's scales must be of rows or of all"},
};
inline constexpr auto constraints = with_rows_output(
    own_constraints, "rank(x) == 2 || (out_format != nvfp4 && out_format != mxfp8)");

inline constexpr Case cases[] = {
    {"M=1 N=64 K=256"},
    {"M=16 N=96 K=512 granularity=row bias=bf16"},
    {"M=1 N=37 K=129 x=f32 out=f32 granularity=row bias=f32 activation=silu"},
    {"M=1 N=130 K=300 x=f16 out=f32 granularity=group group_size=48"},
    {"M=6 N=130 K=300 x=f16 out=f16 granularity=group group_size=100 bias=f32"},
    {"M=1 N=259 K=1280 granularity=row hadamard=256 out=f32 residual=bf16"},
    {"M=2x3 N=131 K=1024 granularity=group hadamard=1024 out=f32 alpha=f32 activation=gelu_tanh"},
    {"M=133 N=50 K=640 granularity=group group_size=32 hadamard=64"},
    {"M=140 N=264 K=640 granularity=row activations=row bias=f32 residual=bf16"},
    {"M=70 N=200 K=512 x=f16 hadamard=256 activations=row out=f16 activation=gelu_tanh"},
    {"M=5 N=96 K=320 x=f32 granularity=row activations=row out=f32"},
    {"M=5 N=13 K=33 granularity=row activations=row", kEdge, Dist::kOutliers},
    {"M=3 N=8 K=0 activations=row", kEdge},
    {"M=9 N=34 K=64 granularity=row gated=act_first activation=silu bias=f32"},
    {"M=6 N=38 K=64 granularity=row out=f32 gated=act_last activation=gelu alpha=f32 residual=bf16",
     kEdge},
    {"M=2x4 N=40 K=64 granularity=row gate=bf16 G=2 residual=f32 beta=f32"},
    {"M=140 N=272 K=640 granularity=row activations=row gated=act_first activation=silu bias=f32"},
    {"M=256 N=72 K=160 granularity=row activations=row gate=f32 G=2 residual=bf16 bias=bf16"},
    {"M=5 N=24 K=33 granularity=row activations=row gated=act_last gate=f16 G=1", kEdge},
    {"M=300 N=530 K=1056 granularity=row bias=f32 residual=bf16 activation=silu"},
    // k in parts, where multiprocessors are more than tiles.
    {"M=150 N=203 K=1696 granularity=row out=f32 bias=bf16 residual=f32 beta=f32 activation=gelu"},
    {"M=2x70 N=333 K=2080 granularity=group group_size=64 x=f16 alpha=f32 gate=bf16 G=2", kEdge},
    {"M=150 N=141 K=1312 granularity=row out=f32", kEdge, Dist::kSpecial},
    {"M=150 N=141 K=1280 granularity=group group_size=64 out=f32", kEdge, Dist::kSpecial},
    {"M=33 N=131 K=1056 granularity=row out=f32", kEdge, Dist::kSubnormal},
    {"M=97 N=300 K=736 x=f16 out=f32", kEdge, Dist::kSpecial},
    {"M=66 N=140 K=96 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=140 N=270 K=416 granularity=group group_size=128 gate=bf16 G=2 out=f32"},
    {"M=130 N=140 K=672 x=f16 granularity=group group_size=64 out=f32", kEdge, Dist::kSpecial},
    {"M=131 N=140 K=288 granularity=group group_size=32"},
    {"M=0 N=8 K=16 activations=row", kEdge},
    {"M=9 N=96 K=320 granularity=row activations=row input_act=gelu_tanh"},
    {"M=5 N=72 K=256 x=f16 out=f16 granularity=row activations=row input_act=swiglu hadamard=64"},
    {"M=2x3 N=64 K=512 granularity=row activations=row input_act=rms_norm norm_weight=f32 "
     "bias=f32"},
    {"M=33 N=40 K=96 x=f32 out=f32 activations=row input_act=geglu input_layout=act_last"},
    {"M=4 N=40 K=96 x=f32 out=f32 input_act=geglu_tanh granularity=group group_size=32"},
    {"M=2 N=33 K=128 input_act=rms_norm eps=0.001 residual=bf16 hadamard=16"},
    {"M=3 N=24 K=80 x=f16 input_act=silu granularity=row"},
    // Long enough for split-K.
    {"M=70 N=40 K=7184 granularity=row activations=row bias=bf16 residual=bf16"},
    {"M=33 N=40 K=7168 granularity=row activations=row hadamard=256 input_act=silu"},
    {"M=3 N=16 K=64 granularity=row activations=row input_act=gelu", kEdge, Dist::kZeros},
    {"M=0 N=8 K=16 input_act=swiglu activations=row", kEdge},
    {"M=3 N=8 K=0 input_act=rms_norm activations=row", kEdge},
    {"M=5 N=48 K=40 q_scale=f32 out_format=fp8_tensor bias=f32"},
    {"M=2x3 N=72 K=48 granularity=row activations=row out_format=int8_row input_act=silu"},
    {"M=9 N=128 K=64 granularity=row activations=row out_format=int8_row out_hadamard=64 "
     "keep_out=true"},
    {"M=5 N=96 K=72 out_format=mxfp8 scale_layout=plain"},
    // Decoded to x's dtype first.
    {"M=1536 N=40 K=64 granularity=row bias=f32 residual=bf16 activation=silu"},
    {"M=2050 N=36 K=32 x=f16 out=f32 granularity=row", kEdge},
    {"M=2x1024 N=24 K=32 alpha=f32 gate=bf16 G=2 residual=bf16 beta=f32", kEdge},
    {"M=2048 N=12 K=32 out=f32", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 x=f16 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 out=f32 granularity=row", kEdge, Dist::kSubnormal},
    {"M=0 N=8 K=16", kEdge},
    {"M=3 N=0 K=16", kEdge},
    {"M=2 N=3 K=0 out=f32 bias=f32", kEdge},
    {"M=1 N=1 K=1", kEdge},
    {"M=1 N=9 K=300 x=f32 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=304 x=f32 out=f32 granularity=group group_size=16", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=256 x=f32 out=f32 hadamard=16", kEdge, Dist::kSubnormal},
    {"M=1 N=9 K=96", kEdge, Dist::kZeros},
    {"M=1 N=6 K=16384 x=f32 out=f32 granularity=row", kSmoke, Dist::kOutliers},
    {"M=11 N=40 K=2080 x=f16 granularity=group group_size=64 out=f32", kEdge},
    {"M=12 N=2200 K=1120 granularity=row", kEdge},
    {"M=10 N=2200 K=1152 x=f16 granularity=group group_size=64", kEdge},
    {"M=27 N=200 K=1152 granularity=group group_size=128", kEdge},
    {"M=1 N=16384 K=4096 granularity=row", kBar},
    {"M=1 N=16384 K=4096 granularity=row hadamard=256", kBar},
    {"M=1 N=16384 K=4096 granularity=group", kBar},
    {"M=64 N=3072 K=3072 granularity=row", kBar},
    {"M=4608 N=12288 K=3072 granularity=row activations=row", kBar},
    {"M=4608 N=24576 K=3072 granularity=row activations=row gated=act_first activation=silu", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row hadamard=256", kBar},
    {"M=32760 N=5120 K=5120 granularity=row activations=row", kBar},
    {"M=4096 N=4096 K=4096 granularity=row activations=row", kBar},
    {"M=4096 N=4096 K=4096 granularity=row activations=row hadamard=256", kBar},
    {"M=8192 N=8192 K=8192 granularity=row activations=row", kBar},
    {"M=8192 N=8192 K=8192 granularity=row activations=row hadamard=256", kBar},
    {"M=4608 N=12288 K=3072 granularity=row activations=row hadamard=256", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row", kBar},
    {"M=4608 N=9216 K=3072 granularity=row activations=row", kBar},
    {"M=4608 N=9216 K=3072 granularity=row activations=row hadamard=256", kBar},
    {"M=32760 N=13824 K=5120 granularity=row activations=row", kBar},
    {"M=32760 N=13824 K=5120 granularity=row activations=row hadamard=256", kBar},
    {"M=32760 N=5120 K=5120 granularity=row activations=row hadamard=256", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row input_act=gelu_tanh", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row input_act=swiglu hadamard=256", kBar},
    {"M=4608 N=9216 K=3072 granularity=row activations=row input_act=rms_norm norm_weight=bf16",
     kBar},
    {"M=4608 N=12288 K=3072 granularity=row activations=row out_format=int8_row "
     "activation=gelu_tanh",
     kBar},
    {"M=4608 N=12288 K=3072 granularity=row", kBar},
    {"M=1 N=65537 K=65537 granularity=row", kHuge},
};

inline constexpr OpSpec spec{
    .name = "linear_int8",
    .doc = "Linear layer with an INT8 weight, rotated or not: epilogue(x @ W^T).",
    .source = "docs/formats/int8.md, docs/formats/hadamard.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward = linear_backward("a=rows(grad(out)), alpha=alpha, "
                                "b=dequantize_int8(q=weight, scale=scale) as grad(out)",
                                kNoGradientOfCodes),
};

}  // namespace pestle::ops::linear_int8
