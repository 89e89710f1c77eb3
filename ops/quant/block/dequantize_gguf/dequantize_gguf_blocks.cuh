// GGUF blocks on CUDA, a few neighbouring units of 8 elements a thread, in 32-bit words.
//
// Each type: kLanes threads share a block; each loads a Raw of it and decodes kUnits units of 8
// elements, the first at element(lane, unit). values() also returns the largest magnitude (as bits)
// of what they are multiplied by and lessened by: beyond Inf all are NaN, below none is.
#pragma once

#include <cstdint>

#include "backends/cuda/device/tensor/elements.cuh"
#include "formats/gguf.h"

namespace pestle::ops::dequantize_gguf {

// Eight bytes at an even address, out of aligned words; none but those eight and, where the address
// is no multiple of 4, the two before them are read.
__device__ inline uint2 load8_even(const uint8_t* p) {
  const unsigned past = reinterpret_cast<uintptr_t>(p) & 2;
  const uint8_t* aligned = p - past;
  const uint32_t a = __ldg(reinterpret_cast<const uint32_t*>(aligned));
  const uint32_t b = __ldg(reinterpret_cast<const uint32_t*>(aligned + 4));
  uint32_t c = 0;
  if (past != 0) c = __ldg(reinterpret_cast<const uint16_t*>(aligned + 8));
  return make_uint2(__funnelshift_r(a, b, 8 * past), __funnelshift_r(b, c, 8 * past));
}
__device__ inline uint32_t load_half(const uint8_t* p) {
  return __ldg(reinterpret_cast<const uint16_t*>(p));
}
__device__ inline float half_value(uint32_t bits) { return cuda::F16::pair(bits & 0xFFFFu).x; }

// Byte i of a word as a float, less `minus`: the low byte of 2^23, then one exact difference.
__device__ inline float byte_value(uint32_t word, int i, float minus) {
  return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7540 | i)) - (8388608.0f + minus);
}
__device__ inline void byte_values(uint2 bytes, float minus, float (&v)[cuda::kUnit]) {
#pragma unroll
  for (int i = 0; i < cuda::kUnit; ++i) v[i] = byte_value(i < 4 ? bytes.x : bytes.y, i % 4, minus);
}
__device__ inline uint2 low_nibbles(uint2 w) {
  return make_uint2(w.x & 0x0F0F0F0Fu, w.y & 0x0F0F0F0Fu);
}
__device__ inline uint2 high_nibbles(uint2 w) {
  return make_uint2(w.x >> 4 & 0x0F0F0F0Fu, w.y >> 4 & 0x0F0F0F0Fu);
}

struct Q8_0Units {
  static constexpr int kBlock = formats::kQ8_0Block, kBytes = formats::kQ8_0Bytes;
  static constexpr int kLanes = 4, kUnits = 1, kRows = 4;
  struct Raw {
    uint2 q;
    uint32_t d;
  };
  __device__ static Raw load(const uint8_t* b, int lane) {
    return {load8_even(b + 2 + 8 * lane), load_half(b)};
  }
  __device__ static int element(int lane, int) { return 8 * lane; }
  __device__ static uint32_t values(const Raw& raw, int, int, float (&v)[cuda::kUnit]) {
    const float d = half_value(raw.d);
    byte_values(make_uint2(raw.q.x ^ 0x80808080u, raw.q.y ^ 0x80808080u), 128.0f, v);
    for (int i = 0; i < cuda::kUnit; ++i) v[i] *= d;
    return formats::abs_bits(d);
  }
};

struct Q4_0Units {
  static constexpr int kBlock = formats::kQ4_0Block, kBytes = formats::kQ4_0Bytes;
  static constexpr int kLanes = 2, kUnits = 2, kRows = 4;
  using Raw = Q8_0Units::Raw;
  __device__ static Raw load(const uint8_t* b, int lane) {
    return {load8_even(b + 2 + 8 * lane), load_half(b)};
  }
  __device__ static int element(int lane, int unit) { return 16 * unit + 8 * lane; }
  __device__ static uint32_t values(const Raw& raw, int, int unit, float (&v)[cuda::kUnit]) {
    const float d = half_value(raw.d);
    byte_values(unit == 0 ? low_nibbles(raw.q) : high_nibbles(raw.q), 8.0f, v);
    for (int i = 0; i < cuda::kUnit; ++i) v[i] *= d;
    return formats::abs_bits(d);
  }
};

