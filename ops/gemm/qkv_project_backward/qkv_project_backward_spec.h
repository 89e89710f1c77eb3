// qkv_project_backward: the contract.
#pragma once

#include <iterator>

#include "core/op_spec.h"
#include "ops/gemm/linear/qkv_args.h"

namespace pestle::ops::qkv_project_backward {

// Codes are decoded in d_q's dtype, rounded as the dequantising op rounds. Rotated weights are
// rotated back by f32 sums first, which may fall to the other side of a rounding boundary: 2^-8 of
// each term where that dtype is narrow.
#define PESTLE_D_X_SUMS \
  "NQ + NK + NV + if(hadamard > 0, if(bytes(d_q) == 2, 268435456, 0) + hadamard, 0)"

inline constexpr Arg args[] = {
    input("d_q", "bf16|f16|f32", "*M, NQ", "gradient of qkv_project's q"),
    input("d_k", "bf16|f16|f32", "*M, NK", "gradient of k"),
    input("d_v", "bf16|f16|f32", "*M, NV", "gradient of v"),
    input("x", "bf16|f16|f32", "*M, K", "qkv_project's x"),
    qkv_weight("weight_q", PESTLE_QKV_WEIGHT("NQ"), "qkv_project's weight_q"),
    qkv_weight("weight_k", PESTLE_QKV_WEIGHT("NK"), "qkv_project's weight_k"),
    qkv_weight("weight_v", PESTLE_QKV_WEIGHT("NV"), "qkv_project's weight_v"),
    input("bias_q", "f32|bf16|f16", "NQ", "qkv_project's; its values are not read").optional(),
    input("bias_k", "f32|bf16|f16", "NK", "likewise").optional(),
    input("bias_v", "f32|bf16|f16", "NV", "likewise").optional(),
    qkv_scale("scale_q", PESTLE_QKV_SCALE("NQ")),
    qkv_scale("scale_k", PESTLE_QKV_SCALE("NK")),
    qkv_scale("scale_v", PESTLE_QKV_SCALE("NV")),
    qkv_zero("zero_q", PESTLE_QKV_ZERO("NQ")),
    qkv_zero("zero_k", PESTLE_QKV_ZERO("NK")),
    qkv_zero("zero_v", PESTLE_QKV_ZERO("NV")),
    qkv_global_scale("global_scale_q"),
    qkv_global_scale("global_scale_k"),
    qkv_global_scale("global_scale_v"),
    output("d_x", "=x", "*M, K", "gradient of x: the sum of three products, rounded once")
        .within(4, PESTLE_D_X_SUMS),
    output("d_weight_q", "=x", "NQ, K", "gradient of weight_q")
        .only_if("format == float")
        .within(4, "M"),
    output("d_weight_k", "=x", "NK, K", "gradient of weight_k")
        .only_if("format == float")
        .within(4, "M"),
    output("d_weight_v", "=x", "NV, K", "gradient of weight_v")
        .only_if("format == float")
        .within(4, "M"),
    output("d_bias_q", "=bias_q", "NQ", "gradient of bias_q").only_if("has(bias_q)").within(4, "M"),
    output("d_bias_k", "=bias_k", "NK", "gradient of bias_k").only_if("has(bias_k)").within(4, "M"),
    output("d_bias_v", "=bias_v", "NV", "gradient of bias_v").only_if("has(bias_v)").within(4, "M"),
    kQkvFormatArgs[0],
    kQkvFormatArgs[1],
    kQkvFormatArgs[2],
    kQkvFormatArgs[3],
    kQkvFormatArgs[4],
    kQkvFormatArgs[5],
};

inline constexpr Case cases[] = {
    {"M=16 K=64 NQ=96 NK=32 NV=32"},
    {"M=2x3 K=72 NQ=40 NK=24 NV=17 x=f16 d_q=f16 d_k=f16 d_v=f16 bias_q=f16 bias_k=f32 "
     "bias_v=bf16"},
    {"M=33 K=130 NQ=70 NK=20 NV=30 x=f32 d_q=f32 d_k=bf16 d_v=f16 bias_v=f32"},
    {"M=130 K=96 NQ=256 NK=64 NV=64 bias_q=bf16"},
    {"M=9 K=96 NQ=70 NK=24 NV=17 format=int8_row bias_q=bf16 bias_v=f32"},
    {"M=2x9 K=96 NQ=70 NK=24 NV=17 x=f16 d_q=f32 d_k=f16 d_v=f16 format=int8_tensor"},
    {"M=5 K=512 NQ=40 NK=16 NV=24 format=int8_row hadamard=256 bias_k=f32"},
    {"M=3 K=384 NQ=70 NK=24 NV=17 format=int4 group_size=128 d_q=f16 d_k=f16 d_v=f16 x=f16"},
    {"M=17 K=160 NQ=33 NK=8 NV=9 x=f32 d_q=f32 d_k=f32 d_v=f32 format=int4 group_size=32 "
     "mode=asymmetric"},
    {"M=4 K=256 NQ=64 NK=16 NV=16 x=f32 d_q=f32 d_k=f32 d_v=f32 format=int4 hadamard=64"},
    {"M=7 K=304 NQ=130 NK=40 NV=24 format=nvfp4 bias_v=bf16"},
    {"M=2x2 K=80 NQ=33 NK=9 NV=7 format=nvfp4 nibbles=low_first scale_layout=plain"},
    {"M=1 K=1 NQ=1 NK=1 NV=1", kEdge},
    {"M=0 K=8 NQ=4 NK=4 NV=4 bias_q=f32", kEdge},
    {"M=3 K=16 NQ=8 NK=0 NV=8 bias_k=f32", kEdge},
    {"M=3 K=16 NQ=0 NK=0 NV=0", kEdge},
    {"M=3 K=0 NQ=8 NK=4 NV=4 bias_q=f32 bias_k=bf16", kEdge},
    {"M=5 K=40 NQ=9 NK=7 NV=3", kEdge, Dist::kZeros},
    {"M=0 K=16 NQ=4 NK=4 NV=4 format=nvfp4", kEdge},
    {"M=2 K=0 NQ=3 NK=2 NV=1 format=int4 group_size=32 bias_q=f32", kEdge},
    {"M=5 K=96 NQ=9 NK=7 NV=3 x=f32 d_q=f32 d_k=f32 d_v=f32 format=nvfp4", kEdge, Dist::kSpecial},
    {"M=4608 K=3072 NQ=3072 NK=3072 NV=3072", kBar},
    {"M=1048577 K=16 NQ=2049 NK=16 NV=16", kHuge},
};

inline constexpr OpSpec spec{
    .name = "qkv_project_backward",
    .doc = "Gradients of qkv_project: of x, of weights that are floats, of the biases.",
    .source =
        "d_x = d_q @ W_q + d_k @ W_k + d_v @ W_v, a weight of codes decoded in the dtype of "
        "its d; d_weight_q = d_q^T @ x; d_bias_q = sum of d_q over rows",
    .args = args,
    .constraints = kQkvConstraints,
    .cases = cases,
    .flops = "2*M*K*(NQ + NK + NV)*if(format == float, 2, 1)",
    .backward = {.why_not = "gradients of gradients are not provided"},
};

}  // namespace pestle::ops::qkv_project_backward
