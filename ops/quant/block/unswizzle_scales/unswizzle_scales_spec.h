// unswizzle_scales: the contract. Layout: docs/formats/swizzle.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::unswizzle_scales {

inline constexpr Arg args[] = {
    input("scale", "e4m3|e8m0|u8", "round_up(rows,128), round_up(columns,4)",
          "block scales in 128 x 4 tiles"),
    output("out", "=scale", "rows, columns", "the scales in row-major order, padding dropped"),
    int_attr("rows", 0, "rows of the matrix of scales"),
    int_attr("columns", 0, "scales in a row, K / block size"),
};

inline constexpr Constraint constraints[] = {
    {"rows >= 0 && columns >= 0", "rows and columns are sizes of the matrix: give both"},
};

inline constexpr Case cases[] = {
    {"rows=128 columns=4", kSmoke, Dist::kBytes},
    {"rows=300 columns=37 scale=e8m0", kSmoke, Dist::kBytes},
    {"rows=64 columns=64 scale=u8", kSmoke, Dist::kBytes},
    {"rows=300 columns=260 scale=u8", kSmoke, Dist::kBytes},
    {"rows=1 columns=1", kEdge, Dist::kBytes},
    {"rows=129 columns=5 scale=u8", kEdge, Dist::kBytes},
    {"rows=0 columns=8", kEdge, Dist::kBytes},
    {"rows=8 columns=0", kEdge, Dist::kBytes},
    {"rows=255 columns=3", kEdge, Dist::kBytes},
    {"rows=32768 columns=16384", kBar, Dist::kBytes},
    {"rows=65537 columns=65537", kHuge, Dist::kBytes},
};

inline constexpr OpSpec spec{
    .name = "unswizzle_scales",
    .doc = "Block scales from the 128 x 4 tile order of cuBLAS back to row-major order.",
    .source = "docs/formats/swizzle.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .backward = {.why_not = "scales are codes: no gradient is defined for them"},
};

}  // namespace pestle::ops::unswizzle_scales
