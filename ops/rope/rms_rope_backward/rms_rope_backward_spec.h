// rms_rope_backward: the contract.
#pragma once

#include "core/op_spec.h"
#include "ops/rope/rope.h"

namespace pestle::ops::rms_rope_backward {

inline constexpr Arg args[] = {
    input("d_out", "bf16|f16|f32", "B, H, S, D", "gradient of rms_rope's out"),
    input("x", "=d_out", "B, H, S, D", "rms_rope's x"),
    input("weight", "bf16|f16|f32", "D", "rms_rope's weight"),
    input("freqs", "f32|bf16|f16", kRopeFreqsShape, kRopeFreqsDoc).only_if("!has(cos)"),
    input("d_out2", "=d_out", "B2, H2, S2, D", "gradient of out2").only_if("has(x2)"),
    input("x2", "=d_out", "B2, H2, S2, D", "rms_rope's x2").optional(),
    input("weight2", "=weight", "D", "rms_rope's weight2").optional(),
    input("cos", "f32|bf16|f16", kRopeCosShape, kRopeCosDoc).optional(),
    input("sin", "=cos", kRopeCosShape, kRopeSinDoc).only_if("has(cos)"),
    output("d_x", "=d_out", "B, H, S, D", "gradient of x").within(4, "D"),
    output("d_weight", "=weight", "D", "gradient of weight, summed over all heads and positions")
        .within(4, "max(B*H*S, D)"),
    output("d_x2", "=d_out", "B2, H2, S2, D", "gradient of x2").only_if("has(x2)").within(4, "D"),
    output("d_weight2", "=weight", "D", "gradient of weight2")
        .only_if("has(weight2)")
        .within(4, "max(B2*H2*S2, D)"),
    float_attr("eps", 1e-6, "added to the mean of a head's squares"),
    choice("pairs", "interleaved|split_half", kRopePairsDoc),
    int_attr("rot_dim", 0, kRotDimDoc),
};

inline constexpr Constraint constraints[] = {
    kRotDimConstraint,
    kRopeSharing,
    {"!has(x2) || (FB == 1 || FB == B2) && (FH == 1 || FH == H2) && (FS == 1 || FS >= S2)",
     "freqs' leading dimensions must each be 1 or x2's (the third may be longer: it is trimmed)"},
    {"has(x2) || !has(weight2)", "weight2 is x2's weight: it needs x2"},
};

inline constexpr Case cases[] = {
    {"B=1 H=4 S=16 D=64 FB=1 FH=1 FS=16"},
    {"B=2 H=3 S=5 D=96 FB=2 FH=1 FS=9 d_out=f16 weight=f32 freqs=bf16 pairs=split_half"},
    {"B=1 H=5 S=9 D=64 FB=1 FH=1 FS=9 x2=bf16 B2=1 H2=2 S2=9 weight2=bf16 eps=0.001"},
    {"B=1 H=5 S=3 D=32 FB=1 FH=1 FS=3 d_out=f32 x2=f32 B2=1 H2=5 S2=3 weight=f16"},
    {"B=2 H=3 S=37 D=64 FB=1 FH=1 FS=37 rot_dim=32 pairs=split_half"},
    {"B=1 H=3 S=5 D=40 FB=1 FH=3 FS=5 rot_dim=24 d_out=f32"},
    {"B=1 H=5 S=7 D=32 FB=1 FH=1 FS=7 freqs=none cos=f32 sin=f32"},
    {"B=1 H=2 S=7 D=64 FB=1 FH=1 FS=8 freqs=none cos=bf16 sin=bf16 pairs=split_half rot_dim=48"},
    {"B=1 H=1 S=1 D=2 FB=1 FH=1 FS=1", kEdge},
    {"B=0 H=4 S=16 D=64 FB=1 FH=1 FS=16", kEdge},
    {"B=1 H=3 S=7 D=6 FB=1 FH=3 FS=7 d_out=f32 weight=f32 pairs=split_half", kEdge, Dist::kZeros},
    {"B=1 H=3 S=7 D=32 FB=1 FH=1 FS=7 d_out=f32 weight=f32", kEdge, Dist::kOutliers},
    {"B=1 H=24 S=4608 D=128 FB=1 FH=1 FS=4608", kBar},
    {"B=1 H=12 S=32760 D=128 FB=1 FH=1 FS=32760", kBar},
};

inline constexpr OpSpec spec{
    .name = "rms_rope_backward",
    .doc = "Gradients of rms_rope to its tensors and weights.",
    .source =
        "u' = rotations^T d_out; d_weight = sum(u' * n), n = x * r; "
        "d_x = r * (u'*weight - n * mean(u'*weight*n)); f32",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "18*(numel(x) + if(has(x2), numel(x2), 0))",
    .backward = {.why_not = "gradients of gradients are not offered"},
};

}  // namespace pestle::ops::rms_rope_backward
