// dequantize_mxfp8: the contract. Numerics: docs/formats/mx.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops::dequantize_mxfp8 {

inline constexpr Arg args[] = {
    input("q", "e4m3|e5m2", "M, K", "E4M3 or E5M2 codes"),
    input("scale", "e8m0|u8", "swizzled: round_up(M,128), round_up(K/32,4); plain: M, K/32",
          "decode scale of each block of 32, E8M0 codes also when they come as bytes")
        .selected_by("scale_layout"),
    output("out", "bf16|f16|f32", "M, K", "code * 2^(scale - 127), rounded once"),
    choice("scale_layout", kScaleLayouts, kScaleLayoutDoc),
};

inline constexpr Constraint constraints[] = {
    {"K % 32 == 0", "K, the number of elements in a row, must be a multiple of 32, the block"},
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=128 K=64 out=f16 q=e5m2 scale_layout=plain"},
    {"M=3 K=1056 out=f32 scale=u8"},
    {"M=130 K=640 q=e5m2"},
    {"M=64 K=512 out=f16", kSmoke, Dist::kBytes},
    {"M=64 K=512 out=f32 q=e5m2", kSmoke, Dist::kBytes},
    {"M=32 K=32", kEdge},
    {"M=96 K=288 out=f32", kEdge},
    {"M=129 K=160 q=e5m2", kEdge},
    {"M=0 K=32", kEdge},
    {"M=3 K=0", kEdge},
    {"M=1 K=32 out=f32", kEdge},
    {"M=64 K=64 out=f32", kEdge, Dist::kSpecial},
    {"M=64 K=64", kEdge, Dist::kSpecial},
    {"M=9 K=64 out=f16", kEdge, Dist::kZeros},
    {"M=9 K=96 out=f32 scale_layout=plain q=e5m2", kEdge, Dist::kSubnormal},
    {"M=16384 K=32768", kBar},
    {"M=65537 K=65568", kHuge},
};

inline constexpr OpSpec spec{
    .name = "dequantize_mxfp8",
    .doc = "MXFP8 back to floating point: code * 2^(scale - 127).",
    .source = "docs/formats/mx.md, docs/formats/swizzle.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "M*K",
    .backward = {.why_not = "codes are integers: no gradient is defined for them"},
};

}  // namespace pestle::ops::dequantize_mxfp8
