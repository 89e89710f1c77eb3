// swap_nibbles: the contract.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::swap_nibbles {

inline constexpr Arg args[] = {
    input("q", "u8", "*M, K", "bytes of two 4-bit codes"),
    output("out", "u8", "*M, K", "the same with the nibbles of each byte exchanged")
        .in_place_of("q"),
};

inline constexpr Case cases[] = {
    {"M=64 K=256", kSmoke, Dist::kBytes},    {"M=3x5 K=129", kSmoke, Dist::kBytes},
    {"M=1 K=1", kEdge, Dist::kBytes},        {"M=0 K=7", kEdge, Dist::kBytes},
    {"M=7 K=0", kEdge, Dist::kBytes},        {"M=5 K=63", kEdge, Dist::kBytes},
    {"M=32768 K=16384", kBar, Dist::kBytes}, {"M=65537 K=65537", kHuge, Dist::kBytes},
};

inline constexpr OpSpec spec{
    .name = "swap_nibbles",
    .doc = "Exchanges the nibbles of every byte: high-first packing to low-first and back.",
    .source = "docs/formats/nvfp4.md",
    .args = args,
    .cases = cases,
    .backward = {.why_not = "codes are integers: no gradient is defined for them"},
};

}  // namespace pestle::ops::swap_nibbles
