// attention_backward: the contract.
#pragma once

#include "ops/attention/attention_args.h"

namespace pestle::ops::attention_backward {

inline constexpr double kBoundC = 4;

inline constexpr Arg args[] = {
    input("d_out", kAttentionFloats, "B, Hq, Sq, Dv", "gradient of attention's out"),
    kAttentionQ,
    kAttentionK,
    kAttentionV,
    input("out", kAttentionFloats, "B, Hq, Sq, Dv", "what attention gave"),
    input("lse", "f32", "B, Hq, Sq", "what attention gave; queries where it is infinite give 0"),
    kAttentionMask,
    kAttentionSinks,
    kAttentionLengths,
    kAttentionQOffsets,
    kAttentionKOffsets,
    output("d_q", "=q", "B, Hq, Sq, D", "gradient of q")
        .within(kBoundC, PESTLE_TF32_TERMS " + D + Dv + Sk + 1"),
    output("d_k", "=q", "B, Hk, Sk, D", "gradient of k")
        .within(kBoundC, PESTLE_TF32_TERMS " + D + Dv + Sq * Hq / max(Hk, 1) + 1"),
    output("d_v", "=q", "B, Hk, Sk, Dv", "gradient of v")
        .within(kBoundC, PESTLE_TF32_TERMS " + D + Dv + Sq * Hq / max(Hk, 1) + 1"),
    output("d_mask", "=mask", "Bm, Hm, Mq, Mk",
           "gradient of mask, summed over what it is shared by")
        .only_if("mask_gradient")
        .within(kBoundC,
                PESTLE_TF32_TERMS " + D + Dv + B * Hq * Sq * Sk / max(numel(mask), 1) + 1"),
    output("d_sinks", "=sinks", "Hq", "gradient of sinks")
        .only_if("has(sinks)")
        .within(kBoundC, PESTLE_TF32_TERMS " + Dv + B * Sq + 1"),
    kAttentionScale,
    kAttentionSoftcap,
    kAttentionCausal,
    kAttentionLeft,
    kAttentionRight,
    kAttentionAlign,
    bool_attr("mask_gradient", false, "give d_mask, which may be as large as all logits"),
    kAttentionPrecision,
    kAttentionDeterministic,
};

inline constexpr Constraint constraints[] = {
    kAttentionConstraints[0],
    kAttentionConstraints[1],
    kAttentionConstraints[2],
    kAttentionConstraints[3],
    kAttentionConstraints[4],
    kAttentionConstraints[5],
    {"!mask_gradient || (has(mask) && bytes(mask) > 1)",
     "mask_gradient needs a mask of floats: a boolean one has no gradient"},
};

inline constexpr Case cases[] = {
    {"B=1 Hq=2 Sq=37 D=64 Hk=2 Sk=50 Dv=64"},
    {"B=2 Hq=4 Sq=20 D=24 Hk=2 Sk=130 Dv=40 q=f32 scale=0.3"},
    {"B=1 Hq=6 Sq=5 D=64 Hk=1 Sk=300 Dv=64 q=f16 out=f32 d_out=f32"},
    {"B=1 Hq=1 Sq=200 D=32 Hk=1 Sk=200 Dv=32 causal=true"},
    {"B=1 Hq=2 Sq=33 D=16 Hk=1 Sk=70 Dv=16 q=f32 causal=true align=bottom_right"},
    {"B=1 Hq=2 Sq=70 D=16 Hk=2 Sk=33 Dv=8 q=f32 causal=true align=bottom_right"},
    {"B=1 Hq=1 Sq=150 D=8 Hk=1 Sk=170 Dv=8 q=f32 window_left=20 window_right=3"},
    {"B=2 Hq=2 Sq=21 D=40 Hk=2 Sk=80 Dv=40 q=f32 softcap=2"},
    {"B=2 Hq=2 Sq=21 D=40 Hk=1 Sk=80 Dv=40 mask=bf16 Bm=2 Hm=2 Mq=21 Mk=80 mask_gradient=true"},
    {"B=2 Hq=2 Sq=100 D=16 Hk=2 Sk=65 Dv=16 q=f32 mask=f32 Bm=1 Hm=2 Mq=100 Mk=1 softcap=1 "
     "mask_gradient=true"},
    {"B=2 Hq=4 Sq=70 D=16 Hk=2 Sk=100 Dv=16 q=f32 mask=f16 Bm=2 Hm=1 Mq=1 Mk=100 causal=true "
     "mask_gradient=true"},
    {"B=2 Hq=2 Sq=70 D=16 Hk=1 Sk=99 Dv=16 q=f32 mask=f32 Bm=1 Hm=1 Mq=70 Mk=99"},
    {"B=2 Hq=2 Sq=19 D=16 Hk=2 Sk=65 Dv=16 q=f32 mask=bool Bm=2 Hm=1 Mq=1 Mk=65"},
    {"B=1 Hq=3 Sq=99 D=16 Hk=3 Sk=129 Dv=16 q=f16 mask=bool Bm=1 Hm=3 Mq=99 Mk=129"},
    {"B=2 Hq=4 Sq=12 D=16 Hk=2 Sk=40 Dv=16 sinks=f32 causal=true"},
    {"B=6 Hq=2 Sq=9 D=16 Hk=1 Sk=60 Dv=16 q=f32 key_lengths=i32 sinks=bf16"},
    {"B=1 Hq=2 Sq=110 D=16 Hk=1 Sk=120 Dv=16 q=f32 q_offsets=i32 k_offsets=i32 N=8 causal=true"},
    {"B=1 Hq=2 Sq=90 D=64 Hk=1 Sk=100 Dv=48 q=f32 out=f32 d_out=f32 precision=tf32 causal=true"},
    {"B=1 Hq=2 Sq=140 D=64 Hk=1 Sk=270 Dv=64 deterministic=false"},
    {"B=1 Hq=2 Sq=130 D=128 Hk=1 Sk=260 Dv=128 causal=true align=bottom_right "
     "deterministic=false sinks=f32"},
    {"B=2 Hq=1 Sq=70 D=128 Hk=1 Sk=150 Dv=128 q=f16 out=f16 d_out=f16 key_lengths=i32"},
    {"B=1 Hq=1 Sq=200 D=64 Hk=1 Sk=150 Dv=64 q=f16 out=f16 d_out=f16 causal=true"},
    {"B=1 Hq=1 Sq=200 D=128 Hk=1 Sk=200 Dv=128 window_left=70 window_right=40"},
    {"B=1 Hq=2 Sq=150 D=64 Hk=1 Sk=200 Dv=64 mask=bf16 Bm=1 Hm=1 Mq=150 Mk=200"},
    {"B=2 Hq=2 Sq=70 D=128 Hk=2 Sk=136 Dv=128 mask=bool Bm=2 Hm=1 Mq=1 Mk=136 causal=true"},
    {"B=1 Hq=2 Sq=70 D=128 Hk=1 Sk=133 Dv=128 q=f16 out=f16 d_out=f16 mask=f16 Bm=1 Hm=2 Mq=70 "
     "Mk=133 softcap=3"},
    {"B=1 Hq=2 Sq=140 D=128 Hk=1 Sk=150 Dv=128 softcap=2 causal=true"},
    {"B=1 Hq=1 Sq=130 D=64 Hk=1 Sk=140 Dv=64 q=f16 out=f16 d_out=f16 softcap=1 "
     "deterministic=false"},
    {"B=1 Hq=2 Sq=150 D=64 Hk=1 Sk=140 Dv=64 q_offsets=i32 k_offsets=i32 N=9 causal=true"},
    {"B=1 Hq=2 Sq=130 D=128 Hk=1 Sk=150 Dv=128 q=f16 out=f16 d_out=f16 q_offsets=i64 k_offsets=i32 "
     "N=10 deterministic=false"},
    {"B=1 Hq=2 Sq=130 D=256 Hk=1 Sk=150 Dv=256 causal=true align=bottom_right sinks=f32"},
    {"B=2 Hq=1 Sq=100 D=192 Hk=1 Sk=140 Dv=192 q=f16 out=f16 d_out=f16 key_lengths=i32 "
     "deterministic=false"},
    {"B=1 Hq=2 Sq=120 D=192 Hk=1 Sk=130 Dv=128 q_offsets=i32 k_offsets=i32 N=7 causal=true"},
    {"B=1 Hq=1 Sq=3 D=256 Hk=1 Sk=65 Dv=256", kEdge},
    {"B=1 Hq=1 Sq=3 D=300 Hk=1 Sk=5 Dv=264 q=f32", kEdge},
    {"B=1 Hq=2 Sq=7 D=13 Hk=1 Sk=11 Dv=3", kEdge},
    {"B=1 Hq=1 Sq=97 D=1 Hk=1 Sk=1 Dv=1 q=f32", kEdge},
    {"B=1 Hq=2 Sq=3 D=8 Hk=2 Sk=0 Dv=8 sinks=f32", kEdge},
    {"B=0 Hq=2 Sq=3 D=8 Hk=2 Sk=4 Dv=8 sinks=f32", kEdge},
    {"B=1 Hq=2 Sq=0 D=8 Hk=2 Sk=4 Dv=8 q=f16", kEdge},
    {"B=1 Hq=2 Sq=5 D=0 Hk=1 Sk=4 Dv=8 q=f32", kEdge},
    {"B=1 Hq=2 Sq=5 D=8 Hk=1 Sk=4 Dv=0 sinks=f32", kEdge},
    {"B=2 Hq=2 Sq=0 D=8 Hk=2 Sk=4 Dv=8 q=f32 mask=f32 Bm=1 Hm=1 Mq=1 Mk=4 mask_gradient=true",
     kEdge},
    {"B=1 Hq=2 Sq=24 D=32 Hk=2 Sk=150 Dv=16 q=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=24 D=32 Hk=1 Sk=90 Dv=16 q=f16", kEdge, Dist::kZeros},
    {"B=1 Hq=1 Sq=24 D=32 Hk=1 Sk=70 Dv=16", kEdge, Dist::kSubnormal},
    {"B=2 Hq=2 Sq=18 D=8 Hk=1 Sk=33 Dv=8", kEdge, Dist::kSpecial},
    {"B=2 Hq=2 Sq=18 D=8 Hk=1 Sk=70 Dv=8 q=f32 causal=true", kEdge, Dist::kSpecial},
    {"B=1 Hq=2 Sq=18 D=8 Hk=2 Sk=33 Dv=8 q=f16 mask=f16 Bm=1 Hm=2 Mq=18 Mk=33 mask_gradient=true",
     kEdge, Dist::kSpecial},
    {"B=4 Hq=2 Sq=8 D=8 Hk=1 Sk=33 Dv=8 q=f32 key_lengths=i64 sinks=f16", kEdge, Dist::kSpecial},
    {"B=1 Hq=2 Sq=70 D=64 Hk=1 Sk=70 Dv=64 q=f32 out=f32 d_out=f32", kEdge, Dist::kSpecial},
    {"B=1 Hq=2 Sq=70 D=64 Hk=1 Sk=70 Dv=64 q=f32 out=f32 d_out=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=1 Sq=70 D=32 Hk=1 Sk=70 Dv=16 q=f32 out=f32 d_out=f32", kEdge, Dist::kSubnormal},
    {"B=1 Hq=2 Sq=70 D=64 Hk=1 Sk=70 Dv=64 q=f32 out=f32 d_out=f32 precision=tf32", kEdge,
     Dist::kSpecial},
    {"B=1 Hq=2 Sq=70 D=72 Hk=2 Sk=133 Dv=128 q=f32 out=f32 d_out=f32 causal=true softcap=2", kEdge},
    {"B=1 Hq=1 Sq=70 D=128 Hk=1 Sk=140 Dv=128", kEdge, Dist::kSpecial},
    {"B=1 Hq=1 Sq=130 D=64 Hk=1 Sk=140 Dv=64 q=f16 out=f16 d_out=f16 deterministic=false", kEdge,
     Dist::kOutliers},
    {"B=1 Hq=1 Sq=63 D=72 Hk=1 Sk=65 Dv=72", kEdge},
    {"B=1 Hq=8 Sq=129 D=128 Hk=1 Sk=127 Dv=128 causal=true", kEdge},
    {"B=1 Hq=1 Sq=65 D=192 Hk=1 Sk=63 Dv=128 causal=true align=bottom_right", kEdge},
    // Heads of q that share one of k in several parts, in one, in some of many; counts of tiles that no
    // multiple is near.
    {"B=1 Hq=6 Sq=321 D=128 Hk=2 Sk=390 Dv=96 causal=true", kEdge},
    {"B=2 Hq=8 Sq=65 D=64 Hk=1 Sk=257 Dv=64 q=f16 out=f16 d_out=f16 causal=true align=bottom_right "
     "key_lengths=i32",
     kEdge},
    {"B=1 Hq=5 Sq=400 D=128 Hk=1 Sk=333 Dv=128 window_left=100 window_right=3 deterministic=false",
     kEdge},
    {"B=1 Hq=12 Sq=129 D=128 Hk=3 Sk=140 Dv=128", kEdge, Dist::kSpecial},
    {"B=1 Hq=900 Sq=20 D=32 Hk=450 Sk=130 Dv=32 q=f16 out=f16 d_out=f16", kEdge},
    {"B=1 Hq=480 Sq=20 D=32 Hk=120 Sk=130 Dv=32", kEdge},
    {"B=2 Hq=3 Sq=129 D=64 Hk=1 Sk=140 Dv=64 mask=bool Bm=1 Hm=1 Mq=129 Mk=140", kEdge},
    {"B=1 Hq=6 Sq=300 D=128 Hk=2 Sk=390 Dv=128 q_offsets=i32 k_offsets=i32 N=7 causal=true", kEdge},
    {"B=2 Hq=2 Sq=66 D=192 Hk=1 Sk=97 Dv=192 q=f16 d_out=f16 softcap=2 window_left=30", kEdge},
    {"B=2 Hq=4 Sq=129 D=136 Hk=2 Sk=193 Dv=136 window_left=50 window_right=20 sinks=bf16", kEdge},
    {"B=3 Hq=2 Sq=65 D=256 Hk=2 Sk=190 Dv=256 q=f16 out=f16 d_out=f16 key_lengths=i64 softcap=3",
     kEdge},
    {"B=1 Hq=2 Sq=70 D=200 Hk=1 Sk=65 Dv=248 softcap=2 causal=true deterministic=false", kEdge},
    {"B=1 Hq=1 Sq=66 D=64 Hk=1 Sk=70 Dv=160 window_left=20", kEdge},
    {"B=1 Hq=2 Sq=64 D=160 Hk=2 Sk=70 Dv=160 mask=bf16 Bm=1 Hm=2 Mq=64 Mk=70", kEdge},
    {"B=1 Hq=1 Sq=70 D=256 Hk=1 Sk=140 Dv=256", kEdge, Dist::kSpecial},
    {"B=1 Hq=1 Sq=140 D=192 Hk=1 Sk=140 Dv=192 causal=true", kEdge, Dist::kOutliers},
    {"B=1 Hq=1 Sq=200 D=256 Hk=1 Sk=210 Dv=192 q=f16 out=f16 d_out=f16 q_offsets=i32 k_offsets=i32 "
     "N=5 softcap=2",
     kEdge},
    {"B=1 Hq=2 Sq=129 D=64 Hk=1 Sk=130 Dv=64 q=f16 d_out=f16 q_offsets=i32 k_offsets=i32 N=9 "
     "causal=true sinks=f32",
     kEdge},
    {"B=1 Hq=2 Sq=560 D=64 Hk=1 Sk=590 Dv=64 q_offsets=i32 k_offsets=i64 N=4 causal=true", kEdge,
     Dist::kOutliers},
    {"B=1 Hq=2 Sq=450 D=128 Hk=1 Sk=520 Dv=128 q_offsets=i32 k_offsets=i32 N=4 causal=true "
     "align=bottom_right",
     kEdge, Dist::kOutliers},
    // Not of outliers: beside an lse that is not attention's, gradients of logits span more than f16.
    {"B=1 Hq=1 Sq=520 D=128 Hk=1 Sk=450 Dv=96 q=f16 out=f16 d_out=f16 q_offsets=i32 k_offsets=i32 "
     "N=4 window_left=90 window_right=40",
     kEdge},
    {"B=1 Hq=4 Sq=400 D=64 Hk=2 Sk=400 Dv=64 q_offsets=i32 k_offsets=i32 N=3 softcap=3 sinks=f32",
     kEdge, Dist::kOutliers},
    {"B=1 Hq=1 Sq=300 D=128 Hk=1 Sk=290 Dv=128 q_offsets=i32 k_offsets=i32 N=12 softcap=2", kEdge},
    {"B=1 Hq=1 Sq=150 D=64 Hk=1 Sk=160 Dv=64 q_offsets=i32 k_offsets=i32 N=12", kEdge,
     Dist::kSpecial},
    {"B=1 Hq=1 Sq=140 D=64 Hk=1 Sk=150 Dv=64 q_offsets=i32 k_offsets=i32 N=5", kEdge, Dist::kZeros},
    {"B=1 Hq=1 Sq=140 D=64 Hk=1 Sk=150 Dv=64 q_offsets=i32 k_offsets=i32 N=1", kEdge},
    {"B=2 Hq=4 Sq=70 D=128 Hk=2 Sk=100 Dv=128 mask=bf16 Bm=2 Hm=1 Mq=70 Mk=100 "
     "mask_gradient=true",
     kEdge},
    {"B=1 Hq=2 Sq=70 D=64 Hk=2 Sk=100 Dv=64 mask=bf16 Bm=1 Hm=2 Mq=70 Mk=100 mask_gradient=true",
     kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=140 D=64 Hk=1 Sk=129 Dv=64 mask=bool Bm=1 Hm=1 Mq=140 Mk=129 softcap=4 "
     "sinks=f32",
     kEdge},
    {"B=2 Hq=1 Sq=130 D=64 Hk=1 Sk=200 Dv=48 q=f16 out=f16 d_out=f16 mask=f16 Bm=2 Hm=1 Mq=130 "
     "Mk=200 key_lengths=i32",
     kEdge},
    {"B=1 Hq=2 Sq=129 D=40 Hk=1 Sk=136 Dv=64 mask=bf16 Bm=1 Hm=2 Mq=1 Mk=136 softcap=2 "
     "window_left=60",
     kEdge},
    {"B=1 Hq=1 Sq=66 D=128 Hk=1 Sk=264 Dv=96 q=f16 out=f16 d_out=f16 mask=bool Bm=1 Hm=1 Mq=66 "
     "Mk=264 softcap=2 causal=true align=bottom_right",
     kEdge},
    {"B=2 Hq=1 Sq=65 D=128 Hk=1 Sk=70 Dv=128 mask=bf16 Bm=2 Hm=1 Mq=65 Mk=1", kEdge},
    {"B=1 Hq=1 Sq=130 D=128 Hk=1 Sk=200 Dv=128 mask=bf16 Bm=1 Hm=1 Mq=130 Mk=200", kEdge,
     Dist::kOutliers},
    {"B=1 Hq=1 Sq=70 D=64 Hk=1 Sk=144 Dv=64 mask=bool Bm=1 Hm=1 Mq=70 Mk=144", kEdge,
     Dist::kSpecial},
    {"B=1 Hq=1 Sq=70 D=64 Hk=1 Sk=140 Dv=64 q=f16 out=f16 d_out=f16 mask=f16 Bm=1 Hm=1 Mq=70 "
     "Mk=140 softcap=5",
     kEdge, Dist::kSpecial},
    {"B=1 Hq=12 Sq=2048 D=64 Hk=12 Sk=2048 Dv=64 q=f32 out=f32 d_out=f32", kBar},
    {"B=1 Hq=12 Sq=2048 D=64 Hk=12 Sk=2048 Dv=64", kBar},
    {"B=1 Hq=16 Sq=4096 D=128 Hk=16 Sk=4096 Dv=128", kBar},
    {"B=1 Hq=16 Sq=4096 D=128 Hk=16 Sk=4096 Dv=128 causal=true", kBar},
    {"B=1 Hq=24 Sq=4608 D=128 Hk=24 Sk=4608 Dv=128 mask=bf16 Bm=1 Hm=1 Mq=4608 Mk=4608", kBar},
    {"B=1 Hq=24 Sq=4608 D=64 Hk=24 Sk=4608 Dv=64 mask=bf16 Bm=1 Hm=1 Mq=4608 Mk=4608", kBar},
    {"B=1 Hq=24 Sq=4608 D=128 Hk=24 Sk=4608 Dv=128 softcap=50", kBar},
    {"B=1 Hq=24 Sq=4608 D=64 Hk=24 Sk=4608 Dv=64 softcap=50", kBar},
    {"B=65 Hq=1 Sq=2 D=256 Hk=1 Sk=131072 Dv=256", kHuge},
};

inline constexpr OpSpec spec{
    .name = "attention_backward",
    .doc = "Gradients of attention from its out and lse.",
    .source =
        "p = exp(logit - lse); d_v = sum of p * d_out; d_logit = p * (d_out.v - d_out.out); d_mask "
        "= d_logit; d_q, d_k = sums of d_logit * d logit / d q, / d k; d_sinks = -sum of exp(sink "
        "- "
        "lse) * (d_out.out)",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "2 * B * Hq * Sq * Sk * (3 * D + 2 * Dv) / if(causal, 2, 1)",
    .backward = {.why_not = "gradients of gradients are not provided"},
};

}  // namespace pestle::ops::attention_backward
