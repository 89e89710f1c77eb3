// repack_int4: the contract. Layouts: docs/formats/packing.md
#pragma once

#include "core/op_spec.h"
#include "ops/quant/int4/int4_packings.h"

namespace pestle::ops::repack_int4 {

inline constexpr Arg args[] = {
    input("q", kInt4PackingDTypes, kInt4PackingShapes, "codes of an N x K weight")
        .selected_by("from_packing"),
    output("out", kInt4PackingDTypes, kInt4PackingShapes, "the same codes in the other packing")
        .selected_by("to_packing"),
    choice("from_packing", kInt4Packings,
           "plain: u8, even column low, two's complement; plain_unsigned: the same places, codes"
           " 0..15; kaio: u32 along K, two's complement; gptq: i32 along K, transposed, 0..15;"
           " awq: i32 along N in the order 0 2 4 6 1 3 5 7, transposed, 0..15"),
    choice("to_packing", kInt4Packings,
           "from signed to unsigned codes every code moves up by 8, which is then the zero point"),
};

inline constexpr Constraint constraints[] = {
    {"K % 2 == 0", "K must be even: two codes share a byte"},
    {"to_packing != kaio && to_packing != gptq || K % 8 == 0",
     "K must be a multiple of 8 for to_packing=kaio and gptq: a word holds 8 codes along K"},
    {"to_packing != awq || N % 8 == 0",
     "N must be a multiple of 8 for to_packing=awq: a word holds 8 codes along N"},
};

inline constexpr Case cases[] = {
    {"N=8 K=64 to_packing=awq"},
    {"N=16 K=24 to_packing=gptq"},
    {"N=24 K=136 from_packing=gptq to_packing=awq"},
    {"N=136 K=72 from_packing=awq to_packing=gptq"},
    {"N=40 K=208 from_packing=awq"},
    {"N=352 K=288 to_packing=awq"},
    {"N=288 K=352 from_packing=awq"},
    {"N=300 K=352 to_packing=gptq"},
    {"N=260 K=288 from_packing=gptq"},
    {"N=5 K=128 to_packing=kaio"},
    {"N=5 K=128 from_packing=kaio to_packing=plain_unsigned"},
    {"N=21 K=144 from_packing=gptq to_packing=kaio"},
    {"N=21 K=144 from_packing=gptq to_packing=plain_unsigned"},
    {"N=16 K=16 from_packing=plain_unsigned to_packing=awq"},
    {"N=16 K=32 from_packing=kaio to_packing=awq"},
    {"N=16 K=32 from_packing=awq to_packing=plain_unsigned"},
    {"N=7 K=18 to_packing=plain_unsigned"},
    {"N=7 K=18"},
    {"N=16 K=16 from_packing=awq to_packing=awq"},
    {"N=9 K=16 from_packing=gptq to_packing=gptq"},
    {"N=0 K=16 to_packing=awq", kEdge},
    {"N=3 K=0 to_packing=gptq", kEdge},
    {"N=1 K=2 to_packing=plain_unsigned", kEdge},
    {"N=1 K=8 to_packing=gptq", kEdge},
    {"N=8 K=2 to_packing=awq", kEdge},
    {"N=264 K=70 from_packing=awq to_packing=plain", kEdge},
    {"N=32768 K=32768 to_packing=awq", kBar},
    {"N=32768 K=32768 to_packing=gptq", kBar},
    {"N=32768 K=32768 from_packing=awq", kBar},
    {"N=98304 K=65536 to_packing=gptq", kHuge},
};

inline constexpr OpSpec spec{
    .name = "repack_int4",
    .doc = "Rewrites INT4 codes from one packing to another; zero points go by repack_zeros.",
    .source = "docs/formats/packing.md",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .backward = {.why_not = "codes are no differentiable input"},
};

}  // namespace pestle::ops::repack_int4
