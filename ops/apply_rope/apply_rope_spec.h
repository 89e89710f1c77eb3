// apply_rope: the contract.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::apply_rope {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "B, H, S, D", "queries, keys or any heads: BHSD, or BSHD"),
    input("freqs", "f32|bf16|f16", "FB, FH, FS, D/2, 2, 2",
          "rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1"),
    input("x2", "bf16|f16|f32", "B2, H2, S2, D", "a second tensor for the same freqs, e.g. keys")
        .optional(),
    output("out", "=x", "B, H, S, D", "rotated x").in_place_of("x").within(4, "1"),
    output("out2", "=x2", "B2, H2, S2, D", "rotated x2")
        .only_if("has(x2)")
        .in_place_of("x2")
        .within(4, "1"),
    choice("pairs", "interleaved|split_half", "rotate (2i, 2i+1), or (i, i + D/2)"),
};

inline constexpr Constraint constraints[] = {
    {"D % 2 == 0", "D, the head size, must be even: elements are rotated in pairs"},
    {"(FB == 1 || FB == B) && (FH == 1 || FH == H) && (FS == 1 || FS >= S)",
     "freqs' leading dimensions must each be 1 or x's (the third may be longer: it is trimmed)"},
    {"!has(x2) || (FB == 1 || FB == B2) && (FH == 1 || FH == H2) && (FS == 1 || FS >= S2)",
     "freqs' leading dimensions must each be 1 or x2's (the third may be longer: it is trimmed)"},
};

inline constexpr Case cases[] = {
    {"B=1 H=4 S=16 D=64 FB=1 FH=1 FS=16"},
    {"B=2 H=3 S=5 D=32 FB=2 FH=1 FS=9 x=f16 freqs=bf16 pairs=split_half"},
    {"B=1 H=8 S=16 D=64 FB=1 FH=1 FS=16 x2=bf16 B2=1 H2=2 S2=16"},
    {"B=1 H=16 S=4 D=64 FB=1 FH=16 FS=1 x=f32"},
    {"B=1 H=1 S=1 D=2 FB=1 FH=1 FS=1", kEdge},
    {"B=0 H=4 S=16 D=64 FB=1 FH=1 FS=16", kEdge},
    {"B=1 H=3 S=7 D=6 FB=1 FH=3 FS=7 x=f32 pairs=split_half", kEdge, Dist::kSpecial},
    {"B=1 H=24 S=4608 D=128 FB=1 FH=1 FS=4608", kBar},
};

inline constexpr OpSpec spec{
    .name = "apply_rope",
    .doc = "Rotary position embedding of one tensor, or of queries and keys together.",
    .source =
        "y0 = f00*x0 + f01*x1, y1 = f10*x0 + f11*x1 over pairs; f32, one rounding to x's dtype",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "3*(numel(x) + if(has(x2), numel(x2), 0))",
    .backward = {.why_not = "the op can not rotate back yet"},
};

}  // namespace pestle::ops::apply_rope
