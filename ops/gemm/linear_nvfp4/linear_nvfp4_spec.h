// linear_nvfp4: the contract. Numerics: docs/formats/nvfp4.md
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/linear/input_rows.h"
#include "ops/gemm/linear/linear_args.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops::linear_nvfp4 {

inline constexpr Arg own_args[] = {
    kInputX,
    input("weight", "u8", "N, K/2", "one row per output column, two E2M1 codes a byte"),
    input("scale", "e4m3",
          "swizzled: round_up(N,128), round_up(cdiv(K,16),4); plain: N, cdiv(K,16)",
          "decode scale of each 16 columns, in units of the global scale")
        .selected_by("scale_layout"),
    input("global_scale", "f32", "1", "decode scale of the whole weight"),
    kLinearOut,
    choice("nibbles", "high_first|low_first", kNibblesDoc),
    choice("scale_layout", kScaleLayouts, kScaleLayoutDoc),
};
inline constexpr auto args = joined(with_epilogue(own_args), kInputArgs);

inline constexpr Constraint constraints[] = {
    kEvenPairs,
    kGateRows,
    kBetaNeedsResidual,
    kInputConstraint,
    {"K % 16 == 0", "K must be a multiple of 16, the block; pad x and the weight with zeros"},
};

inline constexpr Case cases[] = {
    {"M=1 N=64 K=256"},
    {"M=16 N=96 K=512 nibbles=low_first scale_layout=plain bias=bf16"},
    {"M=1 N=37 K=144 x=f32 out=f32 bias=f32 activation=silu"},
    {"M=1 N=261 K=1296 x=f16 out=f32 scale_layout=plain residual=bf16"},
    {"M=2x3 N=131 K=272 nibbles=low_first out=f32 alpha=f32 activation=gelu_tanh"},
    {"M=133 N=50 K=640 bias=f16 out=f16"},
    {"M=1 N=16 K=16", kEdge},
    {"M=48 N=48 K=144", kEdge},
    {"M=3 N=40 K=128 input_act=swiglu bias=f32"},
    {"M=5 N=24 K=256 out=f32 input_act=rms_norm norm_weight=bf16"},
    {"M=2x2 N=16 K=64 x=f16 input_act=gelu_tanh", kEdge},
    {"M=9 N=34 K=64 gated=act_first activation=silu bias=f32"},
    {"M=6 N=38 K=64 out=f32 gated=act_last activation=gelu alpha=f32 residual=bf16", kEdge},
    {"M=2x4 N=40 K=64 gate=bf16 G=2 residual=f32 beta=f32"},
    {"M=17 N=131 K=96 out=f32"},
    {"M=130 N=257 K=160 x=f16 nibbles=low_first scale_layout=plain bias=f32"},
    {"M=200 N=96 K=352 out=f32 gate=bf16 G=5 residual=bf16 beta=f32 activation=gelu"},
    {"M=300 N=530 K=1056 bias=f32 residual=bf16 activation=silu"},
    // k in parts, where multiprocessors are more than tiles.
    {"M=150 N=203 K=1696 scale_layout=plain out=f32 bias=bf16 residual=f32 beta=f32 "
     "activation=gelu"},
    {"M=2x70 N=333 K=2080 nibbles=low_first x=f16 alpha=f32 gate=bf16 G=2", kEdge},
    {"M=150 N=141 K=1312 out=f32", kEdge, Dist::kSpecial},
    {"M=150 N=141 K=1280 nibbles=low_first out=f32", kEdge, Dist::kSpecial},
    {"M=33 N=131 K=1056 out=f32", kEdge, Dist::kSubnormal},
    {"M=97 N=300 K=736 x=f16 out=f32 scale_layout=plain", kEdge, Dist::kSpecial},
    {"M=66 N=140 K=96 out=f32", kEdge, Dist::kSpecial},
    // Decoded to x's dtype first.
    {"M=1536 N=40 K=64"},
    {"M=2050 N=36 K=32 x=f16 out=f32 nibbles=low_first scale_layout=plain bias=f32 residual=bf16",
     kEdge},
    {"M=2x1024 N=24 K=32 alpha=f32 gate=bf16 G=2 residual=bf16 beta=f32", kEdge},
    {"M=2048 N=12 K=32 out=f32", kEdge, Dist::kSpecial},
    {"M=2048 N=12 K=32 out=f32", kEdge, Dist::kSubnormal},
    {"M=0 N=8 K=16", kEdge},
    {"M=3 N=0 K=16", kEdge},
    {"M=2 N=3 K=0 out=f32 bias=f32", kEdge},
    {"M=1 N=9 K=304 x=f32 out=f32", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=304 x=f32 out=f32 scale_layout=plain", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=96 x=f32 out=f32", kEdge, Dist::kSubnormal},
    {"M=1 N=9 K=304 out=f32", kEdge, Dist::kSubnormal},
    {"M=1 N=9 K=96", kEdge, Dist::kZeros},
    {"M=1 N=6 K=16384 x=f32 out=f32", kSmoke, Dist::kOutliers},
    {"M=1 N=9 K=96 x=f32 out=f32", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=96 x=f32 out=f32 scale_layout=plain", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=96 out=f32", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=96 out=f32", kEdge, Dist::kSpecial},
    {"M=3 N=13000 K=224 out=f32", kEdge},
    {"M=12 N=48 K=6176 x=f16", kEdge},
    {"M=16 N=20 K=16416 out=f32", kEdge},
    {"M=12 N=2200 K=1120", kEdge},
    {"M=27 N=200 K=1120 x=f16 scale_layout=plain", kEdge},
    {"M=6 N=40 K=8480", kEdge},
    {"M=1 N=16384 K=4096", kBar},
    {"M=1 N=16384 K=4096 nibbles=low_first scale_layout=plain", kBar},
    {"M=64 N=3072 K=3072", kBar},
    {"M=64 N=12288 K=3072", kBar},
    {"M=256 N=12288 K=3072", kBar},
    {"M=4608 N=12288 K=3072", kBar},
    {"M=32760 N=5120 K=5120", kBar},
    {"M=1 N=131073 K=65552", kHuge},
};

inline constexpr OpSpec spec{
    .name = "linear_nvfp4",
    .doc = "Linear layer with an NVFP4 weight: epilogue(x @ W^T).",
    .source = "docs/formats/nvfp4.md, docs/formats/swizzle.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward = linear_backward(
        "a=rows(grad(out)), alpha=alpha, "
        "b=dequantize_nvfp4(q=weight, scale=scale, global_scale=global_scale) as grad(out)",
        kNoGradientOfActivation),
};

}  // namespace pestle::ops::linear_nvfp4
