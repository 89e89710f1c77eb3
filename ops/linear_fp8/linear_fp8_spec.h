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
    kLinearOut,
    choice("granularity", kFp8Granularities, "which elements of the weight share a scale"),
};
inline constexpr auto args = with_epilogue(own_args);

inline constexpr Case cases[] = {
    {"M=1 N=64 K=256"},
    {"M=16 N=96 K=512 granularity=row bias=bf16"},
    {"M=1 N=37 K=129 x=f32 weight=e5m2 out=f32 granularity=row bias=f32 activation=silu"},
    {"M=1 N=130 K=300 x=f16 out=f32 granularity=column"},
    {"M=7 N=130 K=300 x=f16 out=f16 granularity=column bias=f32"},
    {"M=1 N=260 K=1300 granularity=block_128x128 out=f32 residual=bf16"},
    {"M=2x3 N=131 K=257 granularity=block_1x128 out=f32 alpha=f32 activation=gelu_tanh"},
    {"M=133 N=50 K=640 weight=e5m2 granularity=block_128x128"},
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
    {"M=1 N=65537 K=65537 granularity=row", kHuge},
};

inline constexpr OpSpec spec{
    .name = "linear_fp8",
    .doc = "Linear layer with an FP8 weight: epilogue(x @ W^T).",
    .source = "docs/formats/fp8.md",
    .args = args,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward = kLinearBackward,
};

}  // namespace pestle::ops::linear_fp8
