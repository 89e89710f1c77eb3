// hadamard: the contract. Numerics: docs/formats/hadamard.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::hadamard {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M, K", "values to rotate along K"),
    output("out", "=x|bf16|f16|f32", "*M, K", "rotated x: f32, one rounding").in_place_of("x"),
    int_attr("hadamard", 256, "elements that are rotated together: 4, 16, 64, 256 or 1024"),
};

inline constexpr Constraint constraints[] = {
    {"hadamard == 4 || hadamard == 16 || hadamard == 64 || hadamard == 256 || hadamard == 1024",
     "hadamard must be 4, 16, 64, 256 or 1024"},
    {"K % max(hadamard,1) == 0",
     "K must be a multiple of hadamard, the elements that are rotated together"},
};

inline constexpr Case cases[] = {
    {"M=16 K=512"},
    {"M=3x5 K=20 x=f32 out=f32 hadamard=4"},
    {"M=7 K=48 x=f16 out=f16 hadamard=16"},
    {"M=7 K=192 x=f32 out=f16 hadamard=64", kSmoke, Dist::kOutliers},
    {"M=3 K=3072 x=bf16 out=f32 hadamard=1024"},
    {"M=0 K=256", kEdge},
    {"M=3 K=0", kEdge},
    {"M=1 K=4 hadamard=4", kEdge},
    {"M=5 K=64 x=f32 out=f32 hadamard=16", kEdge, Dist::kSpecial},
    {"M=5 K=64 x=f32 out=f32 hadamard=64", kEdge, Dist::kSubnormal},
    {"M=16384 K=16384", kBar},
    {"M=65537 K=65792", kHuge},
};

inline constexpr OpSpec spec{
    .name = "hadamard",
    .doc =
        "Rotates groups along K by the regular Hadamard matrix; applied twice it is the identity.",
    .source = "docs/formats/hadamard.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops =
        "M*K*(1 + 3*if(hadamard == 4, 1, if(hadamard == 16, 2, if(hadamard == 64, 3, "
        "if(hadamard == 256, 4, 5)))))",
    .backward = {.op = "hadamard", .call = "x=grad(out)", .gives = "x=out"},
};

}  // namespace pestle::ops::hadamard
