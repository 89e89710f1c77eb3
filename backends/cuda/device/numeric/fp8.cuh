// E4M3 and E5M2, four codes to a 32-bit word: same codes and values as formats/minifloat.h.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "formats/codes_by_sum.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"

namespace pestle::cuda {

// The conversion instruction rounds to nearest even, saturates, and has one NaN, 0x7F, for both
// formats; for E5M2 the rule's NaN is 0x7F too (docs/formats/fp8.md).
template <class F>
__device__ inline uint32_t fp8_pair(float a, float b) {
#if __CUDA_ARCH__ >= 890
  constexpr auto kKind = F::kMan == 3 ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kKind);
#else
  return formats::code_from_f32<F>(a) | static_cast<uint32_t>(formats::code_from_f32<F>(b)) << 8;
#endif
}

// ---- without the instruction: before sm_89 ----

// Rounded magnitudes of two numbers as f16, which holds all of a format's: E5M2's codes are then
// the upper bytes. E4M3 has the same fraction one place further down and an exponent that is 8 too
// large, so times 2^-8 its codes begin at bit 7. NaN stays one.
template <class F, bool kBounded>
__device__ inline uint32_t fp8_halves(float a, float b) {
  using formats::rounded_magnitude;
  __half2 two = __floats2half2_rn(rounded_magnitude<F>(a), rounded_magnitude<F>(b));
  if constexpr (F::kMan == 3) two = __hmul2(two, __half2half2(__ushort_as_half(0x1C00)));
  if constexpr (!kBounded) {
    constexpr unsigned short kMost = F::kMan == 3 ? 0x3F00 : 0x7B00;
    two = __hmin2_nan(two, __half2half2(__ushort_as_half(kMost)));
  }
  return *reinterpret_cast<const uint32_t*>(&two);
}
// Codes of magnitudes 0 and 2 in `even`, 1 and 3 in `odd`, with the signs of the numbers.
template <class F>
__device__ inline uint32_t fp8_word_of(uint32_t even, uint32_t odd, const float (&v)[4]) {
  const uint32_t codes = F::kMan == 3 ? (even >> 7) + (odd << 1) : __byte_perm(even, odd, 0x7351);
  const uint32_t signs =
      __byte_perm(__byte_perm(__float_as_uint(v[0]), __float_as_uint(v[1]), 0x0073),
                  __byte_perm(__float_as_uint(v[2]), __float_as_uint(v[3]), 0x0073), 0x5410);
  return codes | (signs & 0x80808080u);
}
// Out of line: a NaN takes 60 instructions.
template <class F>
__device__ __noinline__ uint32_t fp8_word_any(float a, float b, float c, float d) {
  return fp8_pair<F>(a, b) | fp8_pair<F>(c, d) << 16;
}

// The same of two magnitudes that are times 2^-8 already: two instructions an element less. They
// are not rounded_magnitude's operations, but the same numbers.
template <bool kBounded>
__device__ inline uint32_t e4m3_halves(float a, float b) {
  const auto rounded = [](float v) {
    const float least = fmaxf(v, 0x1.8p-14f);
    return __fmaf_rn(least, 0x1p20f, -__fmaf_rn(least, 0x1p20f, -v));
  };
  __half2 two = __floats2half2_rn(rounded(a), rounded(b));
  if constexpr (!kBounded) two = __hmin2(two, __half2half2(__ushort_as_half(0x3F00)));
  return *reinterpret_cast<const uint32_t*>(&two);
}
// Codes of what f makes of a unit's 16-bit elements: magnitudes times 2^-8. The signs are those of
// `of`.
template <class T, bool kBounded, class F>
__device__ inline uint2 e4m3_codes(const typename T::Raw& raw, const typename T::Raw& of, F f) {
  float v[kUnit];
  T::to_f32(raw, v);
  const auto word = [&](const float* v, uint32_t low, uint32_t high) {
    const uint32_t even = e4m3_halves<kBounded>(f(v[0]), f(v[2]));
    const uint32_t odd = e4m3_halves<kBounded>(f(v[1]), f(v[3]));
    const uint32_t signs = __byte_perm(low, high, 0x7531);
    return ((even >> 7) + (odd << 1)) | (signs & 0x80808080u);
  };
  return make_uint2(word(v, of.v.x, of.v.y), word(v + 4, of.v.z, of.v.w));
}

// ---- words ----

