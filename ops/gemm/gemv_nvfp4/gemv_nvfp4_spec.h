// gemv_nvfp4: the contract. Numerics: docs/formats/nvfp4.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops::gemv_nvfp4 {

inline constexpr Arg args[] = {
    input("a", "u8", "L, M, K/2", "a matrix for each of L batches, two E2M1 codes a byte"),
    input("b", "u8", "L, P, K/2",
          "a vector for each batch: the first of P rows, the others are padding and not read"),
    input("scale_a", "e4m3",
          "swizzled: L, round_up(M,128), round_up(cdiv(K,16),4); plain: L, M, cdiv(K,16)",
          "decode scale of each 16 columns of a")
        .selected_by("scale_layout"),
    input("scale_b", "e4m3",
          "swizzled: L, round_up(P,128), round_up(cdiv(K,16),4); plain: L, P, cdiv(K,16)",
          "decode scale of each 16 columns of b")
        .selected_by("scale_layout"),
    input("alpha", "f32", "1", "factor on the product: both global scales; 1 when absent")
        .optional(),
    output("out", "f16|bf16|f32", "L, M", "alpha * a_decoded @ b_decoded").within(4, "K"),
    choice("nibbles", "high_first|low_first", kNibblesDoc),
    choice("scale_layout", kScaleLayouts, kScaleLayoutDoc),
};

inline constexpr Constraint constraints[] = {
    {"P >= 1", "b needs at least the row that is multiplied"},
    {"K % 16 == 0", "K must be a multiple of 16, the block; pad a and b with zeros"},
};

inline constexpr Case cases[] = {
    {"L=2 M=128 P=1 K=256"},
    {"L=3 M=130 P=128 K=272 nibbles=low_first out=f32"},
    {"L=1 M=37 P=5 K=1040 alpha=f32 out=bf16 scale_layout=plain"},
    {"L=4 M=256 P=128 K=512 nibbles=low_first scale_layout=plain"},
    // Rows off a tile, columns off a step, and several CTAs for the columns.
    {"L=2 M=70 P=1 K=4192 out=f32", kEdge},
    {"L=1 M=70 P=1 K=4160 scale_layout=plain", kEdge},
    {"L=1 M=1 P=1 K=16", kEdge},
    {"L=2 M=3 P=130 K=16 out=f32", kEdge},
    {"L=0 M=8 P=1 K=32", kEdge},
    {"L=2 M=0 P=1 K=32", kEdge},
    {"L=2 M=5 P=1 K=0 out=f32", kEdge},
    {"L=2 M=9 P=3 K=80 out=f32", kEdge, Dist::kSpecial},
    {"L=1 M=9 P=1 K=80 out=f32 scale_layout=plain alpha=f32", kEdge, Dist::kSpecial},
    {"L=2 M=9 P=1 K=80", kEdge, Dist::kZeros},
    {"L=1 M=7168 P=128 K=16384", kBar},
    {"L=8 M=4096 P=128 K=7168", kBar},
    {"L=4 M=7168 P=128 K=2048", kBar},
    {"L=1 M=131073 P=1 K=65552", kHuge},
};

inline constexpr OpSpec spec{
    .name = "gemv_nvfp4",
    .doc = "Batched products of an NVFP4 matrix with an NVFP4 vector, f32 accumulation.",
    .source =
        "docs/formats/nvfp4.md, docs/formats/swizzle.md; the nvfp4_gemv problem of gpu-mode "
        "(low nibble first, no global scale)",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*L*M*K",
    .bytes = "L*M*(K/2 + K/16 + bytes(out)) + L*(K/2 + K/16)",
    .backward =
        {.why_not =
             "operands are codes; train through the linear op of the format, whose x is not"},
};

}  // namespace pestle::ops::gemv_nvfp4
