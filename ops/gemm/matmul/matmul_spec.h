// matmul: the contract.
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/epilogue/epilogue.h"
#include "ops/gemm/epilogue/output_args.h"
#include "ops/quant/output/quantize_after.h"

namespace pestle::ops::matmul {

inline constexpr Arg args[] = {
    input("a", "bf16|f16|f32|e4m3|e5m2", "*B, M, K", "left matrices, any strides"),
    input(
        "b", "bf16|f16|f32|e4m3|e5m2", "*B, K, N",
        "right matrices, any strides: a weight [N, K] is passed transposed, one matrix for all by "
        "strides of 0"),
    kept_output(output("out", PESTLE_GEMM_DTYPES("a"), "*B, M, " PESTLE_OUT_COLUMNS,
                       "residual * beta + gate * activation(a @ b * alpha + bias)"))
        .selected_by("out_format")
        .within(4, "if(precision == tf32, 16777216 + K, K)"),
    input("alpha", "f32", "1", "factor on the product; 1 when absent").optional(),
    input("bias", "f32|bf16|f16", "N", "added to every row of the product").optional(),
    input("residual", "f32|bf16|f16", "*B, M, " PESTLE_OUT_COLUMNS, "added at the end").optional(),
    choice("activation", "none|gelu|gelu_tanh|silu", "applied after the bias"),
    kEpilogueBeta,
    kEpilogueGate,
    kEpilogueGated,
    choice("precision", "highest|tf32",
           "of products of two f32 matrices: as exact as f32, or each value may be rounded to "
           "TF32's 11 bits"),
    kGemmScaleArg,
    kQuantGlobalScaleArg,
    kGemmQuantizedArg,
    kGemmScaleOutArg,
    choice("out_format", kGemmFormats, kGemmFormatDoc),
    kGemmKeepArg,
    kGemmHadamardArg,
    kQuantNibblesArg,
    kQuantScaleLayoutArg,
};

inline constexpr Constraint constraints[] = {
    kGemmConstraints[0],
    kGemmConstraints[1],
    kGemmConstraints[2],
    kGemmConstraints[3],
    kGemmConstraints[4],
    kGemmConstraints[5],
    kGemmConstraints[6],
    kGemmConstraints[7],
    kEvenPairs,
    kBetaNeedsResidual,
    {"!has(gate) || B*M == 0 || (G > 0 && (B*M) % max(G,1) == 0)", kGateSentence},
};

inline constexpr Case cases[] = {
    {"B= M=128 N=256 K=64"},
    {"B= M=130 N=200 K=96 a=f16 b=f16 out=f16 bias=f32 activation=gelu_tanh"},
    {"B=3 M=65 N=72 K=40 out=f32 alpha=f32 residual=bf16 activation=silu"},
    {"B=2x2 M=17 N=33 K=29 a=f32 b=f32 out=f32 bias=bf16 activation=gelu"},
    {"B= M=64 N=64 K=128 a=e4m3 b=e5m2 out=f16"},
    {"B= M=33 N=31 K=35 a=bf16 b=f32 out=bf16"},
    {"B=2 M=140 N=264 K=96 bias=f32 residual=bf16 activation=gelu"},
    {"B= M=70 N=200 K=96 a=f16 b=f16 out=f16 alpha=f32 residual=f16 activation=silu"},
    {"B= M=3 N=200 K=136 bias=f32 residual=bf16 activation=silu"},
    {"B= M=16 N=40 K=4096 a=f16 b=f16 out=f32 alpha=f32"},
    {"B= M=1 N=72 K=4104 bias=bf16"},
    {"B= M=13 N=40 K=9280 b=bf16.mT bias=f32"},
    {"B= M=2 N=8456 K=64 a=f16 b=f16.mT out=f16 residual=f16 activation=silu"},
    {"B= M=9 N=77 K=1160 b=bf16.mT out=f32", kEdge},
    {"B= M=1 N=77 K=1160 a=f16 b=f16 out=f32 residual=f16", kEdge},
    {"B= M=9 N=77 K=1160", kEdge},
    {"B= M=0 N=8 K=16", kEdge},
    {"B= M=8 N=0 K=16", kEdge},
    {"B=2 M=3 N=5 K=0 bias=f32 out=f32", kEdge},
    {"B= M=1 N=1 K=1", kEdge},
    {"B= M=7 N=13 K=31", kEdge},
    {"B= M=24 N=40 K=64", kEdge, Dist::kSpecial},
    {"B= M=140 N=264 K=208 residual=bf16", kEdge},
    {"B= M=130 N=131 K=57 bias=f32", kEdge},
    {"B= M=70 N=140 K=136 a=f32 b=f32 out=f32 alpha=f32 bias=f32"},
    {"B=2 M=131 N=67 K=73 a=f32 b=f32 out=f32 residual=f32 activation=gelu"},
    {"B= M=72 N=264 K=200 a=f32 b=f32 out=bf16 precision=tf32", kEdge},
    {"B= M=72 N=72 K=64 a=f32 b=f32 out=f32", kEdge, Dist::kOutliers},
    {"B= M=72 N=72 K=64 a=f32 b=f32 out=f32", kEdge, Dist::kSpecial},
    {"B= M=72 N=72 K=64 a=f32 b=f32 out=f32 precision=tf32", kEdge, Dist::kSpecial},
    {"B= M=72 N=72 K=64 a=f32 b=f32 out=f32", kEdge, Dist::kSubnormal},
    {"B= M=5 N=48 K=40 q_scale=f32 out_format=fp8_tensor bias=f32"},
    {"B=2 M=5 N=72 K=40 out_format=fp8_row activation=silu"},
    {"B= M=9 N=300 K=64 out_format=fp8_block a=f16 b=f16 keep_out=true"},
    {"B= M=9 N=128 K=33 out_format=int8_row out_hadamard=64 residual=bf16"},
    {"B=1 M=130 N=48 K=64 global_scale=f32 out_format=nvfp4"},
    {"B= M=5 N=96 K=72 out_format=mxfp8 scale_layout=plain"},
    {"B= M=5 N=32 K=24 a=f32 b=f32 out_format=mxfp8", kEdge},
    {"B= M=3 N=64 K=0 out_format=int8_row q_scale=f32", kEdge},
    {"B= M=9 N=64 K=40 out_format=mxfp8", kEdge, Dist::kSpecial},
    {"B= M=130 N=272 K=72 gated=act_first activation=silu bias=bf16"},
    {"B=2 M=70 N=136 K=64 a=f16 b=f16 out=f32 gated=act_last activation=gelu alpha=f32 "
     "residual=f16 beta=f32"},
    {"B= M=5 N=66 K=40 a=f32 b=f32 out=f32 gated=act_first activation=gelu_tanh gate=f32 G=5"},
    {"B=2 M=128 N=72 K=40 gate=bf16 G=2 residual=bf16 bias=f32"},
    {"B= M=12 N=200 K=72 gate=f32 G= residual=f32 beta=f32 activation=silu out=f32"},
    {"B= M=3 N=6 K=16 gated=act_first", kEdge},
    {"B= M=0 N=8 K=16 gated=act_last activation=silu", kEdge},
    {"B= M=5 N=128 K=40 gated=act_first activation=silu out_format=mxfp8 bias=f32", kEdge},
    {"B= M=24 N=40 K=64 gated=act_first gate=f16 residual=bf16 G=1", kEdge, Dist::kOutliers},
    // Long enough for split-K.
    {"B= M=130 N=40 K=3600"},
    {"B= M=20 N=264 K=3656 bias=f32 residual=bf16 activation=gelu"},
    {"B=2 M=17 N=72 K=3584 a=f16 b=f16 out=f32 alpha=f32"},
    {"B= M=33 N=72 K=3592 a=f16 b=f16.mT out=f16 bias=f16"},
    {"B= M=24 N=136 K=4104 gate=bf16 G=1 bias=bf16", kEdge},
    {"B= M=20 N=72 K=3648", kEdge, Dist::kSpecial},
    {"B= M=1 N=4096 K=4096", kBar},
    {"B= M=16 N=14336 K=4096", kBar},
    {"B= M=4096 N=4096 K=4096", kBar},
    {"B= M=8192 N=8192 K=8192", kBar},
    {"B= M=4608 N=12288 K=3072", kBar},
    {"B= M=4608 N=12288 K=3072 bias=bf16 residual=bf16 activation=gelu_tanh", kBar},
    {"B= M=4608 N=24576 K=3072 gated=act_first activation=silu", kBar},
    {"B= M=4608 N=3072 K=12288", kBar},
    {"B= M=4608 N=3072 K=12288 gate=bf16 G=1 residual=bf16 bias=bf16", kBar},
    {"B= M=4608 N=9216 K=3072", kBar},
    {"B= M=32760 N=5120 K=5120", kBar},
    {"B= M=4096 N=4096 K=4096 a=f32 b=f32 out=f32", kBar},
    {"B= M=4096 N=4096 K=4096 a=f32 b=f32 out=f32 precision=tf32", kBar},
    {"B= M=4608 N=3072 K=3073", kBar},
    {"B= M=4608 N=12288 K=3072 a=e4m3 b=e4m3", kBar},
    {"B= M=512 N=3072 K=768 global_scale=f32 out_format=nvfp4 activation=gelu_tanh", kBar},
    {"B= M=4608 N=12288 K=3072 out_format=int8_row activation=gelu_tanh", kBar},
    {"B= M=65537 N=65537 K=16", kHuge},
    {"B=65537 M=256 N=264 K=16 bias=f32", kHuge},
};

inline constexpr OpSpec spec{
    .name = "matmul",
    .doc = "Product of two matrices of floats of any strides, f32 accumulation, with an epilogue.",
    .source =
        "y = activation(sum_k a[m,k] * b[k,n] * alpha + bias[n]), of pairs of columns "
        "activation(one) * the other; out = residual[m,n] * beta + gate * y",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*B*M*N*K",
    .backward = {.op = "matmul_backward",
                 .call = "d_out=grad(out), a=a, b=b, alpha=alpha, bias=bias, residual=residual",
                 .gives = "a=d_a, b=d_b, bias=d_bias, residual=d_residual",
                 .why_not = "unless bytes(a) > 1 && bytes(b) > 1 && gated == none && !has(gate) && "
                            "!has(beta): 8-bit floats have no gradient; pairs, gate and beta have "
                            "theirs where they are ops of their own"},
};

}  // namespace pestle::ops::matmul
