// scaled_mm_fp8: the contract.
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/epilogue/epilogue.h"
#include "ops/gemm/linear/linear_output.h"

namespace pestle::ops::scaled_mm_fp8 {

inline constexpr Arg own_args[] = {
    input("a", "e4m3|e5m2", "*M, K", "left codes"),
    input("b", "e4m3|e5m2", "N, K", "right codes, one row per output column (a weight)"),
    input("scale_a", "f32", "tensor: 1; row: *M, 1; block: *M, cdiv(K,128)", "decode scales of a")
        .selected_by("granularity"),
    input("scale_b", "f32", "tensor: 1; row: N, 1; block: cdiv(N,128), cdiv(K,128)",
          "decode scales of b")
        .selected_by("granularity"),
    kept_output(output("out", "bf16|f16|f32", "*M, " PESTLE_OUT_COLUMNS,
                       "epilogue(a_decoded @ b_decoded^T)"))
        .within(4,
                "if(accumulation == f32, K, if(accumulation == fast && granularity != block, "
                "(16*K+4096)*(16*K+4096), 16777216+K))"),
    choice("granularity", "tensor|row|block",
           "tensor, row: a scale of all or of each row, which multiplies sums; block: 1x128 of a "
           "with 128x128 of b, of terms"),
    choice(
        "accumulation", "accurate|fast|f32",
        "what sums along K may lose. accurate: sums of 128 products by tensor cores, whose 8-bit "
        "floats keep 13 bits behind the largest term, added in f32; fast: one such sum of all "
        "(blocks: as accurate); f32: nothing is lost before f32"),
};
inline constexpr auto args = joined(with_epilogue(own_args), kRowsOutputArgs);

inline constexpr Constraint own_constraints[] = {
    kEvenPairs,
    kGateRows,
    kBetaNeedsResidual,
};
inline constexpr auto constraints = with_rows_output(
    own_constraints, "rank(a) == 2 || (out_format != nvfp4 && out_format != mxfp8)");

inline constexpr Case cases[] = {
    {"M=16 N=32 K=64"},
    {"M=5 N=7 K=33 b=e5m2 out=f32 bias=f32 granularity=row"},
    {"M=3x3 N=130 K=257 out=f16 bias=bf16 granularity=block activation=gelu_tanh"},
    {"M=9 N=17 K=48 out=f32 alpha=f32 residual=bf16 granularity=row activation=silu"},
    {"M=140 N=264 K=640 accumulation=fast out=f32 granularity=row residual=bf16"},
    {"M=70 N=200 K=272 accumulation=fast bias=bf16 residual=bf16 activation=gelu"},
    {"M=75 N=144 K=528 accumulation=fast granularity=row bias=bf16"},
    {"M=40 N=272 K=400 accumulation=fast b=e5m2 out=f32"},
    {"M=75 N=144 K=528 granularity=row b=e5m2 out=f16"},
    {"M=76 N=144 K=656 granularity=block"},
    {"M=150 N=136 K=400 a=e5m2 granularity=block bias=f32"},
    {"M=66 N=80 K=336 a=e5m2 b=e5m2 granularity=row out=f16 residual=f16 activation=gelu_tanh"},
    {"M=5 N=7 K=33 out=f32 accumulation=f32 granularity=row"},
    {"M=6 N=9 K=300 out=f32 accumulation=f32 granularity=block"},
    {"M=3 N=200 K=272 granularity=row bias=f32 residual=bf16 activation=silu accumulation=f32"},
    {"M=13 N=321 K=4112 granularity=row b=e5m2 out=f32 accumulation=f32"},
    {"M=16 N=64 K=80 a=e5m2"},
    {"M=5 N=48 K=40 q_scale=f32 out_format=fp8_tensor bias=f32"},
    {"M=2x3 N=72 K=48 granularity=row out_format=fp8_row activation=silu"},
    {"M=9 N=300 K=64 granularity=row out_format=fp8_block keep_out=true"},
    {"M=9 N=128 K=33 out_format=int8_row out_hadamard=64 residual=bf16"},
    {"M=130 N=48 K=64 granularity=row global_scale=f32 out_format=nvfp4"},
    {"M=5 N=96 K=72 out_format=mxfp8 scale_layout=plain keep_out=true out=f32"},
    {"M=9 N=34 K=64 granularity=row gated=act_first activation=silu bias=f32"},
    {"M=6 N=38 K=64 granularity=row out=f32 gated=act_last activation=gelu alpha=f32 residual=bf16",
     kEdge},
    {"M=2x4 N=40 K=64 granularity=row gate=bf16 G=2 residual=f32 beta=f32"},
    {"M=140 N=272 K=144 granularity=row gated=act_first activation=silu bias=f32"},
    {"M=256 N=72 K=160 granularity=row gate=f32 G=2 residual=bf16 bias=bf16"},
    {"M=140 N=272 K=144 gated=act_last activation=gelu_tanh accumulation=fast b=e5m2"},
    {"M=70 N=72 K=256 granularity=block gated=act_first gate=f32 G=70"},
    {"M=13 N=40 K=10368 granularity=row b=e5m2", kEdge},
    {"M=2 N=8456 K=128 granularity=row", kEdge},
    // Long enough for split-K.
    {"M=70 N=40 K=7184 granularity=row bias=bf16 residual=bf16 activation=silu"},
    {"M=20 N=136 K=7232 accumulation=fast out=f32"},
    {"M=20 N=136 K=7296 granularity=block out=f32"},
    {"M=20 N=40 K=7200 granularity=row", kEdge, Dist::kSpecial},
    {"M=0 N=8 K=16", kEdge},
    {"M=2 N=3 K=0 out=f32 bias=f32", kEdge},
    {"M=1 N=1 K=1", kEdge},
    {"M=5 N=9 K=19 out=f32", kEdge, Dist::kSpecial},
    {"M=9 N=17 K=48 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=40 N=144 K=96 accumulation=fast", kEdge, Dist::kSpecial},
    {"M=40 N=144 K=96 b=e5m2 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=8 N=144 K=2 out=f32 granularity=row accumulation=f32", kEdge, Dist::kSpecial},
    {"M=5 N=130 K=272 granularity=block", kEdge, Dist::kSpecial},
    {"M=16 N=14336 K=4096 granularity=row", kBar},
    {"M=256 N=3072 K=3072", kBar},
    {"M=4608 N=12288 K=3072 accumulation=fast", kBar},
    {"M=4608 N=12288 K=3072 granularity=row", kBar},
    {"M=4608 N=24576 K=3072 granularity=row gated=act_first activation=silu", kBar},
    {"M=4608 N=12288 K=3072 granularity=block", kBar},
    {"M=4608 N=12288 K=3072 granularity=row out_format=fp8_row activation=gelu_tanh", kBar},
    {"M=4608 N=3072 K=12288 granularity=row accumulation=fast", kBar},
    {"M=32760 N=5120 K=5120 granularity=row accumulation=fast", kBar},
    {"M=32760 N=5120 K=5120 granularity=row", kBar},
};

inline constexpr OpSpec spec{
    .name = "scaled_mm_fp8",
    .doc = "Product of two FP8 matrices with decode scales, f32 accumulation and an epilogue.",
    .source = "docs/formats/fp8.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward = {.why_not = "operands are codes; train through linear_fp8, whose x is not"},
};

}  // namespace pestle::ops::scaled_mm_fp8
