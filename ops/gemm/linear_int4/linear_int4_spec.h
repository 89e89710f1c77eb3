// linear_int4: the contract. Numerics: docs/formats/int4.md
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/linear/input_rows.h"
#include "ops/gemm/linear/linear_args.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::linear_int4 {

inline constexpr Arg own_args[] = {
    kInputX,
    input("weight", "u8", "N, K/2", "codes, two a byte: the even column in the low nibble"),
    input("scale", "f32", kInt4GroupShape, "decode scale of each group"),
    input("zero", "u8", kInt4GroupShape, "zero point of each group").only_if("mode == asymmetric"),
    kLinearOut.within(4, "K + if(decoded == as_x && bytes(x) == 2, 268435456, 0)"),
    int_attr("group_size", 0, "columns that share a scale; 0: the whole row"),
    choice("mode", kInt4Modes,
           "symmetric: two's complement codes; asymmetric: codes 0..15 and zero"),
    int_attr("hadamard", 0, kLinearHadamardDoc),
    choice("decoded", "exact|as_x",
           "exact: the weight's values as f32 has them; as_x: they may be rounded to x's dtype, as "
           "dequantize_int4 rounds, an error of 2^-8 of each term at most"),
};
inline constexpr auto args = joined(with_epilogue(own_args), kInputArgs);

inline constexpr Constraint constraints[] = {
    kEvenPairs, kGateRows, kBetaNeedsResidual, kInputConstraint, kInt4GroupRule, kHadamardRule,
};

