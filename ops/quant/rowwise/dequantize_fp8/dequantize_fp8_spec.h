// dequantize_fp8: the contract. Numerics: docs/formats/fp8.md
#pragma once

#include "core/op_spec.h"
#include "ops/shared/shared_args.h"

namespace pestle::ops::dequantize_fp8 {

inline constexpr Arg args[] = {
    input("q", "e4m3|e5m2", "*M, K", "codes"),
    input("scale", "f32", kFp8ScaleShape, "decode scale: a code stands for code * scale")
        .selected_by("granularity"),
    output("out", "bf16|f16|f32", "*M, K", "code * scale: one f32 product, one rounding"),
    choice("granularity", kFp8Granularities, "which elements share a scale"),
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=3x11 K=129 q=e5m2 out=f32 granularity=row"},
    {"M=17 K=300 out=f16 granularity=column"},
    {"M=130 K=257 granularity=block_1x128"},
    {"M=130 K=257 q=e5m2 out=f32 granularity=block_128x128"},
    {"M=33 K=70 out=f32 granularity=column", kSmoke, Dist::kOutliers},
    {"M=16 K=256 out=f32", kEdge, Dist::kBytes},
    {"M=16 K=256 q=e5m2", kEdge, Dist::kBytes},
    {"M=16 K=256 q=e5m2 out=f16 granularity=row", kEdge, Dist::kSpecial},
    {"M=0 K=16", kEdge},
    {"M=3 K=0 granularity=row", kEdge},
    {"M=1 K=1", kEdge},
    {"M=7 K=17 out=f32 granularity=row", kEdge, Dist::kSubnormal},
    {"M=32768 K=16384", kBar},
    {"M=32768 K=16384 granularity=row", kBar},
    {"M=65537 K=65537", kHuge},
};

inline constexpr OpSpec spec{
    .name = "dequantize_fp8",
    .doc = "Decodes FP8 with a scale per tensor, row, column or block.",
    .source = "docs/formats/fp8.md",
    .args = args,
    .cases = cases,
    .flops = "M*K",
    .backward = {.why_not =
                     "codes have no gradient; the gradient of the scale is a plain reduction"},
};

}  // namespace pestle::ops::dequantize_fp8
