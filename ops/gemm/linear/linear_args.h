// What the contracts of linear_* have in common.
#pragma once

#include "core/op_spec.h"
#include "ops/gemm/epilogue/epilogue.h"

namespace pestle::ops {

inline constexpr Arg kLinearX = input("x", "bf16|f16|f32", "*M, K", "activations");
inline constexpr Arg kLinearOut = output("out", "=x|bf16|f16|f32", "*M, " PESTLE_OUT_COLUMNS,
                                         "epilogue(x @ W^T), W the decoded weight")
                                      .within(4, "K");
inline constexpr const char* kLinearHadamardDoc =
    "the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither";

// The gradient of x is d_out @ W, W decoded by the format's own op (rotated back, if it was
// rotated) in the gradient's dtype: codes share scales along their rows, so a product along their
// columns is one of floats. It takes memory for W and one pass over it.
inline constexpr const char* kNoGradientOfActivation =
    "unless activation == none && input_act == none && gated == none && !has(gate) && !has(beta): "
    "activations, norms, pairs, gate and beta have their gradients where they are ops of their own";
inline constexpr const char* kNoGradientOfCodes =
    "unless activation == none && activations == float && input_act == none && out_format == none "
    "&& gated == none && !has(gate) && !has(beta): activations, norms, pairs, gate and beta have "
    "their gradients where they are ops of their own, and rounding to codes has none";

// `call` is that of matmul, with W by its name b.
constexpr Backward linear_backward(const char* call, const char* why_not) {
  return {.op = "matmul",
          .call = call,
          .gives =
              "x=out, bias=reduce(x=rows(grad(out)), dims=1, out_type=f32), "
              "residual=grad(out)",
          .why_not = why_not};
}

}  // namespace pestle::ops
