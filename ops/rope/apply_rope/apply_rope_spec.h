// apply_rope: the contract.
#pragma once

#include "core/op_spec.h"
#include "ops/rope/rope.h"

namespace pestle::ops::apply_rope {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "B, H, S, D", "queries, keys or any heads: BHSD, or BSHD"),
    input("freqs", "f32|bf16|f16", kRopeFreqsShape, kRopeFreqsDoc).only_if("!has(cos)"),
    input("x2", "bf16|f16|f32", "B2, H2, S2, D", "a second tensor for the same freqs, e.g. keys")
        .optional(),
    input("cos", "f32|bf16|f16", kRopeCosShape, kRopeCosDoc).optional(),
    input("sin", "=cos", kRopeCosShape, kRopeSinDoc).only_if("has(cos)"),
    output("out", "=x", "B, H, S, D", "rotated x; what rot_dim leaves is copied")
        .in_place_of("x")
        .within(4, "1"),
    output("out2", "=x2", "B2, H2, S2, D", "rotated x2")
        .only_if("has(x2)")
        .in_place_of("x2")
        .within(4, "1"),
    choice("pairs", "interleaved|split_half", kRopePairsDoc),
    int_attr("rot_dim", 0, kRotDimDoc),
    bool_attr("inverse", false, "rotate back: by the transposed rotations, as the gradient is"),
};

inline constexpr Constraint constraints[] = {
    kRotDimConstraint,
    kRopeSharing,
    {"!has(x2) || (FB == 1 || FB == B2) && (FH == 1 || FH == H2) && (FS == 1 || FS >= S2)",
     "freqs' leading dimensions must each be 1 or x2's (the third may be longer: it is trimmed)"},
};

inline constexpr Case cases[] = {
    {"B=1 H=4 S=16 D=64 FB=1 FH=1 FS=16"},
    {"B=2 H=3 S=5 D=32 FB=2 FH=1 FS=9 x=f16 freqs=bf16 pairs=split_half"},
    {"B=1 H=8 S=16 D=64 FB=1 FH=1 FS=16 x2=bf16 B2=1 H2=2 S2=16"},
    {"B=1 H=16 S=4 D=64 FB=1 FH=16 FS=1 x=f32"},
    {"B=1 H=5 S=9 D=64 FB=1 FH=1 FS=9 inverse=true freqs=f16"},
    {"B=2 H=3 S=5 D=64 FB=1 FH=1 FS=5 rot_dim=32 pairs=split_half"},
    {"B=1 H=3 S=5 D=40 FB=1 FH=1 FS=5 rot_dim=24 x=f32 inverse=true"},
    {"B=1 H=5 S=7 D=32 FB=1 FH=1 FS=7 freqs=none cos=f32 sin=f32 x2=f16 B2=1 H2=2 S2=3"},
    {"B=1 H=2 S=7 D=64 FB=1 FH=2 FS=8 freqs=none cos=bf16 sin=bf16 pairs=split_half rot_dim=48 "
     "inverse=true"},
    {"B=2 H=2 S=3 D=16 FB=2 FH=1 FS=1 freqs=none cos=f16 sin=f16 x=f32"},
    {"B=1 H=1 S=1 D=2 FB=1 FH=1 FS=1", kEdge},
    {"B=0 H=4 S=16 D=64 FB=1 FH=1 FS=16", kEdge},
    {"B=1 H=2 S=3 D=0 FB=1 FH=1 FS=3", kEdge},
    {"B=1 H=3 S=7 D=6 FB=1 FH=3 FS=7 x=f32 pairs=split_half", kEdge, Dist::kSpecial},
    {"B=1 H=3 S=7 D=32 FB=1 FH=1 FS=7 rot_dim=16 freqs=none cos=f32 sin=f32", kEdge,
     Dist::kSpecial},
    {"B=1 H=24 S=4608 D=128 FB=1 FH=1 FS=4608", kBar},
    {"B=1 H=24 S=32760 D=128 FB=1 FH=1 FS=32760", kBar},
    {"B=1 H=12 S=32760 D=128 FB=1 FH=1 FS=32760", kBar},
    {"B=1 H=12 S=32760 D=128 FB=1 FH=1 FS=32760 freqs=none cos=f32 sin=f32 pairs=split_half", kBar},
};

inline constexpr OpSpec spec{
    .name = "apply_rope",
    .doc = "Rotary position embedding of one tensor, or of queries and keys together; or back.",
    .source =
        "y0 = f00*x0 + f01*x1, y1 = f10*x0 + f11*x1 over pairs; f32, one rounding to x's dtype",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "3*(numel(x) + if(has(x2), numel(x2), 0))",
    .backward = {.op = "apply_rope",
                 .call = "x=grad(out), x2=grad(out2), freqs=freqs, cos=cos, sin=sin, "
                         "inverse=!inverse",
                 .gives = "x=out, x2=out2"},
};

}  // namespace pestle::ops::apply_rope
