// qkv_project: the contract.
#pragma once

#include <iterator>

#include "core/op_spec.h"
#include "ops/gemm/linear/qkv_args.h"

namespace pestle::ops::qkv_project {

inline constexpr Arg args[] = {
    input("x", "bf16|f16|f32", "*M, K", "activations"),
    qkv_weight("weight_q", PESTLE_QKV_WEIGHT("NQ"),
               "weight of the queries, a row for each column of q"),
    qkv_weight("weight_k", PESTLE_QKV_WEIGHT("NK"), "weight of the keys"),
    qkv_weight("weight_v", PESTLE_QKV_WEIGHT("NV"), "weight of the values"),
    input("bias_q", "f32|bf16|f16", "NQ", "added to every row of q").optional(),
    input("bias_k", "f32|bf16|f16", "NK", "added to every row of k").optional(),
    input("bias_v", "f32|bf16|f16", "NV", "added to every row of v").optional(),
    qkv_scale("scale_q", PESTLE_QKV_SCALE("NQ")),
    qkv_scale("scale_k", PESTLE_QKV_SCALE("NK")),
    qkv_scale("scale_v", PESTLE_QKV_SCALE("NV")),
    qkv_zero("zero_q", PESTLE_QKV_ZERO("NQ")),
    qkv_zero("zero_k", PESTLE_QKV_ZERO("NK")),
    qkv_zero("zero_v", PESTLE_QKV_ZERO("NV")),
    qkv_global_scale("global_scale_q"),
    qkv_global_scale("global_scale_k"),
    qkv_global_scale("global_scale_v"),
    output("q", "=x|bf16|f16|f32", "*M, NQ", "x @ weight_q^T + bias_q").within(4, "K"),
    output("k", "=x|bf16|f16|f32", "*M, NK", "x @ weight_k^T + bias_k").within(4, "K"),
    output("v", "=x|bf16|f16|f32", "*M, NV", "x @ weight_v^T + bias_v").within(4, "K"),
    kQkvFormatArgs[0],
    kQkvFormatArgs[1],
    kQkvFormatArgs[2],
    kQkvFormatArgs[3],
    kQkvFormatArgs[4],
    kQkvFormatArgs[5],
};

inline constexpr Case cases[] = {
    {"M=16 K=64 NQ=96 NK=32 NV=32"},
    {"M=2x3 K=72 NQ=40 NK=24 NV=17 x=f16 bias_q=f16 bias_k=f32 bias_v=bf16"},
    {"M=1 K=260 NQ=64 NK=16 NV=48 x=f32 bias_q=f32"},
    {"M=33 K=128 NQ=130 NK=70 NV=70 x=f32 q=f32 k=bf16 v=f16 bias_v=f32"},
    {"M=130 K=96 NQ=256 NK=64 NV=64 bias_q=bf16 bias_k=bf16 bias_v=bf16"},
    {"M=1 K=256 NQ=130 NK=33 NV=31 format=int8_row bias_q=bf16 bias_v=f32"},
    {"M=2x9 K=96 NQ=70 NK=24 NV=17 x=f16 q=f32 format=int8_tensor"},
    {"M=5 K=512 NQ=40 NK=16 NV=24 format=int8_row hadamard=256 bias_k=f32"},
    {"M=3 K=384 NQ=70 NK=24 NV=17 format=int4 group_size=128 bias_q=f16"},
    {"M=17 K=160 NQ=33 NK=8 NV=9 x=f32 format=int4 group_size=32 mode=asymmetric v=bf16"},
    {"M=1 K=256 NQ=64 NK=16 NV=16 format=int4 hadamard=64 bias_q=bf16 bias_k=bf16 bias_v=bf16"},
    {"M=7 K=304 NQ=130 NK=40 NV=24 format=nvfp4 bias_v=bf16"},
    {"M=2x2 K=80 NQ=33 NK=9 NV=7 x=f16 format=nvfp4 nibbles=low_first scale_layout=plain k=f32"},
    // More tiles than a GPU takes at a time, so that a CTA goes from one weight to another.
    {"M=2 K=64 NQ=9000 NK=4100 NV=4300 bias_q=bf16 bias_v=f32"},
    {"M=17 K=72 NQ=4400 NK=2100 NV=2000 k=f32"},
    {"M=1 K=288 NQ=4224 NK=1040 NV=2100 format=nvfp4 bias_q=bf16 bias_v=f32"},
    {"M=9 K=160 NQ=1700 NK=600 NV=555 x=f16 format=int4 group_size=32 mode=asymmetric v=f32"},
    {"M=33 K=328 NQ=130 NK=70 NV=71 k=f32 bias_k=f16"},
    {"M=4x16 K=1096 NQ=264 NK=48 NV=56 x=f16 bias_q=f32 bias_k=f16 bias_v=bf16"},
    {"M=16 K=320 NQ=130 NK=40 NV=33 x=f16 format=nvfp4 scale_layout=plain bias_k=f16"},
    {"M=17 K=160 NQ=133 NK=8 NV=9 format=int4 group_size=32 mode=asymmetric v=f32"},
    {"M=64 K=320 NQ=264 NK=130 NV=33 format=nvfp4 bias_q=bf16"},
    {"M=40 K=352 NQ=130 NK=131 NV=17 x=f16 format=int8_row bias_k=f32"},
    {"M=2x4 K=1056 NQ=33 NK=130 NV=16 format=int4 bias_v=f32 k=f32"},
    {"M=1 K=1 NQ=1 NK=1 NV=1", kEdge},
    {"M=0 K=8 NQ=4 NK=4 NV=4", kEdge},
    {"M=3 K=16 NQ=8 NK=0 NV=8", kEdge},
    {"M=3 K=0 NQ=8 NK=4 NV=4 bias_q=f32 bias_k=bf16", kEdge},
    {"M=5 K=40 NQ=9 NK=7 NV=3 x=f32 bias_k=f32", kEdge, Dist::kSpecial},
    {"M=5 K=40 NQ=9 NK=7 NV=3", kEdge, Dist::kZeros},
    {"M=3 K=33 NQ=5 NK=1 NV=0 format=int8_row", kEdge},
    {"M=3 K=64 NQ=8 NK=0 NV=17 format=int4 group_size=32 bias_v=bf16", kEdge},
    {"M=2 K=32 NQ=0 NK=0 NV=1 format=nvfp4", kEdge},
    {"M=3 K=64 NQ=0 NK=5 NV=0 bias_k=f32", kEdge},
    {"M=5 K=96 NQ=9 NK=7 NV=3 format=nvfp4", kEdge, Dist::kSpecial},
    {"M=5 K=96 NQ=9 NK=7 NV=3 format=int8_row", kEdge, Dist::kSpecial},
    {"M=0 K=16 NQ=4 NK=4 NV=4 format=nvfp4", kEdge},
    {"M=2 K=0 NQ=3 NK=2 NV=1 format=int4 group_size=32 bias_q=f32", kEdge},
    {"M=3 K=94 NQ=5 NK=3 NV=2 format=int4 group_size=6", kEdge},
    {"M=5 K=96 NQ=9 NK=7 NV=3 x=f32 format=nvfp4", kEdge, Dist::kSpecial},
    {"M=16 K=4096 NQ=4096 NK=1024 NV=1024", kBar},
    {"M=64 K=3072 NQ=3072 NK=3072 NV=3072", kBar},
    {"M=16 K=4096 NQ=4096 NK=1024 NV=1024 format=int8_row", kBar},
    {"M=16 K=4096 NQ=4096 NK=1024 NV=1024 format=int4 group_size=128", kBar},
    {"M=16 K=4096 NQ=4096 NK=1024 NV=1024 format=nvfp4", kBar},
    {"M=1048577 K=16 NQ=2049 NK=16 NV=16", kHuge},
};

inline constexpr OpSpec spec{
    .name = "qkv_project",
    .doc =
        "The projections of attention's queries, keys and values by three weights of one x, of "
        "floats or quantised.",
    .source = "three products as matmul's or as the format's linear op, f32 sums, one rounding",
    .args = args,
    .constraints = kQkvConstraints,
    .cases = cases,
    .flops = "2*M*K*(NQ + NK + NV)",
    .backward = {.op = "qkv_project_backward",
                 .call =
                     "d_q=grad(q), d_k=grad(k), d_v=grad(v), x=x, weight_q=weight_q, "
                     "weight_k=weight_k, weight_v=weight_v, bias_q=bias_q, bias_k=bias_k, "
                     "bias_v=bias_v, scale_q=scale_q, scale_k=scale_k, scale_v=scale_v, "
                     "zero_q=zero_q, zero_k=zero_k, zero_v=zero_v, global_scale_q=global_scale_q, "
                     "global_scale_k=global_scale_k, global_scale_v=global_scale_v",
                 .gives = "x=d_x, weight_q=d_weight_q, weight_k=d_weight_k, weight_v=d_weight_v, "
                          "bias_q=d_bias_q, bias_k=d_bias_k, bias_v=d_bias_v"},
};

}  // namespace pestle::ops::qkv_project
