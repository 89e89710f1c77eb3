// copy_transpose: the contract.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::copy_transpose {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32", "*B, M, N", "matrices, one or a batch"),
    output("out", "=x", "*B, N, M", "their transposes, in memory of their own"),
    int_attr("tile_size", 16,
             "16 or 32: a hint that other libraries take; neither result nor speed depend on it"),
};

inline constexpr Constraint constraints[] = {
    {"tile_size == 16 || tile_size == 32", "tile_size must be 16 or 32"},
};

inline constexpr Case cases[] = {
    {"B= M=64 N=256"},
    {"B= M=15 N=37 x=f32"},
    {"B=3 M=128 N=80 x=f16 tile_size=32"},
    {"B=2x3 M=16 N=24 x=f32"},
    {"B= M=144 N=272 x=e4m3"},
    {"B= M=272 N=144 x=i16"},
    {"B=2 M=33 N=65 x=u8"},
    {"B= M=136 N=200 x=i32", kSmoke, Dist::kBytes},
    {"B= M=200 N=136", kEdge, Dist::kSpecial},
    {"B= M=1 N=1", kEdge},
    {"B= M=1 N=300 x=i8", kEdge},
    {"B= M=300 N=1 x=e5m2", kEdge},
    {"B=0 M=4 N=8", kEdge},
    {"B= M=0 N=8", kEdge},
    {"B= M=16384 N=8192", kBar},
    {"B= M=8192 N=8192 x=f32", kBar},
    {"B=8 M=4096 N=4096", kBar},
    {"B= M=4608 N=3072", kBar},
    {"B= M=32760 N=5120", kBar},
    {"B= M=16384 N=16384 x=e4m3", kBar},
    {"B= M=65536 N=65600 x=u8", kHuge},
};

inline constexpr OpSpec spec{
    .name = "copy_transpose",
    .doc = "Copies matrices into their transposes.",
    .source = "out[..., n, m] = x[..., m, n], bit for bit",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .backward = {.op = "copy_transpose", .call = "x=grad(out)", .gives = "x=out"},
};

}  // namespace pestle::ops::copy_transpose
