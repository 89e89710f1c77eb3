// copy: the contract. Conversions: ops/copy/copy/copy.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::copy {

#define PESTLE_COPY_DTYPES "bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32|i64|bool"

inline constexpr Arg args[] = {
    input("x", PESTLE_COPY_DTYPES, "*M", "what is copied: any strides, so also a permuted view"),
    output("out", "=x|" PESTLE_COPY_DTYPES, "*M",
           "the copy: any strides; of another dtype, each element rounded once"),
};

inline constexpr Case cases[] = {
    {"M=64x256 x=bf16 out=bf16"},
    {"M=3x37x65 x=f32 out=f32"},
    {"M=64x264 x=f32 out=bf16"},
    {"M=64x264 x=bf16 out=f32"},
    {"M=64x264 x=f16 out=bf16"},
    {"M=33x65 x=bf16 out=f16"},
    {"M=64x264 x=f32 out=f16"},
    {"M=64x264 x=bf16 out=e4m3"},
    {"M=64x264 x=f32 out=e5m2"},
    {"M=64x264 x=e4m3 out=f16"},
    {"M=64x264 x=e5m2 out=f32"},
    {"M=16x40 x=e4m3 out=e5m2"},
    {"M=16x72 x=i64 out=i64"},
    {"M=16x72 x=i64 out=f32"},
    {"M=16x72 x=i64 out=bf16"},
    {"M=16x72 x=i32 out=f16"},
    {"M=16x72 x=i32 out=e4m3"},
    {"M=16x72 x=i32 out=i8"},
    {"M=16x72 x=i8 out=i64"},
    {"M=16x72 x=u8 out=bool"},
    {"M=16x72 x=bool out=f32"},
    {"M=16x72 x=f32 out=i8", kSmoke, Dist::kOutliers},
    {"M=16x72 x=f16 out=u8", kSmoke, Dist::kOutliers},
    {"M=7x72 x=f32 out=bf16", kEdge, Dist::kSpecial},
    {"M=7x72 x=f32 out=f16", kEdge, Dist::kSpecial},
    {"M=7x72 x=f32 out=e4m3", kEdge, Dist::kSpecial},
    {"M=7x72 x=f16 out=e5m2", kEdge, Dist::kSpecial},
    {"M=7x72 x=bf16 out=bf16", kEdge, Dist::kSpecial},
    {"M=7x72 x=f32 out=i32", kEdge, Dist::kSpecial},
    {"M=7x72 x=f32 out=i64", kEdge, Dist::kBytes},
    {"M=7x72 x=f32 out=bool", kEdge, Dist::kZeros},
    {"M=7x72 x=f32 out=bf16", kEdge, Dist::kSubnormal},
    {"M=7x72 x=e4m3 out=f32", kEdge, Dist::kBytes},
    {"M= x=f32 out=bf16", kEdge},
    {"M=1 x=i16 out=i16", kEdge},
    {"M=0x7 x=f32 out=f16", kEdge},
    {"M=2x3x2x3x2x5x2 x=u8 out=u8", kEdge},
    {"M=16384x8192 x=bf16 out=bf16", kBar},
    {"M=16384x8192 x=f32 out=bf16", kBar},
    {"M=16384x8192 x=bf16 out=f32", kBar},
    {"M=16384x16384 x=bf16 out=e4m3", kBar},
    {"M=32760x5120 x=f32 out=f16", kBar},
    {"M=65537x65537 x=u8 out=u8", kHuge},
};

inline constexpr OpSpec spec{
    .name = "copy",
    .doc = "Copies a tensor: any strides on both sides, with or without a change of dtype.",
    .source = "ops/copy/copy/copy.md",
    .args = args,
    .cases = cases,
    .backward = {.op = "copy", .call = "x=grad(out)", .gives = "x=out"},
};

}  // namespace pestle::ops::copy
