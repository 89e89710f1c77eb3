// quantize_fp8: the contract. Numerics: docs/formats/fp8.md
#pragma once

#include "core/op_spec.h"
#include "ops/shared/shared_args.h"

namespace pestle::ops::quantize_fp8 {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M, K", "values to quantise"),
    input("scale", "f32", kFp8ScaleShape, "decode scale: a code stands for code * scale")
        .selected_by("granularity")
        .optional(),
    output("q", "e4m3|e5m2", "*M, K", "codes"),
    output("scale_out", "f32", kFp8ScaleShape,
           "the decode scale computed here, amax / largest code")
        .selected_by("granularity")
        .only_if("!has(scale)"),
    transposed_codes(),
    choice("granularity", kFp8Granularities, "which elements share a scale"),
    choice("rounding", "nearest|stochastic", "nearest: ties to even; stochastic: by Philox bits"),
    int_attr("seed", 0, "Philox seed of stochastic rounding"),
    transposed_attr(),
};

inline constexpr Constraint constraints[] = {
    {"!transposed || granularity == tensor || granularity == column || "
     "granularity == block_128x128",
     "transposed needs granularity tensor, column or block_128x128: scales along K would lie "
     "across "
     "the rows of q_t"},
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=3x11 K=129 x=f32 q=e5m2 granularity=row"},
    {"M=17 K=300 x=f16 granularity=column"},
    {"M=130 K=257 granularity=block_1x128"},
    {"M=130 K=257 granularity=block_128x128 rounding=stochastic seed=7"},
    {"M=64 K=256 scale=f32 scale_out=none", kSmoke, Dist::kOutliers},
    {"M=5 K=31 scale=f32 scale_out=none x=f32 q=e5m2 rounding=stochastic seed=3", kSmoke},
    {"M=160 K=264 transposed=1"},
    {"M=2x9 K=72 x=f16 transposed=1 granularity=column"},
    {"M=150 K=144 x=f32 q=e5m2 transposed=1 granularity=block_128x128"},
    {"M=520 K=136 transposed=1 scale=f32 scale_out=none"},
    {"M=552 K=72 transposed=1 granularity=column"},
    {"M=1304 K=136 transposed=1 granularity=block_128x128"},
    {"M=136 K=40 x=f32 transposed=1 scale=f32 scale_out=none rounding=stochastic seed=9"},
    {"M=12 K=16 scale=f32 scale_out=none granularity=column"},
    {"M=9 K=24 x=f32 transposed=1 granularity=column", kEdge, Dist::kSpecial},
    {"M=0 K=16 transposed=1", kEdge},
    {"M=1 K=1 transposed=1", kEdge},
    {"M=0 K=16", kEdge},
    {"M=3 K=0 granularity=row", kEdge},
    {"M=1 K=1", kEdge},
    {"M=7 K=17 x=f32", kEdge, Dist::kSpecial},
    {"M=40 K=1024", kEdge, Dist::kOutliers},
    {"M=7 K=17 x=f32 granularity=row", kEdge, Dist::kZeros},
    {"M=16 K=64 x=f32 granularity=row", kEdge, Dist::kSubnormal},
    {"M=32768 K=16384", kBar},
    {"M=32768 K=16384 granularity=row", kBar},
    {"M=32768 K=16384 scale=f32 scale_out=none", kBar},
    {"M=32768 K=16384 granularity=column", kBar},
    {"M=32768 K=16384 scale=f32 scale_out=none transposed=1", kBar},
    {"M=32768 K=16384 transposed=1", kBar},
    {"M=32768 K=16384 granularity=block_128x128 transposed=1", kBar},
    {"M=32768 K=16384 scale=f32 scale_out=none granularity=column transposed=1", kBar},
    {"M=4608 K=3072 scale=f32 scale_out=none transposed=1", kBar},
    {"M=32760 K=5120 scale=f32 scale_out=none transposed=1", kBar},
    {"M=32760 K=5120 granularity=block_128x128 transposed=1", kBar},
    {"M=65537 K=65537 scale=f32 scale_out=none", kHuge},
};

// A scale for a whole tensor or for its columns that is computed here needs x twice: counted as two
// passes where x is too large for any cache to keep it in between.
inline constexpr OpSpec spec{
    .name = "quantize_fp8",
    .doc = "Quantises to FP8 with a decode scale per tensor, row, column or block.",
    .source = "docs/formats/fp8.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*K",
    .bytes =
        "M*K*bytes(x)*if(!has(scale) && (granularity == tensor || granularity == column) && "
        "M*K*bytes(x) >= 268435456, 2, 1) + M*K*if(transposed, 2, 1) + 4*if(has(scale), "
        "numel(scale), numel(scale_out))",
    .backward = {.why_not = "codes are piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::quantize_fp8
