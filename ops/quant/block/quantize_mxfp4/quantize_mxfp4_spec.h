// quantize_mxfp4: the contract. Numerics: docs/formats/mx.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops::quantize_mxfp4 {

// R x C is the size of q in elements: x's, or padded to multiples of 32.
// Low nibble first by default, as OCP's own tools and GGUF-like readers pack FP4; NVFP4's default
// is the other way because ComfyUI's files are.
inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "M, K", "values to quantise, blocks of 32 along K"),
    output("q", "u8", "if(pad, round_up(M,32), M), if(pad, round_up(K,32), K)/2",
           "E2M1 codes, two a byte"),
    output("scale_out", "e8m0",
           "swizzled: round_up(M,128), round_up(cdiv(K,32),4);"
           "plain: if(pad, round_up(M,32), M), cdiv(K,32)",
           "decode scale of each block, the power of two rounded up so that nothing saturates")
        .selected_by("scale_layout"),
    choice("nibbles", "low_first|high_first", kNibblesDoc),
    choice("scale_layout", kScaleLayouts, kScaleLayoutDoc),
    bool_attr("pad", false, "pad rows and columns with zeros to multiples of 32"),
    choice("rounding", "nearest|stochastic", kRoundingDoc),
    int_attr("seed", 0, "Philox seed of stochastic rounding"),
};

inline constexpr Constraint constraints[] = {
    {"pad || K % 32 == 0", "K must be a multiple of 32, the block; pad=true pads with zeros"},
};

inline constexpr Case cases[] = {
    {"M=64 K=256"},
    {"M=128 K=64 x=f16 nibbles=high_first scale_layout=plain"},
    {"M=3 K=1056 x=f32", kSmoke, Dist::kOutliers},
    {"M=130 K=640", kSmoke, Dist::kOutliers},
    {"M=33 K=544 x=f32 rounding=stochastic seed=7"},
    {"M=5 K=300 x=f16 pad=1 rounding=stochastic seed=9 nibbles=high_first"},
    {"M=32 K=32", kEdge},  // both counts of 32-blocks odd: tails of vector code
    {"M=96 K=288 x=f16", kEdge},
    {"M=7 K=17 pad=1", kEdge},
    {"M=33 K=1 x=f32 pad=1 scale_layout=plain", kEdge},
    {"M=129 K=79 x=f16 pad=1", kEdge, Dist::kOutliers},
    {"M=0 K=32", kEdge},
    {"M=3 K=0", kEdge},
    {"M=0 K=5 pad=1", kEdge},
    {"M=1 K=32 x=f32", kEdge},
    {"M=9 K=64 x=f32", kEdge, Dist::kSpecial},
    {"M=9 K=64 nibbles=high_first", kEdge, Dist::kSpecial},
    {"M=9 K=64", kEdge, Dist::kZeros},
    {"M=9 K=96 x=f32 scale_layout=plain", kEdge, Dist::kSubnormal},
    {"M=9 K=96 x=f16 rounding=stochastic", kEdge, Dist::kSubnormal},
    {"M=16384 K=32768", kBar},
    {"M=65537 K=65568", kHuge},
};

inline constexpr OpSpec spec{
    .name = "quantize_mxfp4",
    .doc = "Quantises to MXFP4: E2M1 codes and an E8M0 scale per 32 elements.",
    .source = "docs/formats/mx.md, docs/formats/swizzle.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*M*K",
    .backward = {.why_not = "codes are piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::quantize_mxfp4
