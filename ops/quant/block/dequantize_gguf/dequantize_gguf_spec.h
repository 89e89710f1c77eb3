// dequantize_gguf: the contract. Numerics: docs/formats/gguf.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::dequantize_gguf {

enum class BlockType : int64_t { kQ8_0, kQ4_0, kQ4_K, kQ6_K };  // in the order of type's labels

inline constexpr Arg args[] = {
    input("q", "u8", "N, B", "rows of whole blocks, as the bytes lie in the file"),
    output("out", "bf16|f16|f32",
           "q8_0: N, B/34*32; q4_0: N, B/18*32; q4_k: N, B/144*256; q6_k: N, B/210*256",
           "the values: what llama.cpp computes in f32, rounded once")
        .selected_by("type"),
    choice("type", "q8_0|q4_0|q4_k|q6_k", "which blocks"),
};

inline constexpr Constraint constraints[] = {
    {"B % if(type == q8_0, 34, if(type == q4_0, 18, if(type == q4_k, 144, 210))) == 0",
     "a row must be whole blocks: 34 bytes in q8_0, 18 in q4_0, 144 in q4_k, 210 in q6_k"},
};

inline constexpr Case cases[] = {
    {"N=4 B=170 type=q8_0", kSmoke, Dist::kBytes},
    {"N=4 B=90 type=q4_0", kSmoke, Dist::kBytes},
    {"N=4 B=432 type=q4_k", kSmoke, Dist::kBytes},
    {"N=4 B=630 type=q6_k", kSmoke, Dist::kBytes},
    {"N=3 B=68 type=q8_0 out=f32", kSmoke, Dist::kBytes},
    {"N=3 B=36 type=q4_0 out=f32", kSmoke, Dist::kBytes},
    {"N=3 B=288 type=q4_k out=f32", kSmoke, Dist::kBytes},
    {"N=3 B=420 type=q6_k out=f32", kSmoke, Dist::kBytes},
    {"N=200 B=34 type=q8_0 out=f16", kSmoke, Dist::kBytes},
    {"N=200 B=18 type=q4_0 out=f16", kSmoke, Dist::kBytes},
    {"N=200 B=144 type=q4_k out=f16", kSmoke, Dist::kBytes},
    {"N=200 B=210 type=q6_k out=f16", kSmoke, Dist::kBytes},
    {"N=0 B=34", kEdge},
    {"N=3 B=0 type=q4_k", kEdge},
    {"N=2 B=34", kEdge, Dist::kZeros},
    {"N=2 B=18 type=q4_0", kEdge, Dist::kZeros},
    {"N=2 B=144 type=q4_k", kEdge, Dist::kZeros},
    {"N=2 B=210 type=q6_k", kEdge, Dist::kZeros},
    {"N=32768 B=17408", kBar},
    {"N=32768 B=9216 type=q4_0", kBar},
    {"N=32768 B=9216 type=q4_k", kBar},
    {"N=32768 B=13440 type=q6_k", kBar},
    {"N=65536 B=69632", kHuge},
};

inline constexpr OpSpec spec{
    .name = "dequantize_gguf",
    .doc = "Turns GGUF blocks Q8_0, Q4_0, Q4_K and Q6_K into values.",
    .source = "docs/formats/gguf.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2*numel(q)",
    .backward = {.why_not = "codes are no differentiable input"},
};

}  // namespace pestle::ops::dequantize_gguf
