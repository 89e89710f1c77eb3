// quantize_nvfp4: the contract. Numerics: docs/formats/nvfp4.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops::quantize_nvfp4 {

// R x C is the size of q in elements: x's, or padded to multiples of 16.
inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "M, K", "values to quantise, blocks of 16 along K"),
    input("global_scale", "f32", "1", "decode scale of the whole tensor").optional(),
    output("q", "u8", "if(pad, round_up(M,16), M), if(pad, round_up(K,16), K)/2",
           "E2M1 codes, two a byte"),
    output("scale_out", "e4m3",
           "swizzled: round_up(M,128), round_up(cdiv(K,16),4);"
           "plain: if(pad, round_up(M,16), M), cdiv(K,16)",
           "decode scale of each block, in units of the global scale")
        .selected_by("scale_layout"),
    output("global_scale_out", "f32", "1", "the global scale computed here, amax / 2688")
        .only_if("!has(global_scale)"),
    choice("nibbles", "high_first|low_first", kNibblesDoc),
    choice("scale_layout", kScaleLayouts, kScaleLayoutDoc),
    bool_attr("pad", false, "pad rows and columns with zeros to multiples of 16"),
    choice("rounding", "nearest|stochastic", kRoundingDoc),
    int_attr("seed", 0, "Philox seed of stochastic rounding"),
};

inline constexpr Constraint constraints[] = {
    {"pad || K % 16 == 0", "K must be a multiple of 16, the block; pad=true pads with zeros"},
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=128 K=64 x=f16 nibbles=low_first scale_layout=plain"},
    {"M=3 K=1040 x=f32", kSmoke, Dist::kOutliers},
    {"M=130 K=320 global_scale=f32 global_scale_out=none"},
    {"M=33 K=272 x=f32 rounding=stochastic seed=7"},
    {"M=5 K=300 x=f16 pad=1 rounding=stochastic seed=9 nibbles=low_first"},
    {"M=16 K=16", kEdge},  // both counts of 16-blocks odd: half-block tails of vector code
    {"M=48 K=144 x=f16", kEdge},
    {"M=7 K=17 pad=1", kEdge},
    {"M=17 K=1 x=f32 pad=1 scale_layout=plain", kEdge},
    {"M=129 K=79 x=f16 pad=1", kEdge, Dist::kOutliers},
    {"M=0 K=16", kEdge},
    {"M=3 K=0", kEdge},
    {"M=0 K=5 pad=1", kEdge},
    {"M=1 K=16 x=f32", kEdge},
    {"M=9 K=64 x=f32", kEdge, Dist::kSpecial},
    {"M=40 K=1024", kEdge, Dist::kOutliers},
    {"M=9 K=64 global_scale=f32 global_scale_out=none", kEdge, Dist::kSpecial},
    {"M=9 K=64", kEdge, Dist::kZeros},
    {"M=9 K=64 global_scale=f32 global_scale_out=none", kEdge, Dist::kZeros},
    {"M=9 K=80 x=f32 scale_layout=plain", kEdge, Dist::kSubnormal},
    {"M=9 K=80 x=f16 rounding=stochastic", kEdge, Dist::kSubnormal},
    {"M=16384 K=32768", kBar},
    {"M=16384 K=32768 global_scale=f32 global_scale_out=none", kBar},
    {"M=32760 K=5120 global_scale=f32 global_scale_out=none", kBar},
    {"M=65536 K=8192 global_scale=f32 global_scale_out=none", kBar},
    {"M=65537 K=65552 global_scale=f32 global_scale_out=none", kHuge},
};

// As in quantize_fp8: a global scale computed for a large tensor counts two passes over x.
inline constexpr OpSpec spec{
    .name = "quantize_nvfp4",
    .doc = "Quantises to NVFP4: E2M1 codes, an E4M3 scale per 16 elements, one global scale.",
    .source = "docs/formats/nvfp4.md, docs/formats/swizzle.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "3*M*K",
    .bytes =
        "M*K*bytes(x)*if(!has(global_scale) && M*K*bytes(x) >= 268435456, 2, 1)"
        " + numel(q) + numel(scale_out) + 4",
    .backward = {.why_not = "codes are piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::quantize_nvfp4
