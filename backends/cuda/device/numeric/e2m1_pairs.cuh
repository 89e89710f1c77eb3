// E2M1 codes as pairs of f16, for products of a few codes: exact, and no table is read.
#pragma once

#include <cstdint>

namespace pestle::cuda {

// Codes i and i + 4 of a word: their values times 2^-14. A code's exponent and fraction are moved to
// the place of f16's, so subnormals are right too.
template <int kCode>
__device__ __forceinline__ uint32_t e2m1_pair_bits(uint32_t word) {
  constexpr int kSize = 9 - 4 * kCode;   // from bits 4i to 4i + 2, to 9
  constexpr int kSign = 12 - 4 * kCode;  // from bit 4i + 3, to 15
  const uint32_t size = kSize >= 0 ? word << (kSize & 31) : word >> (-kSize & 31);
  return (size & 0x0E000E00u) | ((word << kSign) & 0x80008000u);
}
inline constexpr float kE2m1PairUnit = 16384;  // what those values are multiplied by

}  // namespace pestle::cuda