struct Q4_KUnits {
  static constexpr int kBlock = formats::kQ4_KBlock, kBytes = formats::kQ4_KBytes;
  static constexpr int kLanes = 16, kUnits = 2, kRows = 4;
  struct Raw {
    uint2 q;
    uint4 head;
  };
  __device__ static Raw load(const uint8_t* b, int lane) {
    return {__ldg(reinterpret_cast<const uint2*>(b + 16 + 8 * lane)), cuda::load16(b)};
  }
  // Two sub-blocks share 32 bytes.
  __device__ static int element(int lane, int unit) {
    return lane / 4 * 64 + 32 * unit + lane % 4 * 8;
  }
  __device__ static uint32_t values(const Raw& raw, int lane, int unit, float (&v)[cuda::kUnit]) {
    // Bytes 2 * (lane / 4) and the next of each part of formats::q4_k_scale.
    const int shift = lane / 4 % 2 * 16;
    const uint32_t first = raw.head.y >> shift, second = raw.head.z >> shift;
    const uint32_t third = raw.head.w >> shift;
    const bool lower = lane < 8;
    const uint32_t scales = lower ? first & 0x3F3Fu : (third & 0x0F0Fu) | (first >> 2 & 0x3030u);
    const uint32_t mins =
        lower ? second & 0x3F3Fu : (third >> 4 & 0x0F0Fu) | (second >> 2 & 0x3030u);
    const float by = half_value(raw.head.x) * byte_value(scales, unit, 0.0f);
    const float less = half_value(raw.head.x >> 16) * byte_value(mins, unit, 0.0f);
    byte_values(unit == 0 ? low_nibbles(raw.q) : high_nibbles(raw.q), 0.0f, v);
    for (int i = 0; i < cuda::kUnit; ++i) v[i] = by * v[i] - less;
    return max(formats::abs_bits(by), formats::abs_bits(less));
  }
};

struct Q6_KUnits {
  static constexpr int kBlock = formats::kQ6_KBlock, kBytes = formats::kQ6_KBytes;
  static constexpr int kLanes = 8, kUnits = 4, kRows = 2;
  struct Raw {
    uint2 low[2], high;
    int8_t scale[4];
    uint32_t d;
  };
  __device__ static Raw load(const uint8_t* b, int lane) {
    const int half = lane / 4, part = lane % 4;
    Raw raw;
    raw.low[0] = load8_even(b + half * 64 + 8 * part);
    raw.low[1] = load8_even(b + half * 64 + 32 + 8 * part);
    raw.high = load8_even(b + 128 + half * 32 + 8 * part);
    for (int k = 0; k < 4; ++k) {
      raw.scale[k] = __ldg(reinterpret_cast<const int8_t*>(b + 192 + half * 8 + part / 2 + 2 * k));
    }
    raw.d = load_half(b + 208);
    return raw;
  }
  __device__ static int element(int lane, int unit) {
    return lane / 4 * 128 + 32 * unit + lane % 4 * 8;
  }
  // Quarter `unit`'s bits of a word of low nibbles and one of high pairs.
  __device__ static uint32_t codes(uint32_t low, uint32_t high, int unit) {
    const uint32_t nibbles = unit < 2 ? low : low >> 4;
    const uint32_t pairs =
        unit == 0 ? high << 4 : (unit == 1 ? high << 2 : (unit == 2 ? high : high >> 2));
    return (nibbles & 0x0F0F0F0Fu) | (pairs & 0x30303030u);
  }
  __device__ static uint32_t values(const Raw& raw, int, int unit, float (&v)[cuda::kUnit]) {
    const float by = half_value(raw.d) * static_cast<float>(raw.scale[unit]);
    const uint2 low = raw.low[unit % 2];
    byte_values(make_uint2(codes(low.x, raw.high.x, unit), codes(low.y, raw.high.y, unit)), 32.0f,
                v);
    for (int i = 0; i < cuda::kUnit; ++i) v[i] *= by;
    return formats::abs_bits(by);
  }
};

// One rounding each. `factors`: what values() returned.
template <class T>
__device__ inline void store_unit(char* out, const float (&v)[cuda::kUnit], uint32_t factors) {
  if (factors == formats::kF32Inf) return T::store(out, v);  // 0 * Inf, Inf - Inf
  typename T::Raw raw = T::pack_numbers(v);
  if (factors > formats::kF32Inf) raw = T::all_nan();
  T::put(out, raw);
}

}  // namespace pestle::ops::dequantize_gguf
