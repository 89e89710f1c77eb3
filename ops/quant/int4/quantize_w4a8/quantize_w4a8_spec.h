// quantize_w4a8: the contract. Numerics: docs/formats/w4a8.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::quantize_w4a8 {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "N, K", "weight to quantise, one row per output of the linear"),
    input("codebook", "f32", "16", "ascending values; the fixed table of the format when absent")
        .optional(),
    output("q", "u8", "N, K/2", "indices into the codebook, two a byte: the even column low"),
    output("scale_rel", "e4m3", "N, K/16", "scale of 16 columns, relative to the row's"),
    output("scale_channel", "f32", "N", "scale of the row: values decode to int8 times this"),
    int_attr("hadamard", 256, "rotate groups of this many columns first; 0: no rotation"),
};

inline constexpr Constraint constraints[] = {
    {"K % 16 == 0", "K must be a multiple of 16, the columns that share a relative scale"},
    kHadamardRule,
};

inline constexpr Case cases[] = {
    {"N=8 K=512"},
    {"N=5 K=256 x=f16"},
    {"N=3 K=768 x=f32 hadamard=0", kSmoke, Dist::kOutliers},
    {"N=3 K=272 x=f32 hadamard=16"},
    {"N=4 K=2048 hadamard=1024 codebook=f32"},
    {"N=5 K=4352"},
    {"N=3 K=2112 x=f32 hadamard=64", kSmoke, Dist::kOutliers},
    {"N=0 K=256", kEdge},
    {"N=3 K=0", kEdge},
    {"N=1 K=16 hadamard=0", kEdge},
    {"N=9 K=112 hadamard=0", kEdge, Dist::kSpecial},
    {"N=9 K=256 x=f32", kEdge, Dist::kSpecial},
    {"N=9 K=512", kEdge, Dist::kSpecial},
    {"N=9 K=400 x=f32 hadamard=0", kEdge, Dist::kSpecial},
    {"N=4 K=256", kEdge, Dist::kZeros},
    {"N=4 K=256 x=f32 hadamard=64", kEdge, Dist::kSubnormal},
    {"N=32768 K=16384", kBar},
    {"N=65536 K=66048", kHuge},
};

inline constexpr OpSpec spec{
    .name = "quantize_w4a8",
    .doc = "Quantises a rotated weight to codebook indices with a scale per 16 columns and row.",
    .source = "docs/formats/w4a8.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "120*N*K",
    .backward = {.why_not = "codes are piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::quantize_w4a8
