// scaled_mm_int8: the contract. Numerics: docs/formats/int8.md
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/epilogue/epilogue.h"
#include "ops/gemm/linear/linear_output.h"

namespace pestle::ops::scaled_mm_int8 {

// acc = sum of a * b, exact in integers of any length of K; then ((f32(acc) * scale_a) * scale_b),
// or f32(acc) * host_scale, then the epilogue, all in f32. A weight [K, N] is b transposed.
inline constexpr Arg own_args[] = {
    input("a", "i8", "*M, K", "left codes"),
    input("b", "i8", "N, K", "right codes, one row per output column (a weight)"),
    input("scale_a", "f32", "tensor|host: 1; row: *M, 1", "decode scales of a")
        .selected_by("granularity")
        .only_if("granularity != host"),
    input("scale_b", "f32", "tensor|host: 1; row: N, 1", "decode scales of b")
        .selected_by("granularity")
        .only_if("granularity != host"),
    kept_output(output("out", "bf16|f16|f32", "*M, " PESTLE_OUT_COLUMNS,
                       "epilogue(a_decoded @ b_decoded^T)"))
        .within(4, "1"),
    choice("granularity", "tensor|row|host",
           "row: one scale per row of a and of b; host: one for the product, host_scale"),
    float_attr("host_scale", 1, "granularity=host: scale of a times scale of b, as f32"),
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
    {"M=5 N=7 K=33 out=f32 bias=f32 granularity=row"},
    {"M=3x3 N=130 K=257 out=f16 bias=bf16 granularity=row activation=gelu_tanh"},
    {"M=9 N=17 K=48 out=f32 alpha=f32 residual=bf16 granularity=row activation=silu"},
    {"M=1 N=260 K=1300 out=f32 granularity=row"},
    {"M=133 N=50 K=640 granularity=row bias=f16"},
    {"M=2 N=3 K=140000 out=f32"},  // beyond what one s32 sum of 8-bit products can hold
    {"M=140 N=264 K=640 granularity=row residual=bf16"},
    {"M=70 N=200 K=272 granularity=row out=f16 bias=bf16 residual=f16 activation=gelu"},
    {"M=3 N=200 K=272 granularity=row bias=f32 residual=bf16 activation=silu"},
    {"M=13 N=321 K=4112 granularity=row out=f32"},
    {"M=5 N=48 K=40 q_scale=f32 out_format=fp8_tensor bias=f32"},
    {"M=2x3 N=72 K=48 granularity=row out_format=fp8_row activation=silu"},
    {"M=9 N=300 K=64 granularity=row out_format=fp8_block keep_out=true"},
    {"M=9 N=128 K=33 out_format=int8_row out_hadamard=64 residual=bf16"},
    {"M=130 N=48 K=64 granularity=row global_scale=f32 out_format=nvfp4"},
    {"M=5 N=96 K=72 out_format=mxfp8 scale_layout=plain keep_out=true out=f32"},
    {"M=6 N=72 K=64 granularity=host host_scale=0.0078125 out=f32"},
    {"M=3 N=40 K=33 granularity=host host_scale=0.3 q_scale=f32 out_format=int8_row"},
    {"M=9 N=34 K=64 granularity=row gated=act_first activation=silu bias=f32"},
    {"M=6 N=38 K=64 granularity=row out=f32 gated=act_last activation=gelu alpha=f32 residual=bf16",
     kEdge},
    {"M=2x4 N=40 K=64 granularity=row gate=bf16 G=2 residual=f32 beta=f32"},
    {"M=140 N=272 K=144 granularity=row gated=act_first activation=silu bias=f32"},
    {"M=256 N=72 K=160 granularity=row gate=f32 G=2 residual=bf16 bias=bf16"},
    {"M=5 N=128 K=48 granularity=row gated=act_last activation=gelu out_format=int8_row", kEdge},
    // Long enough for split-K.
    {"M=70 N=40 K=7184 granularity=row bias=bf16 residual=bf16 activation=silu"},
    {"M=20 N=136 K=7248 out=f32", kEdge},
    {"M=0 N=8 K=16", kEdge},
    {"M=13 N=40 K=10368 granularity=row", kEdge},
    {"M=3 N=0 K=16", kEdge},
    {"M=2 N=3 K=0 out=f32 bias=f32", kEdge},
    {"M=1 N=1 K=1", kEdge},
    {"M=5 N=9 K=19 out=f32 granularity=row", kEdge, Dist::kSpecial},
    {"M=2 N=9 K=80", kEdge, Dist::kZeros},
    {"M=16 N=14336 K=4096 granularity=row", kBar},
    {"M=256 N=3072 K=3072 granularity=row", kBar},
    {"M=4608 N=12288 K=3072 granularity=row", kBar},
    {"M=4608 N=24576 K=3072 granularity=row gated=act_first activation=silu", kBar},
    {"M=4608 N=12288 K=3072 granularity=row bias=bf16 residual=bf16 activation=gelu_tanh", kBar},
    {"M=4608 N=3072 K=12288 granularity=row", kBar},
    {"M=8192 N=8192 K=8192 granularity=row", kBar},
    {"M=32760 N=5120 K=5120 granularity=row", kBar},
    {"M=4608 N=12288 K=3072 granularity=row out_format=int8_row activation=gelu_tanh", kBar},
    {"M=65537 N=65537 K=16", kHuge},
};

inline constexpr OpSpec spec{
    .name = "scaled_mm_int8",
    .doc = "Product of two INT8 matrices with decode scales, exact integer sums and an epilogue.",
    .source = "docs/formats/int8.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*N*K",
    .backward =
        {.why_not =
             "operands are codes; train through the linear op of the format, whose x is not"},
};

}  // namespace pestle::ops::scaled_mm_int8
