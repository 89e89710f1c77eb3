// Pieces of contracts that the INT4 ops share, and their reading.
#pragma once

#include "core/op_spec.h"

namespace pestle::ops {

inline constexpr const char* kInt4Modes = "symmetric|asymmetric";
enum class Int4Mode : int64_t { kSymmetric, kAsymmetric };

// One value per group of columns; a last group may be short. group_size 0 is the whole row, of
// which an empty row has none.
inline constexpr const char* kInt4GroupShape =
    "N, cdiv(K, if(group_size == 0, max(K, 1), group_size))";
inline constexpr Constraint kInt4GroupRule = {
    "group_size >= 0 && group_size % 2 == 0",
    "group_size must be even, or 0 for the whole row: 32, 64 and 128 are usual"};
inline constexpr Constraint kHadamardRule = {
    "hadamard == 0 || (hadamard == 4 || hadamard == 16 || hadamard == 64 || hadamard == 256 ||"
    " hadamard == 1024) && K % if(hadamard == 0, 1, hadamard) == 0",
    "hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K"};

inline int64_t int4_group(int64_t group_size, int64_t k) {
  return group_size == 0 ? k : group_size;
}

}  // namespace pestle::ops
