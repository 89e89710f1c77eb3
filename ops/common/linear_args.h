// What the contracts of linear_* have in common.
#pragma once

#include "core/op_spec.h"
#include "ops/common/epilogue.h"

namespace pestle::ops {

inline constexpr Arg kLinearX = input("x", "bf16|f16|f32", "*M, K", "activations");
inline constexpr Arg kLinearOut =
    output("out", "bf16|f16|f32", "*M, N", "epilogue(x @ W^T), W the decoded weight")
        .within(4, "K");
inline constexpr const char* kLinearHadamardDoc =
    "the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither";

// The codes are constants of inference; the gradient of x is dY @ W, which decodes the weight along
// its other dimension.
inline constexpr Backward kLinearBackward{
    .why_not =
        "the gradient of x, a product with the decoded weight's columns, has no op yet; "
        "codes have no gradient"};

}  // namespace pestle::ops