inline constexpr Case cases[] = {
    {"M=1 N=64 K=256 group_size=32"},
    {"M=16 N=96 K=512 group_size=128 bias=bf16"},
    {"M=1 N=37 K=130 x=f32 out=f32 bias=f32 activation=silu"},
    {"M=1 N=130 K=320 x=f16 out=f32 group_size=64 mode=asymmetric"},
    {"M=6 N=130 K=300 x=f16 out=f16 group_size=100 bias=f32"},
    {"M=1 N=259 K=1280 hadamard=256 out=f32 residual=bf16"},
    {"M=1 N=30 K=1536 group_size=384 out=f32 mode=asymmetric"},
    {"M=2x3 N=131 K=1024 group_size=32 hadamard=1024 out=f32 alpha=f32 activation=gelu_tanh"},
    {"M=133 N=50 K=640 group_size=128 mode=asymmetric"},
    {"M=3 N=40 K=128 group_size=32 input_act=swiglu bias=f32"},
    {"M=5 N=24 K=256 hadamard=64 out=f32 input_act=rms_norm norm_weight=bf16"},
    {"M=2x2 N=16 K=64 x=f16 group_size=32 input_act=gelu_tanh", kEdge},
    {"M=9 N=34 K=64 group_size=32 gated=act_first activation=silu bias=f32"},
    {"M=6 N=38 K=64 group_size=32 out=f32 gated=act_last activation=gelu alpha=f32 residual=bf16",
     kEdge},
    {"M=2x4 N=40 K=64 group_size=32 gate=bf16 G=2 residual=f32 beta=f32"},
    {"M=17 N=131 K=96 group_size=32 out=f32"},
    {"M=130 N=257 K=160 x=f16 mode=asymmetric bias=f32"},
    {"M=200 N=96 K=384 group_size=128 out=f32 gate=bf16 G=5 residual=bf16 beta=f32 "
     "activation=gelu"},
    {"M=5 N=70 K=256 group_size=64 decoded=as_x bias=f32"},
    {"M=130 N=96 K=384 x=f16 group_size=128 mode=asymmetric decoded=as_x out=f32"},
    {"M=300 N=530 K=1056 group_size=32 decoded=as_x bias=f32 residual=bf16 activation=silu"},
    // k in parts, where multiprocessors are more than tiles.
    {"M=150 N=203 K=1696 group_size=32 decoded=as_x out=f32 bias=bf16 residual=f32 beta=f32 "
     "activation=gelu"},
    {"M=2x70 N=333 K=2048 group_size=128 mode=asymmetric x=f16 alpha=f32 gate=bf16 G=2", kEdge},
    {"M=150 N=141 K=1312 group_size=32 mode=asymmetric decoded=as_x out=f32", kEdge,
     Dist::kSpecial},
    {"M=150 N=141 K=1280 group_size=128 mode=asymmetric out=f32", kEdge, Dist::kSpecial},
    {"M=33 N=131 K=1056 group_size=32 mode=asymmetric decoded=as_x out=f32", kEdge,
     Dist::kSubnormal},
    {"M=97 N=300 K=768 group_size=128 mode=asymmetric decoded=as_x out=f32", kEdge, Dist::kSpecial},
    {"M=66 N=140 K=96 group_size=32 decoded=as_x out=f32", kEdge, Dist::kSubnormal},
    {"M=140 N=270 K=416 group_size=128 gate=bf16 G=2 out=f32"},
    {"M=130 N=140 K=704 x=f16 group_size=64 mode=asymmetric out=f32", kEdge, Dist::kSpecial},
    {"M=131 N=140 K=288 group_size=32 mode=asymmetric"},
    // Decoded to x's dtype first.
    {"M=1024 N=40 K=64 group_size=32 decoded=as_x bias=f32 residual=bf16 activation=silu"},
    {"M=2050 N=36 K=64 group_size=32 mode=asymmetric decoded=as_x out=f32", kEdge},
    {"M=2048 N=12 K=32 decoded=as_x out=f32", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 mode=asymmetric decoded=as_x out=f32", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 decoded=as_x out=f32", kEdge, Dist::kSubnormal},
    {"M=0 N=8 K=16", kEdge},
    {"M=3 N=0 K=16", kEdge},
    {"M=2 N=3 K=0 out=f32 bias=f32", kEdge},
    {"M=1 N=1 K=2", kEdge},
    {"M=1 N=5 K=70 group_size=32 out=f32", kEdge},
    {"M=3 N=5 K=94 group_size=6 out=f32", kEdge},
    {"M=1 N=9 K=304 x=f32 out=f32 group_size=16", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=320 x=f32 out=f32 group_size=32 mode=asymmetric", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=256 x=f32 out=f32 hadamard=16", kEdge, Dist::kSubnormal},
    {"M=1 N=9 K=288 out=f32", kEdge, Dist::kSubnormal},
    {"M=1 N=9 K=96 group_size=32", kEdge, Dist::kZeros},
    {"M=1 N=6 K=16384 x=f32 out=f32", kSmoke, Dist::kOutliers},
    {"M=1 N=9 K=96 out=f32 group_size=32 mode=asymmetric", kEdge, Dist::kSpecial},
    {"M=9 N=33 K=1056 out=f32 group_size=32", kEdge, Dist::kSpecial},
    {"M=2 N=13000 K=256 group_size=128", kEdge},
    {"M=16 N=24 K=8224 group_size=32 mode=asymmetric out=f32", kEdge},
    {"M=12 N=4300 K=1152 group_size=128", kEdge},
    {"M=27 N=200 K=1152 x=f16 group_size=64 mode=asymmetric", kEdge},
    {"M=12 N=4300 K=1152 group_size=128 decoded=as_x", kEdge},
    {"M=6 N=40 K=8448 group_size=128", kEdge},
    {"M=14 N=40 K=8448 x=f16 group_size=64 mode=asymmetric", kEdge},
    {"M=1 N=16384 K=4096 group_size=32", kBar},
    {"M=1 N=16384 K=4096 group_size=128", kBar},
    {"M=1 N=16384 K=4096 group_size=128 mode=asymmetric", kBar},
    {"M=1 N=16384 K=4096 hadamard=256", kBar},
    {"M=64 N=3072 K=3072 group_size=128", kBar},
    {"M=64 N=12288 K=3072 group_size=128", kBar},
    {"M=256 N=12288 K=3072 group_size=128", kBar},
    {"M=4608 N=12288 K=3072 group_size=128", kBar},
    {"M=4608 N=12288 K=3072 group_size=128 decoded=as_x", kBar},
    {"M=1 N=131073 K=65538", kHuge},
};

inline constexpr OpSpec spec{
    .name = "linear_int4",
    .doc = "Linear layer with an INT4 weight in groups, rotated or not: epilogue(x @ W^T).",
    .source = "docs/formats/int4.md, docs/formats/hadamard.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward = linear_backward("a=rows(grad(out)), alpha=alpha, "
                                "b=dequantize_int4(q=weight, scale=scale, zero=zero) as grad(out)",
                                kNoGradientOfActivation),
};

}  // namespace pestle::ops::linear_int4
