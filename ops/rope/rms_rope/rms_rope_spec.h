// rms_rope: the contract.
#pragma once

#include "core/op_spec.h"
#include "ops/rope/rope.h"

namespace pestle::ops::rms_rope {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "B, H, S, D", "queries, keys or any heads: BHSD, or BSHD"),
    input("weight", "bf16|f16|f32", "D", "what normalised elements are multiplied by"),
    input("freqs", "f32|bf16|f16", kRopeFreqsShape, kRopeFreqsDoc).only_if("!has(cos)"),
    input("x2", "=x", "B2, H2, S2, D", "a second tensor for the same freqs, e.g. keys").optional(),
    input("weight2", "=weight", "D", "x2's weight; left out, weight serves both").optional(),
    input("cos", "f32|bf16|f16", kRopeCosShape, kRopeCosDoc).optional(),
    input("sin", "=cos", kRopeCosShape, kRopeSinDoc).only_if("has(cos)"),
    output("out", "=x", "B, H, S, D", "rotated; what rot_dim leaves is only normalised")
        .in_place_of("x")
        .within(4, "D"),
    output("out2", "=x", "B2, H2, S2, D", "the same of x2")
        .only_if("has(x2)")
        .in_place_of("x2")
        .within(4, "D"),
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
    {"B=2 H=3 S=5 D=96 FB=2 FH=1 FS=9 x=f16 weight=f32 freqs=bf16 pairs=split_half"},
    {"B=1 H=5 S=9 D=64 FB=1 FH=1 FS=9 x2=bf16 B2=1 H2=2 S2=9 weight2=bf16 eps=0.001"},
    {"B=1 H=5 S=3 D=32 FB=1 FH=1 FS=3 x=f32 x2=f32 B2=1 H2=5 S2=3 weight=f16"},
    {"B=2 H=3 S=5 D=64 FB=1 FH=1 FS=5 rot_dim=32 pairs=split_half"},
    {"B=1 H=3 S=5 D=40 FB=1 FH=3 FS=5 rot_dim=24 x=f32"},
    {"B=1 H=5 S=7 D=32 FB=1 FH=1 FS=7 freqs=none cos=f32 sin=f32"},
    {"B=1 H=2 S=7 D=64 FB=1 FH=1 FS=8 freqs=none cos=bf16 sin=bf16 pairs=split_half rot_dim=48"},
    {"B=1 H=1 S=1 D=2 FB=1 FH=1 FS=1", kEdge},
    {"B=0 H=4 S=16 D=64 FB=1 FH=1 FS=16", kEdge},
    {"B=1 H=3 S=7 D=6 FB=1 FH=3 FS=7 x=f32 weight=f32 pairs=split_half", kEdge, Dist::kZeros},
    {"B=1 H=3 S=7 D=32 FB=1 FH=1 FS=7 rot_dim=16", kEdge, Dist::kSpecial},
    {"B=1 H=3 S=7 D=32 FB=1 FH=1 FS=7 x=f32 weight=f32", kEdge, Dist::kOutliers},
    {"B=1 H=24 S=4608 D=128 FB=1 FH=1 FS=4608", kBar},
    {"B=1 H=24 S=32760 D=128 FB=1 FH=1 FS=32760", kBar},
    {"B=1 H=12 S=32760 D=128 FB=1 FH=1 FS=32760", kBar},
    {"B=1 H=12 S=32760 D=128 FB=1 FH=1 FS=32760 freqs=none cos=f32 sin=f32 pairs=split_half", kBar},
};

inline constexpr OpSpec spec{
    .name = "rms_rope",
    .doc = "RMS norm of every head, then rotary position embedding; one tensor or two.",
    .source =
        "u = (x * r) * weight, r = 1/sqrt(mean(x^2) + eps); pairs of u rotate as in "
        "apply_rope; f32 up to one rounding to x's dtype",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "7*(numel(x) + if(has(x2), numel(x2), 0))",
    .backward = {.op = "rms_rope_backward",
                 .call = "d_out=grad(out), x=x, weight=weight, freqs=freqs, d_out2=grad(out2), "
                         "x2=x2, weight2=weight2, cos=cos, sin=sin",
                 .gives = "x=d_x, weight=d_weight, x2=d_x2, weight2=d_weight2"},
};

}  // namespace pestle::ops::rms_rope