// Of four numbers below 2^100; kBounded: their codes are none beyond the largest, rounded.
template <class F, bool kBounded>
__device__ inline uint32_t fp8_word_of_numbers(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  return fp8_pair<F>(a, b) | fp8_pair<F>(c, d) << 16;
#else
  return fp8_word_of<F>(fp8_halves<F, kBounded>(a, c), fp8_halves<F, kBounded>(b, d), {a, b, c, d});
#endif
}
// Of any four.
template <class F>
__device__ inline uint32_t fp8_word(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  return fp8_pair<F>(a, b) | fp8_pair<F>(c, d) << 16;
#else
  const uint32_t even = fp8_halves<F, false>(a, c), odd = fp8_halves<F, false>(b, d);
  // NaN has a bit that no number has (E4M3), or has once the exponent is one larger.
  const uint32_t odd_ones = F::kMan == 3
                                ? (even | odd) & 0x40004000u
                                : ((even + 0x04000400u) | (odd + 0x04000400u)) & 0x80008000u;
  if (odd_ones != 0) return fp8_word_any<F>(a, b, c, d);
  return fp8_word_of<F>(even, odd, {a, b, c, d});
#endif
}
// Of two numbers from 0 to 2^100, or NaN, as scales are.
__device__ inline uint32_t e4m3_of_magnitudes(float a, float b) {
#if __CUDA_ARCH__ >= 890
  return fp8_pair<formats::E4m3>(a, b);
#else
  const uint32_t two = fp8_halves<formats::E4m3, false>(a, b);
  return (two >> 7 & 0x7Fu) | (two >> 15 & 0x7F00u);
#endif
}
__device__ inline uint8_t e4m3_of_magnitude(float v) {
  return static_cast<uint8_t>(e4m3_of_magnitudes(v, 0.0f));
}

template <class F>
__device__ inline uint2 fp8_codes(const float (&v)[kUnit]) {
  return make_uint2(fp8_word<F>(v[0], v[1], v[2], v[3]), fp8_word<F>(v[4], v[5], v[6], v[7]));
}
template <class F, bool kBounded>
__device__ inline uint2 fp8_codes_of_numbers(const float (&v)[kUnit]) {
  return make_uint2(fp8_word_of_numbers<F, kBounded>(v[0], v[1], v[2], v[3]),
                    fp8_word_of_numbers<F, kBounded>(v[4], v[5], v[6], v[7]));
}
// Of a unit's elements times a positive factor, all of them finite.
template <class T, class F, bool kBounded>
__device__ inline uint2 fp8_codes_of_products(const typename T::Raw& raw, float factor) {
#if __CUDA_ARCH__ < 890
  if constexpr (T::kBytes == 2 && F::kMan == 3) {
    const float by = factor * 0x1p-8f;
    return e4m3_codes<T, kBounded>(raw, raw, [by](float v) { return fabsf(v) * by; });
  }
#endif
  float v[kUnit];
  T::to_f32(raw, v);
  for (int i = 0; i < kUnit; ++i) v[i] *= factor;
  return fp8_codes_of_numbers<F, kBounded>(v);
}
// Of a unit's elements by a divider that is short for them.
template <class T, class F, bool kBounded>
__device__ inline uint2 fp8_codes_of_quotients(const typename T::Raw& raw, const Divider& by) {
#if __CUDA_ARCH__ < 890
  if constexpr (T::kBytes == 2 && F::kMan == 3) {
    const Divider less{by.scale * 0x1p8f, by.reciprocal * 0x1p-8f};
    constexpr uint32_t kBoth = 0x7FFF7FFFu;  // a fused step has no modifier for magnitudes
    const typename T::Raw abs{
        make_uint4(raw.v.x & kBoth, raw.v.y & kBoth, raw.v.z & kBoth, raw.v.w & kBoth)};
    return e4m3_codes<T, kBounded>(abs, raw, [&](float v) { return less.shortly(v); });
  }
#endif
  float v[kUnit];
  T::to_f32(raw, v);
  for (int i = 0; i < kUnit; ++i) v[i] = by.shortly(v[i]);
  return fp8_codes_of_numbers<F, kBounded>(v);
}

// A code stands for this times an f16 that its bits make up: E5M2 is the upper half of one, E4M3
// has the same fraction one place further down and an exponent that is 8 too small.
template <class F>
inline constexpr float kFp8Unit = F::kMan == 3 ? 256.0f : 1.0f;

// Values / kFp8Unit. E4M3's NaN codes read as 480 / 256; has_e4m3_nan tells.
template <class F>
__device__ inline void fp8_values(uint2 codes, float (&v)[kUnit]) {
  const uint32_t w[2] = {codes.x, codes.y};
  for (int i = 0; i < 4; ++i) {
    uint32_t two = __byte_perm(w[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
    if constexpr (F::kMan == 3) two = (two & 0x80008000u) | (two >> 1 & 0x3F803F80u);
    const float2 pair = F16::pair(two);
    v[2 * i] = pair.x;
    v[2 * i + 1] = pair.y;
  }
}
__device__ inline bool has_e4m3_nan(uint2 codes) {
  const uint32_t a = (codes.x & 0x7F7F7F7Fu) + 0x01010101u;
  const uint32_t b = (codes.y & 0x7F7F7F7Fu) + 0x01010101u;
  return ((a | b) & 0x80808080u) != 0;
}

// formats::f32_from_e4m3 without branches.
__device__ inline float e4m3_value(uint8_t code) {
  const uint32_t bits = (code & 0x80u) << 8 | (code & 0x7Fu) << 7;
  const float v = F16::pair(bits).x * kFp8Unit<formats::E4m3>;
  return (code & 0x7Fu) == 0x7Fu ? formats::f32_nan() : v;
}

}  // namespace pestle::cuda
