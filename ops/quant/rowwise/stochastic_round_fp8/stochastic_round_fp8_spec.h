// stochastic_round_fp8: the contract. Numerics: docs/formats/stochastic.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::stochastic_round_fp8 {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M, K", "values to round; taken to f16 first"),
    input("rng", "u8", "*M, K", "one random byte an element"),
    output("q", "e4m3|e5m2", "*M, K", "codes").in_place_of("rng"),
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=3x11 K=129 x=f32 q=e5m2"},
    {"M=17 K=300 x=f16"},
    {"M=16 K=512 x=f32", kSmoke, Dist::kOutliers},
    {"M=16 K=512 x=f16 q=e5m2", kSmoke, Dist::kBytes},
    {"M=0 K=16", kEdge},
    {"M=3 K=0", kEdge},
    {"M=1 K=1", kEdge},
    {"M=7 K=17 x=f32", kEdge, Dist::kSpecial},
    {"M=7 K=65 x=f16 q=e5m2", kEdge, Dist::kSubnormal},
    {"M=32768 K=16384", kBar},
    {"M=65537 K=65537", kHuge},
};

inline constexpr OpSpec spec{
    .name = "stochastic_round_fp8",
    .doc = "Rounds to FP8 stochastically by given random bytes, without a scale.",
    .source = "docs/formats/stochastic.md",
    .args = args,
    .cases = cases,
    .flops = "M*K",
    .backward = {.why_not = "codes are piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::stochastic_round_fp8
