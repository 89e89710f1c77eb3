// quantize_int4: the contract. Numerics: docs/formats/int4.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::quantize_int4 {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "N, K", "values to quantise, one row per output of a linear"),
    output("q", "u8", "N, K/2", "codes, two a byte: the even column in the low nibble"),
    output("scale_out", "f32", kInt4GroupShape, "decode scale of each group"),
    output("zero_out", "u8", kInt4GroupShape, "zero point of each group, 0..15")
        .only_if("mode == asymmetric"),
    int_attr("group_size", 0, "columns that share a scale; 0: the whole row"),
    choice("mode", kInt4Modes,
           "symmetric: two's complement codes times scale; asymmetric: (code - zero) * scale"),
    int_attr("hadamard", 0, "rotate groups of this many columns first; 0: no rotation"),
    choice("rounding", "nearest|stochastic", "nearest: ties to even; stochastic: by Philox bits"),
    int_attr("seed", 0, "Philox seed of stochastic rounding"),
};

inline constexpr Constraint constraints[] = {
    {"K % 2 == 0", "K must be even: two codes share a byte; pad x by a column of zeros"},
    kInt4GroupRule,
    kHadamardRule,
};

inline constexpr Case cases[] = {
    {"N=8 K=256 group_size=32"},
    {"N=5 K=256 group_size=64 x=f16"},
    {"N=3 K=384 group_size=128 x=f32", kSmoke, Dist::kOutliers},
    {"N=7 K=512"},
    {"N=6 K=256 group_size=32 mode=asymmetric"},
    {"N=4 K=320 group_size=128 mode=asymmetric x=f32"},
    {"N=3 K=160 mode=asymmetric x=f16 rounding=stochastic seed=5"},
    {"N=4 K=512 hadamard=256"},
    {"N=3 K=2048 group_size=64 hadamard=1024 x=f32 mode=asymmetric"},
    {"N=3 K=64 group_size=32 hadamard=16 x=f16 rounding=stochastic seed=9"},
    {"N=5 K=96 group_size=32 rounding=stochastic seed=3"},
    {"N=0 K=64 group_size=32", kEdge},
    {"N=3 K=0 group_size=32", kEdge},
    {"N=3 K=0", kEdge},
    {"N=1 K=2", kEdge},
    {"N=1 K=2 group_size=2 mode=asymmetric", kEdge},
    {"N=5 K=70 group_size=32", kEdge},
    {"N=5 K=94 group_size=6 x=f32", kEdge},
    {"N=3 K=4 hadamard=4 x=f32", kEdge},
    {"N=9 K=128 group_size=32", kEdge, Dist::kSpecial},
    {"N=9 K=128 group_size=32 x=f32", kEdge, Dist::kSpecial},
    {"N=9 K=128 group_size=32 x=f16", kEdge, Dist::kSpecial},
    {"N=9 K=128 group_size=32 x=f32 mode=asymmetric", kEdge, Dist::kSpecial},
    {"N=9 K=126 x=bf16 mode=asymmetric", kEdge, Dist::kSpecial},
    {"N=9 K=128 group_size=64 rounding=stochastic seed=2", kEdge, Dist::kSpecial},
    {"N=4 K=64 group_size=32 x=f32", kEdge, Dist::kSubnormal},
    {"N=4 K=64 group_size=32 x=f32 mode=asymmetric", kEdge, Dist::kSubnormal},
    {"N=4 K=64 group_size=32", kEdge, Dist::kZeros},
    {"N=4 K=64 group_size=32 mode=asymmetric", kEdge, Dist::kZeros},
    {"N=3 K=2304 hadamard=256", kEdge},
    {"N=2200 K=256 hadamard=256", kEdge},
    {"N=2 K=2048 hadamard=64 mode=asymmetric x=f16", kEdge},
    {"N=3 K=2080 hadamard=16 rounding=stochastic seed=6 x=f32", kEdge},
    {"N=32768 K=16384 group_size=32", kBar},
    {"N=32768 K=16384 group_size=64", kBar},
    {"N=32768 K=16384 group_size=128", kBar},
    {"N=32768 K=16384 group_size=128 mode=asymmetric", kBar},
    {"N=32768 K=16384 hadamard=256", kBar},
    {"N=65538 K=65538 group_size=128", kHuge},
};

inline constexpr OpSpec spec{
    .name = "quantize_int4",
    .doc = "Quantises rows to INT4 with a decode scale (and a zero point) per group of columns.",
    .source = "docs/formats/int4.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*N*K",
    .backward = {.why_not = "codes are piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::quantize_int4
