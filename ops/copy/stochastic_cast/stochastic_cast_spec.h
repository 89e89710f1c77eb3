// stochastic_cast: the contract. Bits by seed: docs/formats/stochastic.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::stochastic_cast {

inline constexpr Arg args[] = {
    input("x", "f32", "*M", "values to round"),
    output("out", "bf16", "*M", "rounded up in magnitude with the probability of what is cut off"),
    int_attr("seed", 0, "Philox seed; element i in row-major order uses 16 bits of block i / 8"),
};

inline constexpr Case cases[] = {
    {"M=64x256"},
    {"M=3x37x65 seed=7"},
    {"M=17x300 seed=-1"},
    {"M=16x512 seed=3", kSmoke, Dist::kOutliers},
    {"M=16x512 seed=5", kSmoke, Dist::kBytes},
    {"M=7x72 seed=9", kEdge, Dist::kSpecial},
    {"M=7x65", kEdge, Dist::kSubnormal},
    {"M=5x8", kEdge, Dist::kZeros},
    {"M=0x16", kEdge},
    {"M=", kEdge},
    {"M=1", kEdge},
    {"M=16384x8192", kBar},
    {"M=32760x5120", kBar},
    {"M=65537x65536", kHuge},
};

inline constexpr OpSpec spec{
    .name = "stochastic_cast",
    .doc = "Rounds f32 to bf16 stochastically, by a seed.",
    .source = "ops/copy/stochastic_cast/stochastic_cast.md",
    .args = args,
    .cases = cases,
    .flops = "numel(x)",
    .backward = {.why_not =
                     "rounding is piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::stochastic_cast
