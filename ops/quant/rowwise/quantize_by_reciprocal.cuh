// Codes by one product with the reciprocal of the scale, where that decides as the quotient does,
// which the rules speak of. It does unless a value lies next to a tie of the codes, and which
// 16-bit values can is known beforehand:
//   given scale     a product of scale and tie within 4 ulps of a 16-bit number is looked for, once
//                   a row (a warp shares the ties out), or once a tensor for nvfp4
//   computed scale  |x| / scale = M u / v for the largest code M, where u / v = |x| / amax has
//                   short terms: a tie is met exactly, or missed by more than 2^-19 of itself.
//                   int8: 127 u / v is an odd half for u / v = 1/2 only, unless 127 divides amax's
//                   significand. E4M3: 448 u / v is a tie 21 * 2^e or 7 * 2^-10 only, unless 7
//                   divides it. The quotients at those ties are found once a row, and the
//                   reciprocal is chosen, or moved by less than that distance, so that its products
//                   fall to the same sides. Every pair of 8- and 11-bit significands was tried.
// Everything else, one fp8 row in eight among it, takes the quotient: two operations more an
// element.
#pragma once

#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "ops/quant/rowwise/quantize_unit.cuh"

namespace pestle::ops {

#ifdef __CUDACC__

// Is no number of T within 4 ulps of v, a normal f32?
template <class T>
__device__ inline bool is_far_from(float v) {
  constexpr uint32_t kLost = std::is_same_v<T, cuda::Bf16> ? 0xFFF8u : 0x1FF8u;  // but for 8 ulps
  return ((__float_as_uint(v) + 4) & kLost) != 0;
}

// How a row's bytes are made.
struct ByteRule {
  cuda::Divider by;
  float factor;        // what values are multiplied by
  bool by_reciprocal;  // that alone decides
};

// Numbers whose significand `divisor` divides; a 16-bit number's as an f32 is it times 2^n.
__device__ inline bool is_multiple(uint32_t bits, uint32_t divisor) {
  return ((bits & 0x7FFFFFu) | 0x800000u) % divisor == 0;
}

// Where E4M3's ties lie in a row whose largest magnitude is 448 scales: 7 of the smallest halves,
// which itself goes up, and 21 * 2^e, which goes down; if 7 divides the largest's significand every
// tie can be met, and exactly, since the scale is exact.
struct Fp8Ties {
  float largest, most, highest;
  bool up7, up21, sevenths;

