// What quantize_fp8 and quantize_int8 do to a unit of 8 elements under one scale, on CUDA.
#pragma once

#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/numeric/largest.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "formats/fp8.h"
#include "formats/int8.h"
#include "formats/philox.h"
#include "formats/stochastic.h"

namespace pestle::ops {

template <class F>
struct Fp8Code {
  __device__ static float scale(uint32_t amax) { return formats::fp8_scale<F>(amax); }
  // Eight quotients, NaN and Inf included.
  __device__ static uint2 codes(const float (&v)[cuda::kUnit]) { return cuda::fp8_codes<F>(v); }
  // Finite ones; kBounded: of a computed scale, so none beyond the largest code.
  template <bool kBounded>
  __device__ static uint2 plain_codes(const float (&v)[cuda::kUnit]) {
    return cuda::fp8_codes_of_numbers<F, kBounded>(v);
  }
  // Of finite products.
  template <class T, bool kBounded>
  __device__ static uint2 products(const typename T::Raw& raw, float factor) {
    return cuda::fp8_codes_of_products<T, F, kBounded>(raw, factor);
  }
  // Of finite quotients.
  template <class T, bool kBounded>
  __device__ static uint2 quotients(const typename T::Raw& raw, const cuda::Divider& by) {
    return cuda::fp8_codes_of_quotients<T, F, kBounded>(raw, by);
  }
  __device__ static uint8_t code(float v) { return formats::code_from_f32<F>(v); }
  __device__ static uint8_t stochastic(float v, uint16_t u) {
    return formats::code_stochastic<F>(v, u);
  }
};

struct Int8Code {
  __device__ static float scale(uint32_t amax) { return formats::int8_scale(amax); }
  // A sum with 1.5 * 2^23 is rounded to an integer, whose low byte is the code.
  __device__ static uint32_t rounded(float v) { return __float_as_uint(v + 0x1.8p23f); }
  __device__ static float clamped(float v) { return fminf(fmaxf(v, -128.0f), 127.0f); }
  __device__ static uint2 low_bytes(const uint32_t (&r)[cuda::kUnit]) {
    return make_uint2(
        __byte_perm(__byte_perm(r[0], r[1], 0x0040), __byte_perm(r[2], r[3], 0x0040), 0x5410),
        __byte_perm(__byte_perm(r[4], r[5], 0x0040), __byte_perm(r[6], r[7], 0x0040), 0x5410));
  }
  // Eight quotients, NaN and Inf included; NaN is 0.
  __device__ static uint2 codes(const float (&v)[cuda::kUnit]) {
    uint32_t r[cuda::kUnit];
    for (int i = 0; i < cuda::kUnit; ++i) r[i] = v[i] != v[i] ? 0u : rounded(clamped(v[i]));
    return low_bytes(r);
  }
  // Finite ones; kBounded: of a computed scale, so none beyond the largest code.
  template <bool kBounded>
  __device__ static uint2 plain_codes(const float (&v)[cuda::kUnit]) {
    uint32_t r[cuda::kUnit];
    for (int i = 0; i < cuda::kUnit; ++i) r[i] = rounded(kBounded ? v[i] : clamped(v[i]));
    return low_bytes(r);
  }
  template <class T, bool kBounded>
  __device__ static uint2 quotients(const typename T::Raw& raw, const cuda::Divider& by) {
    float v[cuda::kUnit];
    T::to_f32(raw, v);
    for (int i = 0; i < cuda::kUnit; ++i) v[i] = by.shortly(v[i]);
    return plain_codes<kBounded>(v);
  }
  template <class T, bool kBounded>
  __device__ static uint2 products(const typename T::Raw& raw, float factor) {
    float v[cuda::kUnit];
    T::to_f32(raw, v);
    uint32_t r[cuda::kUnit];
    for (int i = 0; i < cuda::kUnit; ++i) {
      r[i] = kBounded ? __float_as_uint(__fmaf_rn(v[i], factor, 0x1.8p23f))
                      : rounded(clamped(v[i] * factor));
    }
    return low_bytes(r);
  }
  __device__ static uint8_t code(float v) {
    return static_cast<uint8_t>(formats::round_clamp(v, -128, 127));
  }
  __device__ static uint8_t stochastic(float v, uint16_t u) {
    return static_cast<uint8_t>(formats::int_stochastic(v, u, -128, 127));
  }
};

struct RandomRounding {
  bool stochastic;
  uint64_t seed;
};

// By IEEE division, at random if asked: what the short form does not serve.
template <class T, class Code>
__device__ __noinline__ uint2 encode_slowly(typename T::Raw raw, float scale,
                                            RandomRounding rounding, uint64_t element) {
  float v[cuda::kUnit];
  T::to_f32(raw, v);
  for (int i = 0; i < cuda::kUnit; ++i) v[i] = __fdiv_rn(v[i], scale);
  if (!rounding.stochastic) return Code::codes(v);
  const formats::PhiloxWords random = formats::philox_block(rounding.seed, element / cuda::kUnit);
  uint32_t w[2] = {0, 0};
  for (int i = 0; i < cuda::kUnit; ++i) {
    const uint32_t code = Code::stochastic(v[i], formats::philox_lane(random, i));
    w[i / 4] |= code << (8 * (i % 4));
  }
  return make_uint2(w[0], w[1]);
}

// `element`: row-major index of the unit's first, a multiple of 8. kBounded: the scale was computed
// from these elements among others. None has a magnitude above `amax`.
template <class T, class Code, bool kBounded>
__device__ inline uint2 encode_unit_below(uint32_t amax, const typename T::Raw& raw,
                                          const cuda::Divider& by, const RandomRounding& rounding,
                                          uint64_t element) {
  if (rounding.stochastic || !by.is_short(__uint_as_float(amax))) {
    return encode_slowly<T, Code>(raw, by.scale, rounding, element);
  }
  return Code::template quotients<T, kBounded>(raw, by);
}
template <class T, class Code, bool kBounded>
__device__ inline uint2 encode_unit(const typename T::Raw& raw, const cuda::Divider& by,
                                    const RandomRounding& rounding, uint64_t element) {
  return encode_unit_below<T, Code, kBounded>(cuda::largest_of_unit<T>(raw), raw, by, rounding,
                                              element);
}

}  // namespace pestle::ops
