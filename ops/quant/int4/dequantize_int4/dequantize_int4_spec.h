// dequantize_int4: the contract. Numerics: docs/formats/int4.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::dequantize_int4 {

inline constexpr Arg args[] = {
    input("q", "u8", "N, K/2", "codes, two a byte: the even column in the low nibble"),
    input("scale", "f32", kInt4GroupShape, "decode scale of each group"),
    input("zero", "u8", kInt4GroupShape, "zero point of each group").only_if("mode == asymmetric"),
    output("out", "bf16|f16|f32", "N, K", "code * scale, or (code - zero) * scale, rotated back")
        .within(1, "hadamard"),
    int_attr("group_size", 0, "columns that share a scale; 0: the whole row"),
    choice("mode", kInt4Modes,
           "symmetric: two's complement codes; asymmetric: codes 0..15 and zero"),
    int_attr("hadamard", 0, "columns were rotated in groups of this many; 0: no rotation"),
};

inline constexpr Constraint constraints[] = {
    kInt4GroupRule,
    kHadamardRule,
};

inline constexpr Case cases[] = {
    {"N=8 K=256 group_size=32"},
    {"N=5 K=256 group_size=64 out=f16"},
    {"N=3 K=384 group_size=128 out=f32"},
    {"N=7 K=512"},
    {"N=6 K=256 group_size=32 mode=asymmetric"},
    {"N=4 K=320 group_size=128 mode=asymmetric out=f32"},
    {"N=3 K=160 mode=asymmetric out=f16"},
    {"N=4 K=512 hadamard=256"},
    {"N=3 K=2048 group_size=64 hadamard=1024 out=f32 mode=asymmetric"},
    {"N=3 K=64 group_size=32 hadamard=16 out=f16"},
    {"N=0 K=64 group_size=32", kEdge},
    {"N=3 K=0 group_size=32", kEdge},
    {"N=3 K=0", kEdge},
    {"N=1 K=2", kEdge},
    {"N=1 K=2 group_size=2 mode=asymmetric", kEdge},
    {"N=5 K=70 group_size=32", kEdge},
    {"N=5 K=94 group_size=6 out=f32", kEdge},
    {"N=3 K=4 hadamard=4 out=f32", kEdge},
    {"N=9 K=128 group_size=32", kEdge, Dist::kSpecial},
    {"N=9 K=128 group_size=32 out=f16", kEdge, Dist::kSpecial},
    {"N=9 K=128 group_size=32 out=f32 mode=asymmetric", kEdge, Dist::kSpecial},
    {"N=9 K=128 group_size=32 hadamard=64", kEdge, Dist::kSpecial},
    {"N=4 K=64 group_size=32", kEdge, Dist::kZeros},
    {"N=3 K=2304 hadamard=256", kEdge},
    {"N=2200 K=256 hadamard=256", kEdge},
    {"N=32768 K=16384 group_size=32", kBar},
    {"N=32768 K=16384 group_size=64", kBar},
    {"N=32768 K=16384 group_size=128", kBar},
    {"N=32768 K=16384 group_size=128 mode=asymmetric", kBar},
    {"N=32768 K=16384 hadamard=256", kBar},
    {"N=65538 K=65538 group_size=128", kHuge},
};

inline constexpr OpSpec spec{
    .name = "dequantize_int4",
    .doc = "Turns INT4 codes with a scale (and a zero point) per group of columns into values.",
    .source = "docs/formats/int4.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "N*K",
    .backward = {.why_not = "codes are no differentiable input"},
};

}  // namespace pestle::ops::dequantize_int4
