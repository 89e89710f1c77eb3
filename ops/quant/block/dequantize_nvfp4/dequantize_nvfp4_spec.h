// dequantize_nvfp4: the contract. Numerics: docs/formats/nvfp4.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops::dequantize_nvfp4 {

inline constexpr Arg args[] = {
    input("q", "u8", "M, K/2", "E2M1 codes, two a byte"),
    input("scale", "e4m3|u8", "swizzled: round_up(M,128), round_up(K/16,4); plain: M, K/16",
          "decode scale of each block of 16, E4M3 codes also when they come as bytes")
        .selected_by("scale_layout"),
    input("global_scale", "f32", "1", "decode scale of the whole tensor"),
    output("out", "bf16|f16|f32", "M, K", "code * (scale * global_scale), rounded once"),
    choice("nibbles", "high_first|low_first", kNibblesDoc),
    choice("scale_layout", kScaleLayouts, kScaleLayoutDoc),
};

inline constexpr Constraint constraints[] = {
    {"K % 16 == 0", "K, twice the last dimension of q, must be a multiple of 16, the block"},
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=128 K=64 out=f16 nibbles=low_first scale_layout=plain"},
    {"M=3 K=1040 out=f32 scale=u8"},
    {"M=130 K=320"},
    {"M=64 K=512 out=f16", kSmoke, Dist::kBytes},
    {"M=16 K=16", kEdge},
    {"M=48 K=144 out=f32", kEdge},
    {"M=129 K=80 nibbles=low_first", kEdge},
    {"M=0 K=16", kEdge},
    {"M=3 K=0", kEdge},
    {"M=1 K=16 out=f32", kEdge},
    {"M=9 K=64 out=f32", kEdge, Dist::kSpecial},
    {"M=9 K=64", kEdge, Dist::kSpecial},
    {"M=9 K=64 out=f16", kEdge, Dist::kZeros},
    {"M=9 K=80 out=f32 scale_layout=plain", kEdge, Dist::kSubnormal},
    {"M=16384 K=32768", kBar},
    {"M=32760 K=5120", kBar},
    {"M=65536 K=8192", kBar},
    {"M=65537 K=65552", kHuge},
};

inline constexpr OpSpec spec{
    .name = "dequantize_nvfp4",
    .doc = "NVFP4 back to floating point: code * (scale * global_scale).",
    .source = "docs/formats/nvfp4.md, docs/formats/swizzle.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "M*K",
    .backward = {.why_not = "codes are integers: no gradient is defined for them"},
};

}  // namespace pestle::ops::dequantize_nvfp4
