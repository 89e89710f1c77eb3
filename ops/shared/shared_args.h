// Pieces of contracts that several ops share, so that they are written once.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops {

// Throughout, "*M, K" is a tensor of any rank seen as M rows of K elements: M stands for the
// leading dimensions in shapes and for their product in expressions.

// Which elements of M rows of K share an FP8 scale, and the shape of the scales.
inline constexpr const char* kFp8Granularities = "tensor|row|column|block_1x128|block_128x128";
inline constexpr const char* kFp8ScaleShape =
    "tensor: 1; row: *M, 1; column: 1, K; block_1x128: *M, cdiv(K,128);"
    "block_128x128: cdiv(M,128), cdiv(K,128)";

inline constexpr const char* kInt8Granularities = "tensor|row|group";
inline constexpr const char* kInt8ScaleShape =
    "tensor: 1; row: *M, 1; group: *M, cdiv(K,group_size)";
// The second output of a quantiser of [*M, K] to bytes: what a product along M reads.
constexpr Arg transposed_codes() {
  return output("q_t", "=q", "K, M", "the codes transposed").only_if("transposed");
}
constexpr Arg transposed_attr() {
  return bool_attr("transposed", false, "give q_t beside q, made in the same pass over x");
}

inline constexpr const char* kHadamardDoc =
    "elements along K that are rotated together: 4, 16, 64, 256 or 1024; 0: no rotation";

}  // namespace pestle::ops
