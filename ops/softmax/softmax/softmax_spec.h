// softmax: the contract.
#pragma once

#include "ops/softmax/softmax_args.h"

namespace pestle::ops::softmax {

inline constexpr Arg args[] = {
    input("x", kFloats, "*S", "logits of any shape"),
    softmax_mask(),
    output("out", "=x", "*S", "probabilities along dim; NaN where all of a row is -inf")
        .in_place_of("x")
        .within(4, "size(x, dim)"),
    softmax_dim("the dimension whose elements add up to 1"),
    softmax_scale("what x is multiplied by first, e.g. 1 / temperature"),
};

inline constexpr Constraint constraints[] = {kDimOfX, kMaskBroadcasts};

inline constexpr Case cases[] = {
    {"S=3x64"},
    {"S=2x3x1000 x=f32 mask=f32 B=2x1x1000 scale=0.125"},
    {"S=5x4104 x=f16 scale=-3"},
    {"S=2x24x40 x=bf16 mask=bf16 B=40 dim=-1"},
    {"S=3x17x8 x=f32 dim=1"},
    {"S=2x8x24 x=bf16 dim=0", kEdge},
    {"S=2x33000 x=f32", kEdge},
    {"S=2x530000 x=f32", kEdge},
    {"S=3x20000 x=bf16", kEdge, Dist::kSpecial},
    {"S=2x20008 x=f32", kEdge, Dist::kOutliers},
    {"S=2x20000 x=f16 mask=bf16 B=20000 scale=0.5", kEdge, Dist::kSpecial},
    {"S=70x96 x=bf16 mask=f16 B=70x1", kEdge, Dist::kSpecial},
    {"S=70x40 x=f32", kEdge, Dist::kSpecial},
    {"S=9x2048 x=f16", kEdge, Dist::kOutliers},
    {"S=5x3000 x=f16", kEdge, Dist::kSpecial},
    {"S=3x72 x=f32", kEdge, Dist::kSubnormal},
    {"S=4x40 x=bf16", kEdge, Dist::kZeros},
    {"S=1 x=f32", kEdge},
    {"S=4x1 x=bf16", kEdge},
    {"S=70x96 x=f32", kEdge, Dist::kOffset},
    {"S=5x3000 x=f32", kEdge, Dist::kOffset},
    {"S=3x1001 x=bf16", kEdge, Dist::kOffset},
    {"S=2x33000 x=f32", kEdge, Dist::kOffset},
    {"S=0x8 x=bf16", kEdge},
    {"S=3x0 x=f32", kEdge},
    {"S=131072x1024", kBar},
    {"S=32768x4096", kBar},
    {"S=8192x16384", kBar},
    {"S=2048x65536", kBar},
    {"S=512x262144", kBar},
    {"S=65536x1024 x=f32", kBar},
    {"S=16384x4096 x=f32", kBar},
    {"S=4096x16384 x=f32", kBar},
    {"S=1024x65536 x=f32", kBar},
    {"S=256x262144 x=f32", kBar},
    {"S=64x1048576 x=f32", kBar},
    {"S=4608x3072", kBar},
    {"S=32760x5120", kBar},
};

inline constexpr OpSpec spec{
    .name = "softmax",
    .doc = "Softmax along one dimension, with scale and additive mask (softmax_online).",
    .source =
        "out = exp(t - max t) / sum of exp(t - max t), t = scale * x + mask; f32, one "
        "rounding to x's dtype",
    .args = args,
    .constraints = constraints,
    .cases = cases,
    .flops = "6 * numel(x)",
    .backward = {.op = "softmax_backward", .call = "d_out=grad(out), out=out", .gives = "x=d_x"},
};

}  // namespace pestle::ops::softmax