  __device__ Fp8Ties(const cuda::Divider& by, float amax, bool divides)
      : largest(amax),
        most(amax * 0.75f),
        highest(cuda::short_quotient(amax, 7.0f, 1.0f / 7.0f) * 3.875f),
        up7(by.shortly(largest) >= 448.0f),
        up21(by.shortly(most) > 336.0f),
        sevenths(divides) {}
  // Do products with it fall to the same sides? 31, the tie of the largest significand, shows the
  // error of all others.
  __device__ bool allow(float factor) const {
    return (largest * factor >= 448.0f) == up7 && (most * factor > 336.0f) == up21 &&
           (!sevenths || highest * factor == 248.0f);
  }
};

template <class T, class Code>
__device__ inline ByteRule computed_rule(float scale, uint32_t amax) {
  ByteRule rule{cuda::Divider::by(scale), 0, false};
  const float largest = __uint_as_float(amax);
  if constexpr (T::kBytes == 2) {
    const float r = rule.by.reciprocal;
    rule.factor = r;
    if (!rule.by.is_short(largest)) return rule;
    if constexpr (std::is_same_v<Code, Int8Code>) {
      // 63.5 itself goes to 64.
      const bool up = rule.by.shortly(largest) >= 127.0f;
      rule.factor = r * (up ? 1.0f + 0x1p-21f : 1.0f - 0x1p-21f);
      rule.by_reciprocal = !is_multiple(amax, 127);
    } else if constexpr (std::is_same_v<Code, Fp8Code<formats::E4m3>>) {
      const Fp8Ties ties(rule.by, largest, is_multiple(amax, 7));
      rule.by_reciprocal = true;
      if (!ties.allow(rule.factor)) {
        // One ulp more or less may do, or a move to the one side that all ties fall to.
        rule.factor = __uint_as_float(__float_as_uint(r) + 1);
        if (!ties.allow(rule.factor)) rule.factor = __uint_as_float(__float_as_uint(r) - 1);
        if (!ties.allow(rule.factor)) {
          rule.factor = r * (ties.up7 ? 1.0f + 0x1p-18f : 1.0f - 0x1p-18f);
          rule.by_reciprocal = !ties.sevenths && ties.up7 == ties.up21;
        }
      }
    }
  }
  return rule;
}

// Of a given scale. By whole warps, whose scale is the same.
template <class T, class Code>
__device__ inline ByteRule given_rule(float scale) {
  ByteRule rule{cuda::Divider::by(scale), 0, false};
  rule.factor = rule.by.reciprocal;
  if constexpr (T::kBytes == 2) {
    // Ties are odd multiples of a power of two: E4M3 up to 31, integers up to 255.
    constexpr int kTies = std::is_same_v<Code, Int8Code> ? 128 : 16;
    bool is_far = true;
    for (int i = 0; i < kTies; i += 32) {
      const auto tie = static_cast<float>((threadIdx.x % 32 + i) % kTies * 2 + 1);
      is_far = is_far && is_far_from<T>(scale * tie);
    }
    const bool exact = (__float_as_uint(scale) & 0x7FFFFFu) == 0;
    rule.by_reciprocal = __all_sync(~0u, is_far || exact);
  }
  return rule;
}

// A unit's bytes; no value is beyond what the rule's divider is short for.
template <class T, class Code, bool kBounded>
__device__ inline uint2 bytes_by_reciprocal(const typename T::Raw& raw, const ByteRule& rule) {
  return Code::template products<T, kBounded>(raw, rule.factor);
}
// ---- E2M1 ----

// Two values to f16, towards zero.
__device__ inline uint32_t truncated_pair(float low, float high) {
  uint32_t r;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Two f16; a magnitude whose code would be odd becomes one ulp larger (none is near the largest f16,
// so nothing reaches the sign).
template <bool kPromotes>
__device__ inline uint32_t promoted(uint32_t pair, uint32_t promotion) {
  return kPromotes ? pair + (pair >> 9 & promotion) : pair;
}

// Codes of eight x whose |x| / factor < 6.75 with no tie near, `by` is 2^-14 / factor. The bits of
// an f16 whose smallest normal number stands for 1 count halves of E2M1's codes from bit 8 on:
// below 1 (a subnormal one) as from 1 to 2, from 2 to 4 and from 4 to 8, each is two codes. Half a
// code is added and the rest cut off. Eight upper bytes, s000ccch, are all that is looked at.
// `promotion`: kPromotion for blocks whose ties are decided by it (ops/quant/block/e2m1_ties.h).
template <bool kPromotes = false>
__device__ inline uint32_t e2m1_word(const float (&x)[cuda::kUnit], float by, bool high_first,
                                     uint32_t promotion = 0) {
  const auto bytes = [&](int first) {
    const uint32_t low = truncated_pair(x[first] * by, x[first + 2] * by);
    const uint32_t high = truncated_pair(x[first + 4] * by, x[first + 6] * by);
    return __byte_perm(promoted<kPromotes>(low, promotion), promoted<kPromotes>(high, promotion),
                       0x7531);
  };
  const uint32_t even = bytes(0), odd = bytes(1);
  const uint32_t a = high_first ? odd : even;  // of low nibbles
  const uint32_t b = high_first ? even : odd;
  const uint32_t low = ((a + 0x01010101u) >> 1 & 0x07070707u) | (a >> 4 & ~0x07070707u);
  const uint32_t high = ((b * 8 + 0x08080808u) & 0x70707070u) | (b & ~0x70707070u);
  return (low & 0x0F0F0F0Fu) | (high & 0xF0F0F0F0u);
}

#endif

}  // namespace pestle::ops
