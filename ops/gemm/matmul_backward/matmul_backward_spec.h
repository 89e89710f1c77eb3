// matmul_backward: the contract.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops::matmul_backward {

// 16-bit operands: what the products read of d_pre is rounded to their dtype where it is not d_out
// itself, by 2^-8 of each term at most. d_pre also has the rounding of the product made again.
#define PESTLE_D_PRE_SUMS                                                           \
  "if(bytes(a) == 2 && (activation != none || bytes(d_out) == 4), 268435456, 0) + " \
  "if(activation != none, K, 0)"

inline constexpr Arg args[] = {
    input("d_out", "bf16|f16|f32", "*B, M, N", "gradient of matmul's out"),
    input("a", "bf16|f16|f32", "*B, M, K", "matmul's a"),
    input("b", "bf16|f16|f32", "*B, K, N", "matmul's b"),
    input("alpha", "f32", "1", "matmul's alpha").optional(),
    input("bias", "f32|bf16|f16", "N", "matmul's bias").optional(),
    input("residual", "f32|bf16|f16", "*B, M, N", "matmul's residual; its values are not read")
        .optional(),
    output("d_a", "=a", "*B, M, K", "gradient of a").within(4, "N + " PESTLE_D_PRE_SUMS),
    output("d_b", "=b", "*B, K, N", "gradient of b").within(4, "M + " PESTLE_D_PRE_SUMS),
    output("d_bias", "=bias", "N", "gradient of bias")
        .only_if("has(bias)")
        .within(4, "B*M + " PESTLE_D_PRE_SUMS),
    output("d_residual", "=residual", "*B, M, N", "d_out in residual's dtype")
        .only_if("has(residual)")
        .within(4, "1"),
    choice("activation", "none|gelu|gelu_tanh|silu", "matmul's activation"),
};

#undef PESTLE_D_PRE_SUMS

inline constexpr Case cases[] = {
    {"B= M=128 N=256 K=64"},
    {"B= M=130 N=200 K=96 d_out=f16 a=f16 b=f16 bias=f16 activation=gelu_tanh"},
    {"B=2 M=72 N=136 K=40 d_out=f32 alpha=f32 bias=f32 residual=f32 activation=silu"},
    {"B=2x2 M=17 N=33 K=29 d_out=f32 a=f32 b=f32 bias=f32 activation=gelu"},
    {"B=2 M=64 N=72 K=48 bias=bf16 residual=bf16"},
    {"B=2 M=70 N=136 K=72 d_out=f32 a=f32 b=f32 bias=f32 residual=f32 activation=gelu_tanh"},
    {"B= M=67 N=131 K=73 d_out=f32 a=f32 b=f32 alpha=f32", kEdge},
    {"B= M=33 N=31 K=35 d_out=bf16 a=bf16 b=f32 alpha=f32", kEdge},
    {"B= M=150 N=264 K=136 alpha=f32 bias=f32", kEdge},
    {"B= M=136 N=328 K=72 activation=silu bias=bf16", kEdge},
    {"B= M=0 N=8 K=16 bias=f32", kEdge},
    {"B= M=8 N=0 K=16 bias=f32 residual=bf16", kEdge},
    {"B=2 M=8 N=16 K=0 bias=f32 activation=gelu", kEdge},
    {"B=0 M=8 N=16 K=8 bias=f32", kEdge},
    {"B= M=1 N=1 K=1 bias=bf16", kEdge},
    {"B= M=7 N=13 K=31 activation=gelu_tanh", kEdge},
    {"B= M=24 N=40 K=64 bias=f32", kEdge, Dist::kSpecial},
    {"B= M=4096 N=4096 K=4096", kBar},
    {"B= M=8192 N=8192 K=8192", kBar},
    {"B= M=4608 N=12288 K=3072", kBar},
    {"B= M=4608 N=3072 K=12288", kBar},
    {"B= M=4608 N=9216 K=3072", kBar},
    {"B= M=32760 N=5120 K=5120", kBar},
    {"B= M=32760 N=13824 K=5120", kBar},
    {"B= M=1024 N=3072 K=768 bias=bf16 activation=gelu_tanh", kBar},
};

inline constexpr OpSpec spec{
    .name = "matmul_backward",
    .doc =
        "Gradients of matmul: of a, b, bias and residual; the product is made again where an "
        "activation followed it.",
    .source =
        "d_pre = d_out * activation'(a @ b * alpha + bias); d_a = d_pre @ b^T * alpha; "
        "d_b = a^T @ d_pre * alpha; d_bias = sum of d_pre over rows; d_residual = d_out",
    .args = args,
    .cases = cases,
    .flops = "B*M*N*K*if(activation == none, 4, 6)",
    .backward = {.why_not = "gradients of gradients are not provided"},
};

// Places of the arguments.
inline constexpr int kDOut = arg_index(spec, "d_out");
inline constexpr int kA = arg_index(spec, "a");
inline constexpr int kB = arg_index(spec, "b");
inline constexpr int kAlpha = arg_index(spec, "alpha");
inline constexpr int kBias = arg_index(spec, "bias");
inline constexpr int kDA = arg_index(spec, "d_a");
inline constexpr int kDB = arg_index(spec, "d_b");
inline constexpr int kDBias = arg_index(spec, "d_bias");
inline constexpr int kDResidual = arg_index(spec, "d_residual");
inline constexpr int kActivation = arg_index(spec, "activation");

}  // namespace pestle::ops::matmul_backward
