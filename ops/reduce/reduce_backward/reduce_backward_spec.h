// reduce_backward: the contract.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::reduce_backward {

enum Op { kSum, kMean, kAmax, kAmin, kMax, kMin, kProd, kNorm, kLogsumexp };

inline constexpr Arg args[] = {
    input("d_out", "bf16|f16|f32", "reduced(*M, dims, keepdim)", "gradient of what reduce gave"),
    input("x", "bf16|f16|f32", "*M", "what was reduced"),
    input("y", "bf16|f16|f32", "reduced(*M, dims, keepdim)",
          "what reduce gave; norm and logsumexp use it"),
    output("d_x", "=x", "*M", "gradient of x").within(4, "1"),
    choice("op", "sum|mean|amax|amin|max|min|prod|norm|logsumexp", "as given to reduce"),
    int_attr("dims", -1, "as given to reduce: a bit for each reduced dimension; -1: all"),
    bool_attr("keepdim", false, "as given to reduce"),
};

inline constexpr Case cases[] = {
    {"M=64x256 dims=2"},
    {"M=3x40x65 dims=2 op=mean x=f32 d_out=f32 y=f32 keepdim=true"},
    {"M=5x33x7 dims=5 op=amax"},
    {"M=24x72 dims=1 op=amin x=f16 d_out=f32 y=f32"},
    {"M=24x72 dims=2 op=max", kSmoke, Dist::kBytes},
    {"M=24x72 dims=2 op=min", kSmoke, Dist::kZeros},
    {"M=24x8 dims=2 op=prod x=f32 d_out=f32 y=f32"},
    {"M=24x8 dims=1 op=prod", kSmoke, Dist::kZeros},
    {"M=1x9 dims=1 op=prod x=f32", kSmoke, Dist::kZeros},
    {"M=2x3x4x136 dims=12 op=norm"},
    {"M=2x3x4x136 dims=10 op=logsumexp x=f32 d_out=f32 y=f32"},
    {"M=3x2312 dims=2 op=mean", kEdge},
    {"M=3x2312 dims=2 op=norm", kEdge},
    {"M=2x3x2312 dims=6 op=logsumexp x=f32", kEdge, Dist::kSpecial},
    {"M=3x4104 dims=2 op=logsumexp x=f16", kEdge},
    {"M=300 op=sum x=f16", kEdge, Dist::kSpecial},
    {"M=24x72 dims=2 op=amax x=f32", kEdge, Dist::kSpecial},
    {"M=0x8 dims=1 op=amax", kEdge},
    {"M=8x0 dims=2 op=mean", kEdge},
    {"M= op=logsumexp", kEdge},
    {"M=3x4 dims=0 op=amin x=f32", kEdge},
    {"M=16384x8192 dims=2 op=mean", kBar},
    {"M=16384x8192 dims=2 op=logsumexp", kBar},
};

inline constexpr OpSpec spec{
    .name = "reduce_backward",
    .doc = "Gradient of reduce.",
    .source = "ops/reduce/reduce_backward/reduce_backward.md",
    .args = args,
    .cases = cases,
    .flops = "2*numel(x)",
    // Sums need the shape of x alone.
    .bytes =
        "numel(d_out)*bytes(d_out) + numel(x)*bytes(d_x) + if(op == sum || op == mean, 0, "
        "numel(x)*bytes(x)) + if(op == norm || op == logsumexp, numel(y)*bytes(y), 0)",
    .backward = {.why_not = "second derivatives are not written"},
};

}  // namespace pestle::ops::reduce_backward
