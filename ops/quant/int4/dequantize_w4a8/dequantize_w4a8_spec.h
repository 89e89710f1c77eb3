// dequantize_w4a8: the contract. Numerics: docs/formats/w4a8.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::dequantize_w4a8 {

inline constexpr Arg args[] = {
    input("q", "u8", "N, K/2", "indices into the codebook, two a byte: the even column low"),
    input("scale_rel", "e4m3", "N, K/16", "scale of 16 columns, relative to the row's"),
    input("scale_channel", "f32", "N", "scale of the row"),
    input("codebook", "f32", "16", "values of the indices; the fixed table when absent").optional(),
    output("out", "bf16|f16|f32", "N, K",
           "int8(codebook[q] * scale_rel) * scale_channel, rotated back")
        .within(1, "hadamard"),
    int_attr("hadamard", 256, "columns were rotated in groups of this many; 0: no rotation"),
};

inline constexpr Constraint constraints[] = {
    {"K % 16 == 0", "K must be a multiple of 16, the columns that share a relative scale"},
    kHadamardRule,
};

inline constexpr Case cases[] = {
    {"N=8 K=512"},
    {"N=5 K=256 out=f16"},
    {"N=3 K=768 out=f32 hadamard=0"},
    {"N=3 K=272 hadamard=0"},
    {"N=3 K=272 out=f16 hadamard=16 codebook=f32"},
    {"N=4 K=2048 hadamard=1024 codebook=f32"},
    {"N=3 K=1280"},
    {"N=3 K=1024 codebook=f32 out=f16"},
    {"N=0 K=256", kEdge},
    {"N=3 K=0", kEdge},
    {"N=1 K=16 hadamard=0", kEdge},
    {"N=2200 K=256", kEdge},
    {"N=9 K=112 hadamard=0", kEdge, Dist::kSpecial},
    {"N=9 K=112 hadamard=0 out=f32 codebook=f32", kEdge, Dist::kSpecial},
    {"N=9 K=256 out=f32", kEdge, Dist::kSpecial},
    {"N=4 K=256", kEdge, Dist::kZeros},
    {"N=32768 K=16384", kBar},
    {"N=32768 K=16384 hadamard=0", kBar},
    {"N=65536 K=66048", kHuge},
};

inline constexpr OpSpec spec{
    .name = "dequantize_w4a8",
    .doc = "Turns codebook indices with a scale per 16 columns and row into values.",
    .source = "docs/formats/w4a8.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*N*K",
    .backward = {.why_not = "codes are no differentiable input"},
};

}  // namespace pestle::ops::dequantize_w4a8
