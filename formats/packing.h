// Where the 4-bit code of weight (n, k) of an [N,K] matrix lies in each packing, and converters
// between all of them. docs/formats/packing.md has the bit table.
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace pestle::formats {

enum class Int4Packing : int32_t {
  kPlain = 0,          // u8 [N,K/2], even column in the low nibble, two's complement (ConvRot W4A4)
  kPlainUnsigned = 1,  // the same places, codes 0..15 (ComfyUI awq_w4a16, our asymmetric INT4)
  kKaio = 2,           // u32 [N,K/8], column k at bits 4*(k%8), two's complement
  kGptq = 3,           // i32 [K/8,N], row k at bits 4*(k%8), codes 0..15
  kAwq = 4,            // i32 [K,N/8], columns of a word in the order 0 2 4 6 1 3 5 7, codes 0..15
};
inline constexpr int kInt4Packings = 5;

PESTLE_HD inline bool packing_is_signed(Int4Packing p) {
  return p == Int4Packing::kPlain || p == Int4Packing::kKaio;
}

// K or N must divide by this; the other dimension is free.
PESTLE_HD inline int64_t packing_k_multiple(Int4Packing p) {
  if (p == Int4Packing::kAwq) return 1;
  return p == Int4Packing::kGptq || p == Int4Packing::kKaio ? 8 : 2;
}
PESTLE_HD inline int64_t packing_n_multiple(Int4Packing p) {
  return p == Int4Packing::kAwq ? 8 : 1;
}

// Place of column c among the eight of an AWQ word: nibble 0 holds column 0, 1: 2, ... 4: 1, ...
PESTLE_HD inline int64_t awq_nibble(int64_t c) { return (c % 2) * 4 + c / 2; }

// Index of the nibble of (n, k), counted from the low nibble of byte 0; words are little endian.
PESTLE_HD inline int64_t packing_nibble(Int4Packing p, int64_t n, int64_t k, int64_t rows_n,
                                        int64_t cols_k) {
  switch (p) {
    case Int4Packing::kGptq: return ((k / 8) * rows_n + n) * 8 + k % 8;
    case Int4Packing::kAwq: return (k * (rows_n / 8) + n / 8) * 8 + awq_nibble(n % 8);
    case Int4Packing::kPlain:
    case Int4Packing::kPlainUnsigned:
    case Int4Packing::kKaio: break;
  }
  return n * cols_k + k;
}

PESTLE_HD inline uint8_t load_nibble(const uint8_t* data, int64_t index) {
  return static_cast<uint8_t>(data[index >> 1] >> (4 * (index & 1))) & 0xFu;
}

PESTLE_HD inline void store_nibble(uint8_t* data, int64_t index, uint8_t code) {
  const int shift = static_cast<int>(4 * (index & 1));
  const uint32_t kept = data[index >> 1] & ~(0xFu << shift);
  data[index >> 1] = static_cast<uint8_t>(kept | ((code & 0xFu) << shift));
}

// Rewrites the codes of `src` in another packing. Between signed and unsigned codes the stored
// value moves by 8, which in four bits is the exclusive or with 8. `dst` must not overlap `src`.
PESTLE_HD inline void repack_int4(Int4Packing from, const uint8_t* src, Int4Packing to,
                                  uint8_t* dst, int64_t rows_n, int64_t cols_k) {
  const uint8_t flip = packing_is_signed(from) != packing_is_signed(to) ? 8 : 0;
  for (int64_t n = 0; n < rows_n; ++n) {
    for (int64_t k = 0; k < cols_k; ++k) {
      const uint8_t code = load_nibble(src, packing_nibble(from, n, k, rows_n, cols_k));
      store_nibble(dst, packing_nibble(to, n, k, rows_n, cols_k), code ^ flip);
    }
  }
}

// Zero points i32 [G,N/8]. GPTQ stores zero - 1 in four bits (0 wraps to 15); AWQ stores the zero
// itself in its column order.
PESTLE_HD inline int64_t gptq_zero_nibble(int64_t group, int64_t n, int64_t rows_n) {
  return (group * (rows_n / 8) + n / 8) * 8 + n % 8;
}
PESTLE_HD inline int64_t awq_zero_nibble(int64_t group, int64_t n, int64_t rows_n) {
  return (group * (rows_n / 8) + n / 8) * 8 + awq_nibble(n % 8);
}
PESTLE_HD inline void gptq_store_zero(uint8_t* qzeros, int64_t group, int64_t n, int64_t rows_n,
                                      uint8_t zero) {
  store_nibble(qzeros, gptq_zero_nibble(group, n, rows_n), static_cast<uint8_t>(zero - 1));
}
PESTLE_HD inline uint8_t gptq_load_zero(const uint8_t* qzeros, int64_t group, int64_t n,
                                        int64_t rows_n) {
  return (load_nibble(qzeros, gptq_zero_nibble(group, n, rows_n)) + 1u) & 0xFu;
}
PESTLE_HD inline void awq_store_zero(uint8_t* qzeros, int64_t group, int64_t n, int64_t rows_n,
                                     uint8_t zero) {
  store_nibble(qzeros, awq_zero_nibble(group, n, rows_n), zero);
}
PESTLE_HD inline uint8_t awq_load_zero(const uint8_t* qzeros, int64_t group, int64_t n,
                                       int64_t rows_n) {
  return load_nibble(qzeros, awq_zero_nibble(group, n, rows_n));
}

}  // namespace pestle::formats
