// cross_entropy_backward: the contract.
#pragma once

#include "ops/softmax/softmax_args.h"

namespace pestle::ops::cross_entropy_backward {

inline constexpr Arg args[] = {
    input("d_loss", "f32", "*M", "gradient of each row's loss"),
    input("logits", kFloats, "*M, N", "cross_entropy's logits"),
    input("target", "i64|i32", "*M", "the class of each row, or ignore_index"),
    input("lse", "f64", "*M", "cross_entropy's lse"),
    output("d_logits", "=logits", "*M, N",
           "gradient of logits; 0 in ignored rows, NaN in those "
           "with a target that is no class")
        .in_place_of("logits")
        .within(4, "1"),
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
    {"M=41 N=24 logits=f32", kEdge, Dist::kSpecial},
    {"M=9 N=2048 logits=f16 ignore_index=3", kEdge, Dist::kOutliers},
    {"M=40 N=1000 logits=f32", kEdge, Dist::kOffset},
    {"M=9 N=1001 logits=f32 label_smoothing=0.1", kEdge, Dist::kOffset},
    {"M=9 N=2048 logits=f16", kEdge, Dist::kOffset},
    {"M=30 N=72", kEdge, Dist::kOffset},
    {"M=3 N=1", kEdge},
    {"M=0 N=8", kEdge},
    {"M=8192 N=128256", kBar},
    {"M=16384 N=32000", kBar},
    {"M=4096 N=128256 logits=f32", kBar},
};

inline constexpr OpSpec spec{
    .name = "cross_entropy_backward",
    .doc = "Gradient of cross_entropy's logits from its lse.",
    .source =
        "d_logits = d_loss * (exp(logits - lse) - (1 - label_smoothing) * [class is the "
        "target] - label_smoothing / N); f32, logits - lse as if exact, one rounding to logits' "
        "dtype",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "4 * numel(logits)",
    .backward = {.why_not = "second derivatives are not provided"},
};

}  // namespace pestle::ops::cross_entropy_backward
