// linear_w4a8: the contract. Numerics: docs/formats/w4a8.md
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/linear/input_rows.h"
#include "ops/gemm/linear/linear_args.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::linear_w4a8 {

inline constexpr Arg own_args[] = {
    kInputX,
    input("weight", "u8", "N, K/2", "indices into the codebook, two a byte: the even column low"),
    input("scale_rel", "e4m3", "N, K/16", "scale of 16 columns, relative to the row's"),
    input("scale_channel", "f32", "N", "scale of the row"),
    input("codebook", "f32", "16", "values of the indices; the fixed table when absent").optional(),
    kLinearOut,
    int_attr("hadamard", 256, kLinearHadamardDoc),
};
inline constexpr auto args = joined(with_epilogue(own_args), kInputArgs);

inline constexpr Constraint constraints[] = {
    kEvenPairs,
    kGateRows,
    kBetaNeedsResidual,
    kInputConstraint,
    {"K % 16 == 0", "K must be a multiple of 16, the columns that share a relative scale"},
    kHadamardRule,
};

inline constexpr Case cases[] = {
    {"M=1 N=64 K=256"},
    {"M=16 N=96 K=512 bias=bf16"},
    {"M=1 N=37 K=144 x=f32 out=f32 bias=f32 hadamard=16 activation=silu"},
    {"M=1 N=261 K=1296 x=f16 out=f32 hadamard=0 codebook=f32 residual=bf16"},
    {"M=2x3 N=131 K=1024 hadamard=1024 out=f32 alpha=f32 activation=gelu_tanh"},
    {"M=133 N=50 K=768 bias=f16 out=f16 codebook=f32"},
    {"M=1 N=1 K=16 hadamard=0", kEdge},
    {"M=3 N=40 K=128 hadamard=64 input_act=swiglu bias=f32"},
    {"M=5 N=24 K=256 hadamard=256 out=f32 input_act=rms_norm norm_weight=bf16"},
    {"M=2x2 N=16 K=64 x=f16 hadamard=0 input_act=gelu_tanh", kEdge},
    {"M=9 N=34 K=64 hadamard=16 gated=act_first activation=silu bias=f32"},
    {"M=6 N=38 K=64 hadamard=16 out=f32 gated=act_last activation=gelu alpha=f32 residual=bf16",
     kEdge},
    {"M=2x4 N=40 K=64 hadamard=16 gate=bf16 G=2 residual=f32 beta=f32"},
    {"M=0 N=8 K=16 hadamard=16", kEdge},
    {"M=3 N=0 K=256", kEdge},
    {"M=2 N=3 K=0 out=f32 bias=f32", kEdge},
    {"M=1 N=9 K=304 x=f32 out=f32 hadamard=0", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=304 x=f32 out=f32 codebook=f32 hadamard=0", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=304 x=f32 out=f32 codebook=f32 hadamard=16", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=320 x=f32 out=f32 hadamard=64", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=256 x=f32 out=f32", kEdge, Dist::kSubnormal},
    {"M=1 N=9 K=256", kEdge, Dist::kZeros},
    {"M=1 N=6 K=16384 x=f32 out=f32", kSmoke, Dist::kOutliers},
    {"M=1 N=16384 K=4096", kBar},
    {"M=64 N=3072 K=3072", kBar},
    {"M=1 N=131073 K=65792", kHuge},
};

inline constexpr OpSpec spec{
    .name = "linear_w4a8",
    .doc =
        "Linear layer with a W4A8 weight (codebook indices that decode to int8): epilogue(x @ "
        "W^T).",
    .source = "docs/formats/w4a8.md, docs/formats/hadamard.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward = linear_backward("a=rows(grad(out)), alpha=alpha, "
                                "b=dequantize_w4a8(q=weight, scale_rel=scale_rel, "
                                "scale_channel=scale_channel, codebook=codebook) as grad(out)",
                                kNoGradientOfActivation),
};

}  // namespace pestle::ops::linear_w4a8
