// swizzle_scales: the contract. Layout: docs/formats/swizzle.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::swizzle_scales {

inline constexpr Arg args[] = {
    input("scale", "e4m3|e8m0|u8", "M, C", "block scales in row-major order"),
    output("out", "=scale", "round_up(M,128), round_up(C,4)",
           "the scales in 128 x 4 tiles; padding entries are 0"),
};

inline constexpr Case cases[] = {
    {"M=128 C=4", kSmoke, Dist::kBytes},
    {"M=300 C=37 scale=e8m0", kSmoke, Dist::kBytes},
    {"M=64 C=64 scale=u8", kSmoke, Dist::kBytes},
    {"M=300 C=260 scale=u8", kSmoke, Dist::kBytes},
    {"M=1 C=1", kEdge, Dist::kBytes},
    {"M=129 C=5 scale=u8", kEdge, Dist::kBytes},
    {"M=0 C=8", kEdge, Dist::kBytes},
    {"M=8 C=0", kEdge, Dist::kBytes},
    {"M=255 C=3", kEdge, Dist::kBytes},
    {"M=32768 C=16384", kBar, Dist::kBytes},
    {"M=65537 C=65537", kHuge, Dist::kBytes},
};

inline constexpr OpSpec spec{
    .name = "swizzle_scales",
    .doc = "Block scales from row-major order to the 128 x 4 tile order that cuBLAS reads.",
    .source = "docs/formats/swizzle.md",
    .args = args,
    .cases = cases,
    .backward = {.why_not = "scales are codes: no gradient is defined for them"},
};

}  // namespace pestle::ops::swizzle_scales
