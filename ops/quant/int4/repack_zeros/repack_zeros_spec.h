// repack_zeros: the contract. Layouts: docs/formats/packing.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::repack_zeros {

// GPTQ stores zero - 1 in four bits; its later "v2" files store the zero itself.
inline constexpr const char* kPackings = "plain|gptq|gptq_v2|awq";
inline constexpr const char* kDTypes = "plain: u8; gptq|gptq_v2|awq: i32";
inline constexpr const char* kShapes = "plain: N, G; gptq|gptq_v2|awq: G, N/8";
enum class ZeroPacking : int64_t { kPlain, kGptq, kGptqV2, kAwq };

inline constexpr Arg args[] = {
    input("zero", kDTypes, kShapes, "zero points, 0..15, of N rows of G groups")
        .selected_by("from_packing"),
    output("zero_out", kDTypes, kShapes, "the same zero points in the other packing")
        .selected_by("to_packing"),
    choice("from_packing", kPackings,
           "plain: a byte each; gptq: zero - 1, eight a word, transposed; gptq_v2: the same without"
           " the -1; awq: words in the order 0 2 4 6 1 3 5 7"),
    choice("to_packing", kPackings, "likewise; only the low four bits of a zero point are kept"),
};

inline constexpr Constraint constraints[] = {
    {"to_packing == plain || N % 8 == 0",
     "N must be a multiple of 8 for gptq, gptq_v2 and awq: a word holds 8 zero points"},
};

inline constexpr Case cases[] = {
    {"N=16 G=5 to_packing=gptq"},
    {"N=24 G=3 to_packing=awq"},
    {"N=24 G=3 to_packing=gptq_v2"},
    {"N=8 G=7 from_packing=gptq"},
    {"N=8 G=7 from_packing=gptq_v2"},
    {"N=32 G=4 from_packing=awq"},
    {"N=32 G=4 from_packing=awq to_packing=gptq"},
    {"N=32 G=4 from_packing=gptq to_packing=awq"},
    {"N=5 G=3"},
    {"N=0 G=3 to_packing=gptq", kEdge},
    {"N=8 G=0 to_packing=awq", kEdge},
    {"N=8 G=1 to_packing=gptq", kEdge},
    {"N=131072 G=1024 to_packing=gptq", kBar},
};

inline constexpr OpSpec spec{
    .name = "repack_zeros",
    .doc = "Rewrites the zero points that belong to INT4 codes from one packing to another.",
    .source = "docs/formats/packing.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .backward = {.why_not = "zero points are codes, no differentiable input"},
};

}  // namespace pestle::ops::repack_zeros
