// linear_fp8: the contract. Numerics: docs/formats/fp8.md
#pragma once

#include "core/op_spec.h"
#include "ops/common/linear_args.h"
#include "ops/common/shared_args.h"

namespace pestle::ops::linear_fp8 {

inline constexpr Arg own_args[] = {
    kLinearX,
    input("weight", "e4m3|e5m2", "N, K", "codes, one row per output column"),
    input("scale", "f32",
          "tensor: 1; row: N, 1; column: 1, K; block_1x128: N, cdiv(K,128);"
          "block_128x128: cdiv(N,128), cdiv(K,128)",
          "decode scale: a code stands for code * scale")
        .selected_by("granularity"),
    output("out", "bf16|f16|f32", "*M, N", "epilogue(x @ W^T), W the decoded weight")
        .within(4, "if(activations == row, 16777216+K, K)"),
    choice("granularity", kFp8Granularities, "which elements of the weight share a scale"),
    choice("activations", "float|row",
           "row: x becomes codes of the weight's dtype with a scale a row; sums along K lose what "
           "those of scaled_mm_fp8, accumulation=accurate, may lose"),
};
inline constexpr auto args = with_epilogue(own_args);

inline constexpr Constraint constraints[] = {
    {"activations == float || granularity == tensor || granularity == row",
     "activations=row multiplies codes, so the weight's scales must be of rows or of all"},
};

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
    {"M=5 N=13 K=33 granularity=row activations=row", kEdge, Dist::kOutliers},
    {"M=3 N=8 K=0 activations=row", kEdge},
    {"M=0 N=8 K=16 activations=row", kEdge},
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
    {"M=1 N=16384 K=4096", kBar},
    {"M=1 N=16384 K=4096 granularity=row", kBar},
    {"M=1 N=16384 K=4096 weight=e5m2", kBar},
    {"M=1 N=16384 K=4096 granularity=block_128x128", kBar},
    {"M=64 N=3072 K=3072 granularity=row", kBar},
    {"M=4608 N=12288 K=3072 granularity=row activations=row", kBar},
    {"M=4608 N=3072 K=12288 granularity=row activations=row", kBar},
    {"M=32760 N=5120 K=5120 granularity=row activations=row", kBar},
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
