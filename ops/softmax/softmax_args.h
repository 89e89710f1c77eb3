// Pieces of contracts that softmax and its relatives share.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops {

inline constexpr const char* kFloats = "bf16|f16|f32";

constexpr Arg softmax_mask() {
  return input(
             "mask", "f32|bf16|f16", "*B",
             "added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, "
             "is x's or 1")
      .optional();
}
constexpr Arg softmax_dim(const char* doc) { return int_attr("dim", -1, doc); }
constexpr Arg softmax_scale(const char* doc) { return float_attr("scale", 1, doc); }

inline constexpr Constraint kDimOfX = {
    "rank(x) > 0 && dim >= -rank(x) && dim < rank(x)",
    "dim must be one of x's dimensions, which are counted from 0 or, from the last, from -1"};
inline constexpr Constraint kDimOfOut = {
    "rank(out) > 0 && dim >= -rank(out) && dim < rank(out)",
    "dim must be one of out's dimensions, which are counted from 0 or, from the last, from -1"};
inline constexpr Constraint kMaskBroadcasts = {
    "!has(mask) || broadcasts(mask, x)",
    "each dimension of mask, counted from the last, must be x's or 1"};

}  // namespace pestle::ops
