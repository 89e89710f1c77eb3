// qkv_project: the contract.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::qkv_project {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M, K", "activations"),
    input("weight_q", "=x", "NQ, K", "weight of the queries, a row for each column of q"),
    input("weight_k", "=x", "NK, K", "weight of the keys"),
    input("weight_v", "=x", "NV, K", "weight of the values"),
    input("bias_q", "f32|bf16|f16", "NQ", "added to every row of q").optional(),
    input("bias_k", "f32|bf16|f16", "NK", "added to every row of k").optional(),
    input("bias_v", "f32|bf16|f16", "NV", "added to every row of v").optional(),
    output("q", "=x|bf16|f16|f32", "*M, NQ", "x @ weight_q^T + bias_q").within(4, "K"),
    output("k", "=x|bf16|f16|f32", "*M, NK", "x @ weight_k^T + bias_k").within(4, "K"),
    output("v", "=x|bf16|f16|f32", "*M, NV", "x @ weight_v^T + bias_v").within(4, "K"),
};

inline constexpr Case cases[] = {
    {"M=16 K=64 NQ=96 NK=32 NV=32"},
    {"M=2x3 K=72 NQ=40 NK=24 NV=17 x=f16 bias_q=f16 bias_k=f32 bias_v=bf16"},
    {"M=1 K=260 NQ=64 NK=16 NV=48 x=f32 bias_q=f32"},
    {"M=33 K=128 NQ=130 NK=70 NV=70 x=f32 q=f32 k=bf16 v=f16 bias_v=f32"},
    {"M=130 K=96 NQ=256 NK=64 NV=64 bias_q=bf16 bias_k=bf16 bias_v=bf16"},
    {"M=1 K=1 NQ=1 NK=1 NV=1", kEdge},
    {"M=0 K=8 NQ=4 NK=4 NV=4", kEdge},
    {"M=3 K=16 NQ=8 NK=0 NV=8", kEdge},
    {"M=3 K=0 NQ=8 NK=4 NV=4 bias_q=f32 bias_k=bf16", kEdge},
    {"M=5 K=40 NQ=9 NK=7 NV=3 x=f32 bias_k=f32", kEdge, Dist::kSpecial},
    {"M=5 K=40 NQ=9 NK=7 NV=3", kEdge, Dist::kZeros},
    {"M=16 K=4096 NQ=4096 NK=1024 NV=1024", kBar},
    {"M=64 K=3072 NQ=3072 NK=3072 NV=3072", kBar},
    {"M=1048577 K=16 NQ=2049 NK=16 NV=16", kHuge},
};

inline constexpr OpSpec spec{
    .name = "qkv_project",
    .doc = "The projections of attention's queries, keys and values by three weights of one x.",
    .source = "three products as matmul's, f32 sums, one rounding",
    .args = args,
    .cases = cases,
    .flops = "2*M*K*(NQ + NK + NV)",
    .backward = {.why_not = "x's gradient is a sum of three products: train through matmul, whose "
                            "gradients are"},
};

}  // namespace pestle::ops::qkv_project
