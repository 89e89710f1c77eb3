// E2M1 codes, eight to a 32-bit word with element i in nibble i: same codes as formats/e2m1.h.
#pragma once

#include <cstdint>

#include "backends/cuda/device/tensor/elements.cuh"
#include "formats/e2m1.h"

namespace pestle::cuda {

__device__ inline uint32_t swap_all_nibbles(uint32_t w) {
  return (w & 0x0F0F0F0Fu) << 4 | (w >> 4 & 0x0F0F0F0Fu);
}

// The E2M1 code of a magnitude as the low bits of 1.5 * 2^23 + code. E2M1's steps are 0.5 below 2,
// 1 below 4 and 2 above, so the code counts halves up to 2, ones from there to 4 and twos from
// there to
// 6. Each count saturates for free and is rounded by the sum, whose ties go to even as the code's
// do: 4 and 6, where the next count begins, are even. All of it is f32 arithmetic on purpose: it
// has twice the throughput of integer minima. NaN gives 0.
__device__ inline uint32_t e2m1_round(float v) {
  const float abs = fabsf(v);
  float code = __fmaf_rn(__saturatef(abs * 0.5f), 4.0f, 0x1.8p23f);
  code = __fmaf_rn(__saturatef(__fmaf_rn(abs, 0.5f, -1.0f)), 2.0f, code);
  code += __saturatef(__fmaf_rn(abs, 0.5f, -2.0f));
  return __float_as_uint(code);
}

// Signs of eight floats at bits 3, 7, ... 31.
__device__ inline uint32_t sign_nibbles(const float (&x)[kUnit]) {
  const auto bits = [&](int i) { return __float_as_uint(x[i]); };
  const uint32_t even = __byte_perm(__byte_perm(bits(0), bits(2), 0x0073),
                                    __byte_perm(bits(4), bits(6), 0x0073), 0x5410);
  const uint32_t odd = __byte_perm(__byte_perm(bits(1), bits(3), 0x0073),
                                   __byte_perm(bits(5), bits(7), 0x0073), 0x5410);
  return (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
}

// Codes of `quotients`, no NaN among them, whose signs are those of `x`.
__device__ inline uint32_t e2m1_codes(const float (&quotients)[kUnit], const float (&x)[kUnit]) {
  uint32_t word = 0u - 0x3F400000u;  // 0x4B400000 of each count, shifted and added up
  for (int i = 0; i < kUnit; ++i) word += e2m1_round(quotients[i]) << (4 * i);
  return word | sign_nibbles(x);
}

// What |x| is multiplied by for the three counts below: 2, 1 and 1/2 times 1 / scale.
struct E2m1Factors {
  float halves, ones, twos;

  __device__ static E2m1Factors of(float reciprocal) {
    return {reciprocal * 2.0f, reciprocal, reciprocal * 0.5f};
  }
};

// The E2M1 code of |x| * reciprocal < 7 as the low bits of 1.5 * 2^23 + code: the least of three
// counts, halves, ones from 2 and twos from 4 on, each the one rounding of an exact product. The
// rule's code therefore where the product is the quotient, or no tie is near.
__device__ inline uint32_t e2m1_count(float x, const E2m1Factors& by) {
  const float abs = fabsf(x);
  const uint32_t halves = __float_as_uint(__fmaf_rn(abs, by.halves, 0x1.8p23f));
  const uint32_t ones = __float_as_uint(__fmaf_rn(abs, by.ones, 0x1.8p23f + 2.0f));
  const uint32_t twos = __float_as_uint(__fmaf_rn(abs, by.twos, 0x1.8p23f + 4.0f));
  return min(min(halves, ones), twos);
}

// Codes of eight magnitudes |values| * by, with the signs of `x`.
__device__ inline uint32_t e2m1_words(const float (&values)[kUnit], const E2m1Factors& by,
                                      const float (&x)[kUnit]) {
  uint32_t word = 0u - 0x3F400000u;  // 0x4B400000 of each count, shifted and added up
#pragma unroll
  for (int i = 0; i < kUnit; ++i) word += e2m1_count(values[i], by) << (4 * i);
  return word | sign_nibbles(x);
}

// Values * 2^-14 of eight codes: a code's bits are those of an f16 with a smaller exponent.
inline constexpr float kE2m1Unit = 0x1p14f;
__device__ inline void e2m1_values(uint32_t word, float (&v)[kUnit]) {
  for (int i = 0; i < 4; ++i) {
    // Nibbles i and i + 4, to bits 0..3 and 16..19.
    const uint32_t two = word >> (4 * i);
    const float2 pair = F16::pair((two << 12 & 0x80008000u) | (two << 9 & 0x0E000E00u));
    v[i] = pair.x;
    v[i + 4] = pair.y;
  }
}

}  // namespace pestle::cuda
