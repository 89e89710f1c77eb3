// scaled_mm_nvfp4: the contract. Numerics: docs/formats/nvfp4.md
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/linear/linear_args.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops::scaled_mm_nvfp4 {

inline constexpr Arg own_args[] = {
    input("a", "u8", "*M, K/2", "left rows, two E2M1 codes a byte"),
    input("b", "u8", "N, K/2", "right rows, one per output column, two E2M1 codes a byte"),
    input("scale_a", "e4m3",
          "swizzled: round_up(M,128), round_up(cdiv(K,16),4); plain: *M, cdiv(K,16)",
          "decode scale of each 16 columns of a")
        .selected_by("scale_layout"),
    input("scale_b", "e4m3",
          "swizzled: round_up(N,128), round_up(cdiv(K,16),4); plain: N, cdiv(K,16)",
          "decode scale of each 16 columns of b")
        .selected_by("scale_layout"),
    input("global_scale_a", "f32", "1", "decode scale of the whole of a"),
    input("global_scale_b", "f32", "1", "decode scale of the whole of b"),
    output("out", "bf16|f16|f32", "*M, " PESTLE_OUT_COLUMNS, "epilogue(a_decoded @ b_decoded^T)")
        .within(4, "K"),
    choice("nibbles", "high_first|low_first", kNibblesDoc),
    choice("scale_layout", kScaleLayouts, kScaleLayoutDoc),
};
inline constexpr auto args = with_epilogue(own_args);

inline constexpr Constraint constraints[] = {
    kEvenPairs,
    kGateRows,
    kBetaNeedsResidual,
    {"K % 16 == 0", "K must be a multiple of 16, the block; pad a and b with zeros"},
};

inline constexpr Case cases[] = {
    {"M=16 N=32 K=64"},
    {"M=5 N=7 K=48 out=f32 bias=f32 nibbles=low_first scale_layout=plain"},
    {"M=3x3 N=130 K=272 out=f16 bias=bf16 activation=gelu_tanh"},
    {"M=9 N=17 K=48 out=f32 alpha=f32 residual=bf16 activation=silu"},
    {"M=1 N=260 K=1040 out=f32"},
    {"M=130 N=50 K=640 scale_layout=plain"},
    {"M=9 N=33 K=160 nibbles=low_first out=f32 bias=f32"},
    {"M=9 N=34 K=64 gated=act_first activation=silu bias=f32"},
    {"M=6 N=38 K=64 out=f32 gated=act_last activation=gelu alpha=f32 residual=bf16", kEdge},
    {"M=2x4 N=40 K=64 gate=bf16 G=2 residual=f32 beta=f32"},
    {"M=512 N=520 K=64 bias=bf16 activation=gelu_tanh residual=bf16"},
    {"M=0 N=8 K=16", kEdge},
    {"M=2 N=3 K=0 out=f32 bias=f32", kEdge},
    {"M=1 N=1 K=16", kEdge},
    {"M=48 N=48 K=144", kEdge},
    {"M=2x259 N=515 K=96 out=f32 alpha=f32 nibbles=low_first scale_layout=plain", kEdge},
    {"M=2x256 N=513 K=32 gate=bf16 G=2 residual=f32 beta=f32", kEdge},
    {"M=512 N=515 K=96 out=f32", kEdge, Dist::kSpecial},
    {"M=512 N=512 K=64", kEdge, Dist::kZeros},
    {"M=5 N=9 K=80 out=f32", kEdge, Dist::kSpecial},
    {"M=1 N=9 K=80 out=f32", kEdge, Dist::kSpecial},
    {"M=5 N=9 K=96 out=f32", kEdge, Dist::kSpecial},
    {"M=2 N=9 K=80", kEdge, Dist::kZeros},
    {"M=256 N=3072 K=3072", kBar},
    {"M=65537 N=65537 K=16", kHuge},
};

inline constexpr OpSpec spec{
    .name = "scaled_mm_nvfp4",
    .doc = "Product of two NVFP4 matrices with all their scales, f32 accumulation and an epilogue.",
    .source = "docs/formats/nvfp4.md, docs/formats/swizzle.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward =
        {.why_not =
             "operands are codes; train through the linear op of the format, whose x is not"},
};

}  // namespace pestle::ops::scaled_mm_nvfp4
