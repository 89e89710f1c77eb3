// cross_entropy: the contract.
#pragma once

#include "ops/softmax/softmax_args.h"

namespace pestle::ops::cross_entropy {

inline constexpr Arg args[] = {
    input("logits", kFloats, "*M, N", "M rows of N classes"),
    input("target", "i64|i32", "*M", "the class of each row, or ignore_index"),
    output("loss", "f32", "*M",
           "-log of the target's probability; 0 for ignored rows, NaN for a "
           "target that is no class")
        .within(4, "N"),
    output("lse", "f64", "*M",
           "log of the sum of exp(logits), kept for the backward op: f64, since f32 would lose of "
           "large logits what the gradient is made of")
        .within(4, "N"),
    int_attr("ignore_index", -100, "target of rows that do not count"),
    float_attr("label_smoothing", 0, "part of the target that all classes share evenly"),
};

inline constexpr Constraint constraints[] = {{"N > 0", "there must be at least one class"}};

inline constexpr Case cases[] = {
    {"M=33 N=1000"},
    {"M=2x9 N=4104 logits=f32 target=i32 label_smoothing=0.1"},
    {"M=2 N=50257 logits=f16"},
    {"M=40 N=96 logits=f32", kEdge, Dist::kSpecial},
    {"M=40 N=70 logits=bf16 label_smoothing=0.5", kEdge, Dist::kSpecial},
    {"M=9 N=2048 logits=f16 ignore_index=3", kEdge, Dist::kOutliers},
    {"M=2 N=33000 logits=f32", kEdge, Dist::kZeros},
    {"M=1100 N=24 logits=f32", kEdge, Dist::kSpecial},
    {"M=1030 N=72", kEdge, Dist::kOutliers},
    {"M=40 N=1000 logits=f32", kEdge, Dist::kOffset},
    {"M=1030 N=136 logits=f32", kEdge, Dist::kOffset},
    {"M=1030 N=72", kEdge, Dist::kOffset},
    {"M=9 N=1001 logits=f32 label_smoothing=0.1", kEdge, Dist::kOffset},
    {"M=9 N=2048 logits=f16 label_smoothing=0.1", kEdge, Dist::kOffset},
    {"M=3 N=1", kEdge},
    {"M=0 N=8", kEdge},
    {"M=8192 N=128256", kBar},
    {"M=16384 N=32000", kBar},
    {"M=4096 N=128256 logits=f32", kBar},
};

inline constexpr OpSpec spec{
    .name = "cross_entropy",
    .doc = "Cross entropy of each row of logits with its target class, without averaging.",
    .source =
        "loss = lse - ((1 - label_smoothing) * logits[target] + label_smoothing * "
        "mean(logits)), lse = log(sum of exp(logits)); f32 beside the largest logit",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "5 * numel(logits)",
    .backward = {.op = "cross_entropy_backward",
                 .call = "d_loss=grad(loss), logits=logits, target=target, lse=lse",
                 .gives = "logits=d_logits"},
};

}  // namespace pestle::ops::cross_entropy
