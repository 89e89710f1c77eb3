// reduce: the contract.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::reduce {

enum Op { kSum, kMean, kAmax, kAmin, kMax, kMin, kProd, kNorm, kLogsumexp };

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M", "any values"),
    output("out", "as_x: =x; f32: f32", "reduced(*M, dims, keepdim)", "one value for each set")
        .selected_by("out_type")
        .within(4, "if(op == prod, numel(x) / max(numel(out), 1), 1)"),
    choice(
        "op", "sum|mean|amax|amin|max|min|prod|norm|logsumexp",
        "what is made of the elements; max and min are amax and amin, norm is the Euclidean one"),
    int_attr("dims", -1,
             "the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them"),
    bool_attr("keepdim", false, "reduced dimensions stay, with size 1"),
    choice("out_type", "as_x|f32", "dtype of out: x's, or f32"),
};

// Extremes on data that is not "normal": finite differences across two nearly equal ones would not
// test their gradients.
inline constexpr Case cases[] = {
    {"M=64x256 dims=2"},
    {"M=64x256 dims=1 op=mean x=f32"},
    {"M=3x40x65 dims=2 op=amax keepdim=true", kSmoke, Dist::kOutliers},
    {"M=3x40x64 dims=2 op=amin x=f16", kSmoke, Dist::kOutliers},
    {"M=5x33x7 dims=5 op=sum x=f32"},
    {"M=2x3x4x136 dims=12 op=norm out_type=f32"},
    {"M=2x3x4x136 dims=10 op=logsumexp x=f32 keepdim=true"},
    {"M=7x520 dims=2 op=max x=f32", kSmoke, Dist::kOutliers},
    {"M=520x72 dims=1 op=min x=f32", kSmoke, Dist::kOutliers},
    {"M=300x8 dims=2 op=prod x=f32"},
    {"M=8x304 dims=1 op=prod"},
    {"M=3x5000 op=norm x=f32"},
    {"M=2x20480 dims=2 op=logsumexp"},
    {"M=2x20480 dims=2 op=amax x=f32", kSmoke, Dist::kOutliers},
    {"M=4096x16 dims=1 op=logsumexp x=f16"},
    {"M=4096x16 dims=1 op=norm"},
    {"M=5000 op=mean x=f16", kSmoke, Dist::kOutliers},
    {"M=24x264 dims=2 op=amax", kEdge, Dist::kSpecial},
    {"M=24x264 dims=1 op=amin x=f32", kEdge, Dist::kSpecial},
    {"M=24x264 dims=2 op=logsumexp x=f32", kEdge, Dist::kSpecial},
    {"M=24x264 dims=1 op=logsumexp x=f16", kEdge, Dist::kSpecial},
    {"M=24x264 dims=2 op=sum x=f32", kEdge, Dist::kSpecial},
    {"M=24x264 dims=1 op=mean", kEdge, Dist::kSpecial},
    {"M=24x264 dims=2 op=norm x=f16", kEdge, Dist::kSpecial},
    {"M=16x128 dims=2 op=sum x=f32", kEdge, Dist::kSubnormal},
    {"M=16x128 dims=2 op=sum", kEdge, Dist::kZeros},
    {"M=16x128 dims=2 op=amin", kEdge, Dist::kBytes},
    {"M=400003 op=sum x=f32", kEdge, Dist::kConstant},
    {"M=2x400000 dims=2 op=norm x=f32", kEdge, Dist::kConstant},
    {"M=3x50000x8 dims=2 op=mean x=f32", kEdge, Dist::kConstant},
    {"M=7x50001 dims=2 op=sum out_type=f32", kEdge, Dist::kConstant},
    {"M=2x400000 dims=2 op=logsumexp x=f32", kEdge, Dist::kConstant},
    {"M=3x50000x8 dims=2 op=logsumexp x=f32", kEdge, Dist::kConstant},
    {"M=5000x24 dims=1 op=sum x=f32", kEdge, Dist::kOffset},
    {"M=0x8 dims=1 op=sum", kEdge},
    {"M=0x8 dims=1 op=amax x=f32", kEdge, Dist::kSpecial},
    {"M=8x0 dims=2 op=amin", kEdge, Dist::kSpecial},
    {"M=0x8 dims=1 op=mean x=f16", kEdge, Dist::kSpecial},
    {"M=8x0 dims=2 op=prod", kEdge},
    {"M=8x0 dims=2 op=logsumexp x=f32", kEdge, Dist::kSpecial},
    {"M=8x0 dims=1 op=norm", kEdge},
    {"M=3x4 dims=0 op=norm", kEdge, Dist::kOutliers},
    {"M=1 op=logsumexp", kEdge},
    {"M= op=sum x=f32", kEdge},
    {"M=131072x1024 dims=2", kBar},
    {"M=65536x1024 dims=2 x=f32", kBar},
    {"M=32768x4096 dims=2 op=amax", kBar},
    {"M=4096x16384 dims=2 op=norm x=f32", kBar},
    {"M=2048x65536 dims=2 op=mean", kBar},
    {"M=512x262144 dims=2", kBar},
    {"M=256x262144 dims=2 x=f32", kBar},
    {"M=32768x4096 dims=2 op=logsumexp", kBar},
    {"M=65536x2048 dims=1", kBar},
    {"M=16384x4096 dims=1 x=f32", kBar},
    {"M=64x4096x512 dims=2 op=mean", kBar},
    {"M=134217728 op=sum", kBar},
    {"M=65537x65536 dims=2 op=amax", kHuge},
};

inline constexpr OpSpec spec{
    .name = "reduce",
    .doc = "Reduces a tensor over any set of its dimensions.",
    .source = "ops/reduce/reduce/reduce.md",
    .args = args,
    .cases = cases,
    .flops = "numel(x)",
    .backward = {.op = "reduce_backward", .call = "d_out=grad(out), x=x, y=out", .gives = "x=d_x"},
};

}  // namespace pestle::ops::reduce
