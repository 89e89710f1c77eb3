// E2M1 codes, eight to a 32-bit word with element i in nibble i: same codes as formats/e2m1.h.
#pragma once

#include <cstdint>

#include "backends/cuda/device/elements.cuh"
#include "formats/e2m1.h"

namespace pestle::cuda {

__device__ inline uint32_t swap_all_nibbles(uint32_t w) {
  return (w & 0x0F0F0F0Fu) << 4 | (w >> 4 & 0x0F0F0F0Fu);
}

// min(a + b, c) of integers: one instruction from sm_90 on.
__device__ inline int32_t add_min(int32_t a, int32_t b, int32_t c) {
  return __viaddmin_s32(a, b, c);
}

// Code magnitude of |v|, below 7 and not NaN, in the low four bits over 0x4AC00000.
// E2M1's steps are 0.5 below 2, 1 below 4 and 2 above; adding 1.5 * 2^22, 2^23 or 2^24 rounds to
// each of them (ties to even in the sum are ties to even in the code), and the least of the three
// counts is the code.
__device__ inline int32_t e2m1_round(float v) {
  const float abs = fabsf(v);
  const int32_t halves = __float_as_int(abs + 0x1.8p22f);
  const int32_t ones = __float_as_int(abs + 0x1.8p23f);
  const int32_t twos = __float_as_int(abs + 0x1.8p24f);
  constexpr int32_t kHalves = 0x4AC00000, kOnes = 0x4B400000, kTwos = 0x4BC00000;
  const int32_t low = add_min(ones, kHalves - kOnes + 2, halves);
  return add_min(twos, kHalves - kTwos + 4, low);
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

// Codes of `quotients`, magnitudes below 7 and no NaN among them, whose signs are those of `x`.
__device__ inline uint32_t e2m1_codes(const float (&quotients)[kUnit], const float (&x)[kUnit]) {
  uint32_t word = 0u - 0xB6C00000u;  // what the upper bits of the eight counts add up to
  for (int i = 0; i < kUnit; ++i) {
    word += static_cast<uint32_t>(e2m1_round(quotients[i])) << (4 * i);
  }
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
