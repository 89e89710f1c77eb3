// dequantize_int8: the contract. Numerics: docs/formats/int8.md
#pragma once

#include "core/op_spec.h"
#include "ops/shared/shared_args.h"

namespace pestle::ops::dequantize_int8 {

inline constexpr Arg args[] = {
    input("q", "i8", "*M, K", "codes"),
    input("scale", "f32", kInt8ScaleShape, "decode scale: a code stands for code * scale")
        .selected_by("granularity"),
    output("out", "bf16|f16|f32", "*M, K",
           "code * scale, one f32 product; rotated back if asked; one rounding"),
    choice("granularity", kInt8Granularities, "which elements share a scale"),
    int_attr("group_size", 128, "elements along K that share a scale, granularity=group"),
    int_attr("hadamard", 0, kHadamardDoc),
};

inline constexpr Constraint constraints[] = {
    {"group_size >= 1", "group_size must be at least 1"},
    {"hadamard == 0 || hadamard == 4 || hadamard == 16 || hadamard == 64 || hadamard == 256 || "
     "hadamard == 1024",
     "hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024"},
    {"hadamard == 0 || K % max(hadamard,1) == 0",
     "K must be a multiple of hadamard, the elements that are rotated together"},
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=3x11 K=129 out=f32 granularity=row"},
    {"M=17 K=300 out=f16 granularity=group group_size=32"},
    {"M=9 K=257 granularity=group group_size=100"},
    {"M=7 K=512 granularity=row hadamard=256"},
    {"M=5 K=2048 out=f32 granularity=row hadamard=1024"},
    {"M=5 K=192 out=f16 granularity=group group_size=48 hadamard=64"},
    {"M=5 K=48 hadamard=16"},
    {"M=3 K=20 out=f32 granularity=row hadamard=4"},
    {"M=0 K=16", kEdge},
    {"M=3 K=0 granularity=row", kEdge},
    {"M=1 K=1", kEdge},
    {"M=7 K=17 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=7 K=64 granularity=row hadamard=16", kEdge, Dist::kSpecial},
    {"M=7 K=65 out=f32 granularity=row", kEdge, Dist::kSubnormal},
    {"M=3 K=2304 granularity=row hadamard=256", kEdge},
    {"M=2200 K=256 granularity=row hadamard=256", kEdge},
    {"M=32768 K=16384 granularity=row", kBar},
    {"M=32768 K=16384", kBar},
    {"M=32768 K=16384 granularity=row hadamard=256", kBar},
    {"M=65537 K=65537", kHuge},
};

inline constexpr OpSpec spec{
    .name = "dequantize_int8",
    .doc = "Decodes INT8 with a scale per tensor, row or group, and undoes the rotation if asked.",
    .source = "docs/formats/int8.md, docs/formats/hadamard.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "M*K",
    .backward = {.why_not =
                     "codes have no gradient; the gradient of the scale is a plain reduction"},
};

}  // namespace pestle::ops::dequantize_int8
