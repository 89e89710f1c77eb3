// quantize_list: the contract. Numerics: docs/formats/fp8.md, docs/formats/int8.md
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::quantize_list {

inline constexpr const char* kScaleShape = "tensor: 1; row: *M, 1";

inline constexpr Arg args[] = {
    list_of(input("x", "bf16|f16|f32", "*M, K", "tensors to quantise")),
    list_of(
        input("scale", "f32", kScaleShape, "their decode scales: a code stands for code * scale")
            .selected_by("granularity")
            .optional()),
    list_of(output("q", "e4m3|e5m2|i8", "*M, K", "their codes, FP8 or INT8")),
    list_of(output("scale_out", "f32", kScaleShape,
                   "the decode scales computed here, amax / largest code")
                .selected_by("granularity")
                .only_if("!has(scale)")),
    choice("granularity", "tensor|row", "which elements share a scale"),
    choice("rounding", "nearest|stochastic", "nearest: ties to even; stochastic: by Philox bits"),
    int_attr("seed", 0, "Philox seed of stochastic rounding, the same for each tensor"),
};

inline constexpr Case cases[] = {
    {"M=64,1,3x11 K=256,129,24"},
    {"M=9,40 K=64,1304 x=f32,bf16,f16 q=i8,e5m2 granularity=row"},
    {"length=70 M=3,1,16 K=24,8 scale=f32 scale_out=none"},
    {"M=5,2 K=31,64 x=f32 q=e5m2 scale=f32 scale_out=none granularity=row rounding=stochastic "
     "seed=3"},
    {"M=3,140,1 K=40,128,9000 q=i8 rounding=stochastic seed=7", kSmoke, Dist::kOutliers},
    {"M=2,70 K=16384,16 granularity=row"},
    {"M=0,4,3 K=16,0,8", kEdge},
    {"M=0,4,3 K=16,0,8 granularity=row", kEdge},
    {"M=1 K=1", kEdge},
    {"M=7,9 K=17,64 x=f32", kEdge, Dist::kSpecial},
    {"M=9,7 K=64,16 q=i8 granularity=row", kEdge, Dist::kSpecial},
    {"M=7,2 K=16 x=f32,f16 granularity=row", kEdge, Dist::kZeros},
    {"length=64 M=1024 K=1024", kBar},
    {"length=64 M=1024 K=1024 scale=f32 scale_out=none", kBar},
    {"length=64 M=1024 K=1024 granularity=row", kBar},
    {"length=64 M=1024 K=1024 q=i8 granularity=row", kBar},
    {"length=64 M=1024,3072 K=3072,1024 x=f32", kBar},
};

inline constexpr OpSpec spec{
    .name = "quantize_list",
    .doc =
        "Quantises several tensors at once to FP8 or INT8, each as quantize_fp8 or quantize_int8 "
        "would.",
    .source = "docs/formats/fp8.md, docs/formats/int8.md",
    .args = args,
    .cases = cases,
    .flops = "2*M*K",
    // The second pass of a list of tensors of 8 MiB and more finds little in any cache.
    .bytes =
        "M*K*bytes(x)*if(!has(scale) && granularity == tensor && M*K*bytes(x) >= 8388608, 2, "
        "1) + M*K + 4*if(has(scale), numel(scale), numel(scale_out))",
    .backward = {.why_not = "codes are piecewise constant: the gradient is zero almost everywhere"},
};

}  // namespace pestle::ops::quantize_list
