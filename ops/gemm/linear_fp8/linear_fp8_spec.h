// linear_fp8: the contract. Numerics: docs/formats/fp8.md
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/linear/linear_args.h"
#include "ops/gemm/linear/linear_output.h"
#include "ops/shared/shared_args.h"

namespace pestle::ops::linear_fp8 {

inline constexpr Arg own_args[] = {
    kInputX,
    input("weight", "e4m3|e5m2", "N, K", "codes, one row per output column"),
    input("scale", "f32",
          "tensor: 1; row: N, 1; column: 1, K; block_1x128: N, cdiv(K,128);"
          "block_128x128: cdiv(N,128), cdiv(K,128)",
          "decode scale: a code stands for code * scale")
        .selected_by("granularity"),
    kept_output(output("out", PESTLE_GEMM_DTYPES("x"), "*M, " PESTLE_OUT_COLUMNS,
                       "epilogue(x @ W^T), W the decoded weight"))
        .selected_by("out_format")
        .within(4,
                "if(activations == float, K, if(accumulation == fast, "
                "(16*K+4096)*(16*K+4096), 16777216+K))"),
    choice("granularity", kFp8Granularities, "which elements of the weight share a scale"),
    choice("activations", "float|row",
           "row: x becomes codes of the weight's dtype with a scale a row"),
    choice("accumulation", "accurate|fast",
           "activations=row: what sums along K may lose, as scaled_mm_fp8's"),
};
inline constexpr auto args = joined(joined(with_epilogue(own_args), kInputArgs), kRowsOutputArgs);

inline constexpr Constraint own_constraints[] = {
    kInputConstraint,
    kEvenPairs,
    kGateRows,
    kBetaNeedsResidual,
    {"activations == float || granularity == tensor || granularity == row",
     "activations=row multiplies codes, so the weight's scales must be of rows or of all"},
};
inline constexpr auto constraints = with_rows_output(
    own_constraints, "rank(x) == 2 || (out_format != nvfp4 && out_format != mxfp8)");

inline constexpr Case cases[] = {
    {"M=1 N=64 K=256"},
    {"M=16 N=96 K=512 granularity=row bias=bf16"},
    {"M=1 N=37 K=129 x=f32 weight=e5m2 out=f32 granularity=row bias=f32 activation=silu"},
    {"M=1 N=130 K=300 x=f16 out=f32 granularity=column"},
    {"M=7 N=130 K=300 x=f16 out=f16 granularity=column bias=f32"},
    {"M=1 N=260 K=1300 granularity=block_128x128 out=f32 residual=bf16"},
    {"M=2x3 N=131 K=257 granularity=block_1x128 out=f32 alpha=f32 activation=gelu_tanh"},
    {"M=133 N=50 K=640 weight=e5m2 granularity=block_128x128"},
    {"M=140 N=264 K=640 granularity=row activations=row bias=f32 residual=bf16"},
    {"M=70 N=200 K=512 x=f16 weight=e5m2 activations=row out=f16 activation=gelu_tanh"},
    {"M=5 N=96 K=320 x=f32 granularity=row activations=row out=f32"},
    {"M=140 N=264 K=640 granularity=row activations=row accumulation=fast input_act=silu"},
    {"M=70 N=200 K=512 x=f16 weight=e5m2 activations=row accumulation=fast out=f32 bias=f32"},
    {"M=75 N=144 K=528 granularity=row activations=row accumulation=fast bias=bf16"},
    {"M=40 N=144 K=400 activations=row accumulation=fast out=f32 input_act=silu"},
    {"M=5 N=13 K=33 granularity=row activations=row", kEdge, Dist::kOutliers},
    {"M=40 N=144 K=96 granularity=row activations=row out=f32", kEdge, Dist::kSpecial},
    // Long enough for split-K.
    {"M=70 N=40 K=7184 granularity=row activations=row bias=bf16 residual=bf16 activation=silu"},
    {"M=20 N=136 K=7232 weight=e5m2 activations=row accumulation=fast out=f32"},
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
    {"M=2x70 N=333 K=2080 weight=e5m2 granularity=block_1x128 x=f16 alpha=f32 gate=bf16 G=2",
     kEdge},
    {"M=150 N=141 K=1312 granularity=row out=f32", kEdge, Dist::kSpecial},
    {"M=150 N=141 K=1280 weight=e5m2 granularity=block_1x128 out=f32", kEdge, Dist::kSpecial},
    {"M=33 N=131 K=1056 granularity=row out=f32", kEdge, Dist::kSubnormal},
    {"M=97 N=300 K=736 x=f16 out=f32 weight=e5m2", kEdge, Dist::kSpecial},
    {"M=66 N=140 K=96 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=140 N=270 K=416 granularity=block_128x128 gate=bf16 G=2 out=f32"},
    {"M=130 N=140 K=672 x=f16 weight=e5m2 granularity=block_1x128 out=f32", kEdge, Dist::kSpecial},
    {"M=0 N=8 K=16 activations=row", kEdge},
    {"M=9 N=96 K=320 granularity=row activations=row input_act=gelu_tanh"},
    {"M=5 N=72 K=264 x=f16 weight=e5m2 out=f16 granularity=row activations=row input_act=swiglu"},
    {"M=2x3 N=64 K=512 granularity=row activations=row input_act=rms_norm norm_weight=f32 "
     "bias=f32"},
    {"M=33 N=40 K=96 x=f32 out=f32 activations=row input_act=geglu input_layout=act_last"},
    {"M=4 N=40 K=96 x=f32 out=f32 input_act=geglu_tanh granularity=block_1x128"},
    {"M=2 N=33 K=128 input_act=rms_norm eps=0.001 residual=bf16"},
    {"M=3 N=24 K=80 x=f16 input_act=silu granularity=column"},
    {"M=3 N=16 K=64 granularity=row activations=row input_act=gelu", kEdge, Dist::kZeros},
    {"M=0 N=8 K=16 input_act=swiglu activations=row", kEdge},
    {"M=3 N=8 K=0 input_act=rms_norm activations=row", kEdge},
    {"M=5 N=48 K=40 q_scale=f32 out_format=fp8_tensor bias=f32"},
    {"M=2x3 N=72 K=48 granularity=row activations=row out_format=fp8_row input_act=silu"},
    {"M=9 N=300 K=64 granularity=row activations=row out_format=fp8_block keep_out=true"},
    {"M=130 N=48 K=64 global_scale=f32 out_format=nvfp4"},
    {"M=5 N=64 K=48 granularity=row activations=row input_act=silu gated=act_first "
     "activation=silu out_format=fp8_row bias=f32",
     kEdge},
    // Decoded to x's dtype first.
    {"M=1536 N=40 K=64 granularity=row bias=f32 residual=bf16 activation=silu"},
    {"M=2050 N=36 K=32 x=f16 weight=e5m2 out=f32 granularity=row", kEdge},
    {"M=2x1024 N=24 K=32 alpha=f32 gate=bf16 G=2 residual=bf16 beta=f32", kEdge},
    {"M=2048 N=12 K=32 weight=e5m2 out=f32", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 x=f16 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 out=f32 granularity=row", kEdge, Dist::kSubnormal},
    {"M=0 N=8 K=16", kEdge},
    {"M=3 N=0 K=16", kEdge},
    {"M=2 N=3 K=0 out=f32 bias=f32", kEdge},
    {"M=1 N=1 K=1", kEdge},
    {"M=1 N=5 K=19 x=f32 out=f32", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=300 x=f32 out=f32 granularity=column", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=300 out=f32 weight=e5m2 granularity=block_1x128", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=96 x=f32 out=f32 granularity=row", kEdge, Dist::kSubnormal},
    {"M=1 N=9 K=96 out=f16 granularity=row", kEdge, Dist::kZeros},
    {"M=1 N=6 K=4096 x=f32 out=f32 granularity=row", kSmoke, Dist::kOutliers},
    {"M=3 N=13000 K=224 granularity=row out=f32", kEdge},
    {"M=16 N=20 K=8224 x=f16 granularity=block_128x128", kEdge},
    {"M=12 N=2200 K=1120 granularity=row", kEdge},
    {"M=10 N=2200 K=1120 x=f16 granularity=block_128x128", kEdge},
    {"M=27 N=200 K=1120 weight=e5m2 granularity=block_128x128", kEdge},
    {"M=1 N=16384 K=4096", kBar},
    {"M=1 N=16384 K=4096 granularity=row", kBar},
    {"M=1 N=16384 K=4096 weight=e5m2", kBar},
    {"M=1 N=16384 K=4096 granularity=block_128x128", kBar},
    {"M=64 N=3072 K=3072 granularity=row", kBar},
    {"M=4608 N=12288 K=3072 granularity=row activations=row", kBar},
    {"M=4608 N=12288 K=3072 granularity=row activations=row accumulation=fast", kBar},
    {"M=4608 N=24576 K=3072 granularity=row activations=row gated=act_first activation=silu", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row accumulation=fast", kBar},
    {"M=32760 N=5120 K=5120 granularity=row activations=row", kBar},
    {"M=32760 N=5120 K=5120 granularity=row activations=row accumulation=fast", kBar},
    {"M=4096 N=4096 K=4096 granularity=row activations=row", kBar},
    {"M=4096 N=4096 K=4096 granularity=row activations=row accumulation=fast", kBar},
    {"M=8192 N=8192 K=8192 granularity=row activations=row", kBar},
    {"M=8192 N=8192 K=8192 granularity=row activations=row accumulation=fast", kBar},
    {"M=4608 N=9216 K=3072 granularity=row activations=row", kBar},
    {"M=4608 N=9216 K=3072 granularity=row activations=row accumulation=fast", kBar},
    {"M=32760 N=13824 K=5120 granularity=row activations=row", kBar},
    {"M=32760 N=13824 K=5120 granularity=row activations=row accumulation=fast", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row input_act=gelu_tanh", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row input_act=swiglu", kBar},
    {"M=4608 N=9216 K=3072 granularity=row activations=row input_act=rms_norm norm_weight=bf16",
     kBar},
    {"M=4608 N=12288 K=3072 granularity=row activations=row out_format=fp8_row "
     "activation=gelu_tanh",
     kBar},
    {"M=4608 N=12288 K=3072 granularity=row", kBar},
    {"M=1 N=65537 K=65537 granularity=row", kHuge},
};

inline constexpr OpSpec spec{
    .name = "linear_fp8",
    .doc = "Linear layer with an FP8 weight: epilogue(x @ W^T).",
    .source = "docs/formats/fp8.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward = linear_backward("a=rows(grad(out)), alpha=alpha, "
                                "b=dequantize_fp8(q=weight, scale=scale) as grad(out)",
                                kNoGradientOfCodes),
};

}  // namespace pestle::ops::linear_fp8
