// prepare_weight: the contract. Layout: docs/formats/prepared.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops::prepare_weight {

inline constexpr Arg args[] = {
    input("weight", "u8|i8|e4m3|e5m2", "N, W",
          "codes of a weight, W bytes a row: u8 holds two of 4 bits a byte, others one of 8 bits"),
    output("out", "=weight", "N, W", "the same codes in the other layout"),
    choice("direction", "prepare|restore",
           "prepare: from the layout of files to the prepared one; restore: back"),
    choice("nibbles", "low_first|high_first",
           "u8: which nibble of a byte holds the even column in the layout of files"),
};

inline constexpr Case cases[] = {
    {"N=64 W=32"},
    {"N=128 W=96 nibbles=high_first"},
    {"N=192 W=160 direction=restore"},
    {"N=64 W=64 direction=restore nibbles=high_first"},
    {"N=64 W=32 weight=i8"},
    {"N=128 W=96 weight=e4m3 direction=restore"},
    {"N=70 W=37"},
    {"N=131 W=75 direction=restore nibbles=high_first"},
    {"N=131 W=75 weight=i8"},
    {"N=70 W=37 weight=e5m2 direction=restore"},
    {"N=64 W=33", kEdge},
    {"N=65 W=32 direction=restore", kEdge},
    {"N=63 W=64", kEdge},
    {"N=128 W=31 direction=restore", kEdge},
    {"N=1 W=1", kEdge},
    {"N=0 W=32", kEdge},
    {"N=64 W=0 direction=restore", kEdge},
    {"N=32768 W=16384", kBar},
    {"N=32768 W=16384 direction=restore", kBar},
    {"N=32768 W=32768 weight=i8", kBar},
    {"N=98304 W=49152", kHuge},
};

inline constexpr OpSpec spec{
    .name = "prepare_weight",
    .doc =
        "Moves a weight's codes to the layout that tensor cores read, of the same size, or back.",
    .source = "docs/formats/prepared.md",
    .args = args,
    .cases = cases,
    .backward = {.why_not = "codes are no differentiable input"},
};

// Places of the arguments.
inline constexpr int kWeight = arg_index(spec, "weight");
inline constexpr int kOut = arg_index(spec, "out");
inline constexpr int kDirection = arg_index(spec, "direction");
inline constexpr int kNibbles = arg_index(spec, "nibbles");

}  // namespace pestle::ops::prepare_weight
