// attention: the contract.
#pragma once

#include "ops/attention/attention_args.h"

namespace pestle::ops::attention {

inline constexpr double kBoundC = 4;

inline constexpr Arg args[] = {
    kAttentionQ,
    kAttentionK,
    kAttentionV,
    kAttentionMask,
    kAttentionSinks,
    kAttentionLengths,
    kAttentionQOffsets,
    kAttentionKOffsets,
    output("out", "=q|bf16|f16|f32", "B, Hq, Sq, Dv",
           "softmax(logits) @ v; 0 for a query that sees no key")
        .within(kBoundC, PESTLE_TF32_TERMS " + D + Sk + 1"),
    output("lse", "f32", "B, Hq, Sq",
           "log of the sum of exp(logits), with the sink's; -inf for a query that sees no key. "
           "Kept for the backward op")
        .optional()
        .within(kBoundC, PESTLE_TF32_TERMS " + D + Sk + 1"),
    kAttentionScale,
    kAttentionSoftcap,
    kAttentionCausal,
    kAttentionLeft,
    kAttentionRight,
    kAttentionAlign,
    kAttentionPrecision,
    kAttentionDeterministic,
};

inline constexpr Case cases[] = {
    {"B=1 Hq=2 Sq=37 D=64 Hk=2 Sk=50 Dv=64 lse=f32"},
    {"B=2 Hq=4 Sq=20 D=24 Hk=2 Sk=130 Dv=40 q=f32 lse=f32 scale=3"},
    {"B=1 Hq=6 Sq=5 D=64 Hk=1 Sk=300 Dv=64 q=f16 out=f32"},
    {"B=1 Hq=1 Sq=200 D=32 Hk=1 Sk=200 Dv=32 causal=true lse=f32"},
    {"B=1 Hq=2 Sq=33 D=16 Hk=1 Sk=70 Dv=16 q=f32 causal=true align=bottom_right lse=f32"},
    {"B=1 Hq=2 Sq=70 D=16 Hk=2 Sk=33 Dv=8 q=f32 causal=true align=bottom_right lse=f32"},
    {"B=1 Hq=1 Sq=150 D=8 Hk=1 Sk=170 Dv=8 q=f32 window_left=20 window_right=3"},
    {"B=1 Hq=1 Sq=40 D=8 Hk=1 Sk=90 Dv=8 window_left=9 window_right=0 align=bottom_right lse=f32"},
    {"B=2 Hq=2 Sq=21 D=40 Hk=2 Sk=80 Dv=40 q=f32 softcap=2 lse=f32"},
    {"B=2 Hq=2 Sq=21 D=40 Hk=1 Sk=80 Dv=40 mask=bf16 Bm=2 Hm=2 Mq=21 Mk=80 lse=f32"},
    {"B=2 Hq=2 Sq=100 D=16 Hk=2 Sk=65 Dv=16 q=f32 mask=f32 Bm=1 Hm=2 Mq=1 Mk=65 softcap=1"},
    {"B=2 Hq=2 Sq=100 D=16 Hk=2 Sk=65 Dv=16 q=f32 mask=bool Bm=1 Hm=2 Mq=100 Mk=1 lse=f32"},
    {"B=2 Hq=2 Sq=19 D=16 Hk=2 Sk=65 Dv=16 q=f32 mask=bool Bm=2 Hm=1 Mq=1 Mk=65 causal=true"},
    {"B=1 Hq=3 Sq=99 D=16 Hk=3 Sk=129 Dv=16 q=f16 mask=bool Bm=1 Hm=1 Mq=99 Mk=129 lse=f32"},
    {"B=2 Hq=4 Sq=12 D=16 Hk=2 Sk=40 Dv=16 sinks=f32 lse=f32 causal=true"},
    {"B=6 Hq=2 Sq=9 D=16 Hk=1 Sk=60 Dv=16 q=f32 key_lengths=i32 lse=f32 sinks=bf16"},
    {"B=5 Hq=1 Sq=30 D=16 Hk=1 Sk=60 Dv=16 key_lengths=i64 causal=true align=bottom_right lse=f32"},
    {"B=1 Hq=2 Sq=110 D=16 Hk=1 Sk=120 Dv=16 q=f32 q_offsets=i32 k_offsets=i32 N=8 causal=true "
     "lse=f32"},
    {"B=1 Hq=2 Sq=64 D=16 Hk=2 Sk=50 Dv=16 q_offsets=i64 k_offsets=i64 N=5 align=bottom_right "
     "window_left=4 lse=f32"},
    {"B=1 Hq=2 Sq=150 D=64 Hk=1 Sk=270 Dv=64 softcap=2 causal=true align=bottom_right lse=f32"},
    {"B=2 Hq=2 Sq=130 D=128 Hk=1 Sk=300 Dv=128 mask=bf16 Bm=1 Hm=1 Mq=130 Mk=300 sinks=f32 "
     "lse=f32"},
    {"B=2 Hq=2 Sq=70 D=64 Hk=2 Sk=210 Dv=64 q=f16 mask=bool Bm=2 Hm=1 Mq=1 Mk=210 softcap=9 "
     "lse=f32"},
    {"B=1 Hq=4 Sq=300 D=128 Hk=2 Sk=70 Dv=128 q_offsets=i32 k_offsets=i32 N=2 sinks=f32 lse=f32"},
    {"B=1 Hq=2 Sq=520 D=64 Hk=1 Sk=90 Dv=64 q=f16 q_offsets=i64 k_offsets=i32 N=3 causal=true "
     "align=bottom_right out=f32 lse=f32"},
    {"B=1 Hq=8 Sq=33 D=128 Hk=1 Sk=129 Dv=128 causal=true align=bottom_right lse=f32"},
    {"B=1 Hq=2 Sq=129 D=128 Hk=2 Sk=127 Dv=128 q=f16 causal=true lse=f32"},
    {"B=1 Hq=2 Sq=65 D=192 Hk=1 Sk=63 Dv=128 window_left=7 lse=f32"},
    {"B=1 Hq=2 Sq=65 D=72 Hk=2 Sk=97 Dv=96 mask=bf16 Bm=1 Hm=1 Mq=65 Mk=97 out=f32 lse=f32"},
    {"B=1 Hq=2 Sq=40 D=160 Hk=1 Sk=70 Dv=200 q=f16 mask=bool Bm=1 Hm=2 Mq=40 Mk=70 softcap=3 "
     "sinks=f16 lse=f32"},
    {"B=2 Hq=4 Sq=200 D=64 Hk=2 Sk=333 Dv=64 lse=f32"},
    {"B=1 Hq=4 Sq=150 D=64 Hk=2 Sk=170 Dv=48 q=f32 precision=tf32 causal=true lse=f32"},
    {"B=1 Hq=2 Sq=70 D=128 Hk=2 Sk=100 Dv=128 q=f32 precision=tf32 softcap=3 mask=f32 Bm=1 Hm=1 "
     "Mq=70 Mk=100 lse=f32"},
    {"B=1 Hq=2 Sq=260 D=128 Hk=1 Sk=420 Dv=128 causal=true align=bottom_right sinks=bf16 lse=f32"},
    {"B=2 Hq=2 Sq=150 D=128 Hk=2 Sk=400 Dv=128 q=f16 key_lengths=i32 out=f32 lse=f32"},
    {"B=1 Hq=2 Sq=420 D=96 Hk=2 Sk=420 Dv=72 window_left=100 window_right=30 lse=f32"},
    {"B=1 Hq=1 Sq=3 D=256 Hk=1 Sk=65 Dv=256 lse=f32", kEdge},
    {"B=1 Hq=1 Sq=129 D=256 Hk=1 Sk=200 Dv=192 q=f16 causal=true lse=f32", kEdge},
    {"B=1 Hq=1 Sq=193 D=64 Hk=1 Sk=400 Dv=64 causal=true lse=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=1 Sq=100 D=128 Hk=1 Sk=400 Dv=128 q=f16 scale=20 lse=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=1 Sq=130 D=128 Hk=1 Sk=300 Dv=128 q=f16 causal=true lse=f32", kEdge, Dist::kSpecial},
    {"B=1 Hq=1 Sq=127 D=128 Hk=1 Sk=193 Dv=128 lse=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=66 D=256 Hk=1 Sk=65 Dv=64 q=f16 lse=f32", kEdge, Dist::kSpecial},
    {"B=1 Hq=1 Sq=3 D=300 Hk=1 Sk=5 Dv=264 q=f32 lse=f32", kEdge},
    {"B=1 Hq=2 Sq=7 D=13 Hk=1 Sk=11 Dv=3 lse=f32", kEdge},
    {"B=1 Hq=1 Sq=97 D=1 Hk=1 Sk=1 Dv=1 q=f32 lse=f32", kEdge},
    {"B=1 Hq=1 Sq=1 D=64 Hk=1 Sk=257 Dv=64 q=f32 lse=f32", kEdge},
    {"B=1 Hq=2 Sq=3 D=8 Hk=2 Sk=0 Dv=8 lse=f32 sinks=f32", kEdge},
    {"B=1 Hq=2 Sq=3 D=8 Hk=2 Sk=0 Dv=8 q=f32 lse=f32", kEdge},
    {"B=0 Hq=2 Sq=3 D=8 Hk=2 Sk=4 Dv=8 lse=f32", kEdge},
    {"B=1 Hq=2 Sq=0 D=8 Hk=2 Sk=4 Dv=8 q=f16 lse=f32", kEdge},
    {"B=1 Hq=2 Sq=5 D=0 Hk=1 Sk=4 Dv=8 q=f32 lse=f32", kEdge},
    {"B=1 Hq=2 Sq=5 D=8 Hk=1 Sk=4 Dv=0 lse=f32", kEdge},
    {"B=1 Hq=2 Sq=24 D=16 Hk=2 Sk=150 Dv=16 q=f32 scale=40 lse=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=24 D=16 Hk=2 Sk=150 Dv=16 scale=-10 lse=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=24 D=32 Hk=2 Sk=150 Dv=16 q=f32 lse=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=24 D=32 Hk=1 Sk=150 Dv=16 lse=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=24 D=32 Hk=1 Sk=90 Dv=16 q=f16 lse=f32", kEdge, Dist::kZeros},
    {"B=1 Hq=1 Sq=24 D=32 Hk=1 Sk=70 Dv=16 lse=f32", kEdge, Dist::kSubnormal},
    {"B=1 Hq=1 Sq=24 D=32 Hk=1 Sk=70 Dv=16 q=f32 lse=f32", kEdge, Dist::kSubnormal},
    {"B=2 Hq=2 Sq=18 D=8 Hk=1 Sk=33 Dv=8 lse=f32", kEdge, Dist::kSpecial},
    {"B=2 Hq=2 Sq=18 D=8 Hk=1 Sk=70 Dv=8 q=f32 lse=f32 causal=true", kEdge, Dist::kSpecial},
    {"B=1 Hq=2 Sq=18 D=8 Hk=2 Sk=33 Dv=8 q=f16 mask=f16 Bm=1 Hm=2 Mq=18 Mk=33 lse=f32", kEdge,
     Dist::kSpecial},
    {"B=4 Hq=2 Sq=8 D=8 Hk=1 Sk=33 Dv=8 q=f32 key_lengths=i64 sinks=f16 lse=f32", kEdge,
     Dist::kSpecial},
    {"B=4 Hq=2 Sq=8 D=8 Hk=1 Sk=33 Dv=8 key_lengths=i32 sinks=f32 lse=f32", kEdge, Dist::kSpecial},
    {"B=1 Hq=2 Sq=65 D=136 Hk=2 Sk=33 Dv=200 q=f32 causal=true lse=f32", kEdge},
    {"B=1 Hq=2 Sq=65 D=72 Hk=1 Sk=97 Dv=128 q=f32 lse=f32", kEdge},
    {"B=1 Hq=2 Sq=65 D=136 Hk=2 Sk=33 Dv=200 q=f32 precision=tf32 lse=f32", kEdge},
    {"B=2 Hq=2 Sq=18 D=8 Hk=1 Sk=70 Dv=8 q=f32 precision=tf32 lse=f32", kEdge, Dist::kSpecial},
    {"B=1 Hq=2 Sq=24 D=32 Hk=2 Sk=150 Dv=16 q=f32 precision=tf32 lse=f32", kEdge, Dist::kOutliers},
    {"B=1 Hq=1 Sq=24 D=32 Hk=1 Sk=70 Dv=16 q=f32 precision=tf32 lse=f32", kEdge, Dist::kSubnormal},
    {"B=1 Hq=1 Sq=100 D=64 Hk=1 Sk=90 Dv=64 precision=tf32 deterministic=false lse=f32", kEdge},
    {"B=1 Hq=2 Sq=40 D=8 Hk=1 Sk=40 Dv=8 q_offsets=i32 k_offsets=i32 N=1 lse=f32", kEdge},
    {"B=1 Hq=2 Sq=40 D=8 Hk=1 Sk=40 Dv=8 q_offsets=i32 k_offsets=i64 N=4 lse=f32", kEdge,
     Dist::kZeros},
    {"B=1 Hq=2 Sq=130 D=128 Hk=1 Sk=200 Dv=128 mask=bf16 Bm=1 Hm=2 Mq=130 Mk=200 lse=f32", kEdge,
     Dist::kSpecial},
    {"B=1 Hq=2 Sq=70 D=16 Hk=1 Sk=99 Dv=16 q=f32 mask=bf16 Bm=1 Hm=2 Mq=70 Mk=99 lse=f32", kEdge,
     Dist::kOutliers},
    {"B=2 Hq=1 Sq=130 D=64 Hk=1 Sk=200 Dv=64 mask=bf16 Bm=2 Hm=1 Mq=130 Mk=200 lse=f32", kEdge,
     Dist::kOutliers},
    {"B=1 Hq=2 Sq=70 D=40 Hk=2 Sk=90 Dv=24 q=f16 mask=f32 Bm=1 Hm=1 Mq=70 Mk=90 softcap=5 "
     "sinks=f32 lse=f32",
     kEdge, Dist::kOutliers},
    {"B=1 Hq=1 Sq=130 D=192 Hk=1 Sk=200 Dv=256 q=f16 mask=f16 Bm=1 Hm=1 Mq=130 Mk=200 softcap=20 "
     "lse=f32",
     kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=70 D=64 Hk=2 Sk=150 Dv=32", kEdge},
    {"B=1 Hq=1 Sq=90 D=64 Hk=1 Sk=150 Dv=64 softcap=3 key_lengths=i32 lse=f32", kEdge,
     Dist::kSpecial},
    {"B=1 Hq=2 Sq=800 D=128 Hk=1 Sk=700 Dv=128 q_offsets=i32 k_offsets=i32 N=4 causal=true "
     "lse=f32",
     kEdge, Dist::kOutliers},
    {"B=1 Hq=1 Sq=520 D=64 Hk=1 Sk=500 Dv=64 q=f16 q_offsets=i32 k_offsets=i32 N=3 window_left=99 "
     "window_right=9 lse=f32",
     kEdge, Dist::kOutliers},
    {"B=1 Hq=2 Sq=260 D=192 Hk=1 Sk=64 Dv=256 q_offsets=i32 k_offsets=i32 N=2 lse=f32", kEdge,
     Dist::kSpecial},
    {"B=1 Hq=12 Sq=2048 D=64 Hk=12 Sk=2048 Dv=64 q=f32", kBar},
    {"B=1 Hq=12 Sq=2048 D=64 Hk=12 Sk=2048 Dv=64", kBar},
    {"B=1 Hq=16 Sq=4096 D=128 Hk=16 Sk=4096 Dv=128", kBar},
    {"B=1 Hq=16 Sq=4096 D=128 Hk=16 Sk=4096 Dv=128 causal=true", kBar},
    {"B=1 Hq=24 Sq=4608 D=128 Hk=24 Sk=4608 Dv=128", kBar},
    {"B=65 Hq=1 Sq=2 D=256 Hk=1 Sk=131072 Dv=256", kHuge},
};

inline constexpr OpSpec spec{
    .name = "attention",
    .doc = "Softmax attention of queries over keys and values, with every usual mask.",
    .source =
        "logit = softcap(scale * q.k) + mask over the keys that a query sees; out = sum of "
        "exp(logit - lse) * v, lse = log(sum of exp(logit)); f32, exponentials of 16-bit inputs "
        "may be rounded to their dtype",
    .args = args,
    .constraints = kAttentionConstraints,
    .cases = cases,
    .flops = "2 * B * Hq * Sq * Sk * (D + Dv) / if(causal, 2, 1)",
    .backward = {.op = "attention_backward",
                 .call = "d_out=grad(out), q=q, k=k, v=v, out=out, lse=lse, mask=mask, "
                         "sinks=sinks, key_lengths=key_lengths, q_offsets=q_offsets, "
                         "k_offsets=k_offsets, mask_gradient=wanted(mask)",
                 .gives = "q=d_q, k=d_k, v=d_v, mask=d_mask, sinks=d_sinks"},
};

}  // namespace pestle::ops::attention
