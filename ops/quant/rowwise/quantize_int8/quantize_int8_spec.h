// quantize_int8: the contract. Numerics: docs/formats/int8.md
#pragma once

#include "core/op_spec.h"
#include "ops/shared/shared_args.h"

namespace pestle::ops::quantize_int8 {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M, K", "values to quantise"),
    input("scale", "f32", kInt8ScaleShape, "decode scale: a code stands for code * scale")
        .selected_by("granularity")
        .optional(),
    output("q", "i8", "*M, K", "codes, -128..127"),
    output("scale_out", "f32", kInt8ScaleShape, "the decode scale computed here, amax / 127")
        .selected_by("granularity")
        .only_if("!has(scale)"),
    transposed_codes(),
    choice("granularity", kInt8Granularities, "which elements share a scale"),
    int_attr("group_size", 128, "elements along K that share a scale, granularity=group"),
    int_attr("hadamard", 0, kHadamardDoc),
    choice("rounding", "nearest|stochastic", "nearest: ties to even; stochastic: by Philox bits"),
    int_attr("seed", 0, "Philox seed of stochastic rounding"),
    transposed_attr(),
};

inline constexpr Constraint constraints[] = {
    {"group_size >= 1", "group_size must be at least 1"},
    {"hadamard == 0 || hadamard == 4 || hadamard == 16 || hadamard == 64 || hadamard == 256 || "
     "hadamard == 1024",
     "hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024"},
    {"hadamard == 0 || K % max(hadamard,1) == 0",
     "K must be a multiple of hadamard, the elements that are rotated together"},
    {"!transposed || granularity == tensor",
     "transposed needs granularity tensor: scales along K would lie across the rows of q_t"},
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=3x11 K=129 x=f32 granularity=row"},
    {"M=17 K=300 x=f16 granularity=group group_size=32"},
    {"M=9 K=257 granularity=group group_size=100 rounding=stochastic seed=7"},
    {"M=33 K=515 granularity=row rounding=stochastic seed=11"},
    {"M=64 K=256 scale=f32 scale_out=none", kSmoke, Dist::kOutliers},
    {"M=5 K=31 scale=f32 scale_out=none x=f32 granularity=row rounding=stochastic seed=3"},
    {"M=7 K=512 granularity=row hadamard=256"},
    {"M=5 K=2048 x=f32 granularity=row hadamard=1024 rounding=stochastic seed=5"},
    {"M=5 K=192 x=f16 granularity=group group_size=48 hadamard=64", kSmoke, Dist::kOutliers},
    {"M=5 K=48 hadamard=16"},
    {"M=3 K=20 x=f32 scale=f32 scale_out=none granularity=row hadamard=4"},
    {"M=2 K=40960 granularity=row hadamard=256"},
    {"M=160 K=264 transposed=1"},
    {"M=2x9 K=48 x=f16 hadamard=16 transposed=1"},
    {"M=140 K=24 x=f32 transposed=1 scale=f32 scale_out=none rounding=stochastic seed=9"},
    {"M=7 K=24 x=f32 transposed=1", kEdge, Dist::kSpecial},
    {"M=0 K=16", kEdge},
    {"M=3 K=0 granularity=row", kEdge},
    {"M=1 K=1", kEdge},
    {"M=7 K=17 x=f32", kEdge, Dist::kSpecial},
    {"M=40 K=1024 x=f32", kEdge},
    {"M=9 K=64 granularity=row", kEdge, Dist::kSpecial},
    {"M=7 K=64 x=f32 granularity=row hadamard=16", kEdge, Dist::kSpecial},
    {"M=9 K=64 scale=f32 scale_out=none granularity=row", kEdge, Dist::kSpecial},
    {"M=7 K=17 x=f32 granularity=row", kEdge, Dist::kZeros},
    {"M=16 K=64 x=f32 granularity=row", kEdge, Dist::kSubnormal},
    {"M=3 K=2304 granularity=row hadamard=256", kEdge},
    {"M=2200 K=256 granularity=row hadamard=256", kEdge},
    {"M=300 K=2064 x=f32 granularity=row hadamard=16", kEdge},
    {"M=2 K=2048 granularity=row hadamard=64 rounding=stochastic seed=4 x=f16", kEdge},
    {"M=32768 K=16384 granularity=row", kBar},
    {"M=32760 K=5120 granularity=row", kBar},
    {"M=65536 K=8192 granularity=row", kBar},
    {"M=32768 K=16384", kBar},
    {"M=32768 K=16384 granularity=row hadamard=256", kBar},
    {"M=32768 K=16384 scale=f32 scale_out=none transposed=1", kBar},
    {"M=4608 K=3072 scale=f32 scale_out=none transposed=1", kBar},
    {"M=32760 K=5120 scale=f32 scale_out=none transposed=1", kBar},
    {"M=65537 K=65537 granularity=row", kHuge},
};

// As in quantize_fp8: a scale computed for a large tensor counts two passes over x.
inline constexpr OpSpec spec{
    .name = "quantize_int8",
    .doc =
        "Quantises to INT8 with a decode scale per tensor, row or group, rotated first if asked.",
    .source = "docs/formats/int8.md, docs/formats/hadamard.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*K",
    .bytes =
        "M*K*bytes(x)*if(!has(scale) && granularity == tensor && M*K*bytes(x) >= 268435456, 2, 1)"
        " + M*K*if(transposed, 2, 1) + 4*if(has(scale), numel(scale), numel(scale_out))",
    .backward = {.why_not = "codes are piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::quantize_int8
