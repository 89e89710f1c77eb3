// Eight neighbouring elements of a row in one thread: loads and stores of 16 (or twice 16) aligned
// bytes, conversion to f32, one rounding back. NaN leaves as the canonical code (docs/formats).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "formats/float_bits.h"

namespace pestle::cuda {

inline constexpr int kUnit = 8;  // elements of a thread's unit

__device__ inline uint4 load16(const void* p) { return __ldg(static_cast<const uint4*>(p)); }
// Results are not read again by the kernel that writes them.
__device__ inline void store16(void* p, uint4 v) { __stcs(static_cast<uint4*>(p), v); }
__device__ inline void store8(void* p, uint2 v) { __stcs(static_cast<uint2*>(p), v); }
__device__ inline void store4(void* p, uint32_t v) { __stcs(static_cast<uint32_t*>(p), v); }

// Largest of two pairs of unsigned 16-bit numbers: one instruction from sm_90 on.
__device__ inline uint32_t max_u16x2(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }

// Any NaN among the eight? Infinities of both signs count too, which only costs a slower store.
__device__ inline bool maybe_nan(const float (&v)[kUnit]) {
  const float sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  return sum != sum;
}

// Each element type: raw bits of a unit, its f32 values, its largest magnitude, and packing.
struct Bf16 {
  static constexpr int kBytes = 2;
  struct Raw {
    uint4 v;
  };
  __device__ static Raw load(const void* p) { return {load16(p)}; }
  __device__ static Raw zero() { return {make_uint4(0, 0, 0, 0)}; }
  __device__ static void to_f32(const Raw& raw, float (&x)[kUnit]) {
    const uint32_t w[4] = {raw.v.x, raw.v.y, raw.v.z, raw.v.w};
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(w[i] << 16);
      x[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
    }
  }
  // formats::abs_bits of the largest, NaN above all.
  __device__ static uint32_t amax(const Raw& raw) {
    const uint32_t m = 0x7FFF7FFFu;
    const uint32_t a =
        max_u16x2(max_u16x2(raw.v.x & m, raw.v.y & m), max_u16x2(raw.v.z & m, raw.v.w & m));
    return max(a << 16, a & 0xFFFF0000u);
  }
  // No NaN among them.
  __device__ static Raw pack_numbers(const float (&v)[kUnit]) {
    uint32_t w[4];
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
      w[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    return {make_uint4(w[0], w[1], w[2], w[3])};
  }
  __device__ static Raw all_nan() {
    constexpr uint32_t kTwo = 0x10001u * formats::kBf16Nan;
    return {make_uint4(kTwo, kTwo, kTwo, kTwo)};
  }
  __device__ static Raw pack(const float (&v)[kUnit]) {
    uint32_t w[4];
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
      w[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    if (maybe_nan(v)) {
      for (int i = 0; i < 4; ++i) {
        w[i] = formats::bf16_from_f32(v[2 * i]) |
               static_cast<uint32_t>(formats::bf16_from_f32(v[2 * i + 1])) << 16;
      }
    }
    return {make_uint4(w[0], w[1], w[2], w[3])};
  }
  __device__ static void put(void* p, const Raw& raw) { store16(p, raw.v); }
  __device__ static void store(void* p, const float (&v)[kUnit]) { put(p, pack(v)); }
};

struct F16 {
  static constexpr int kBytes = 2;
  using Raw = Bf16::Raw;
  __device__ static Raw load(const void* p) { return {load16(p)}; }
  __device__ static Raw zero() { return Bf16::zero(); }
  __device__ static float2 pair(uint32_t w) {
    return __half22float2(*reinterpret_cast<const __half2*>(&w));
  }
  __device__ static void to_f32(const Raw& raw, float (&x)[kUnit]) {
    const uint32_t w[4] = {raw.v.x, raw.v.y, raw.v.z, raw.v.w};
    for (int i = 0; i < 4; ++i) {
      const float2 two = pair(w[i]);
      x[2 * i] = two.x;
      x[2 * i + 1] = two.y;
    }
  }
  __device__ static uint32_t amax(const Raw& raw) {
    const uint32_t m = 0x7FFF7FFFu;
    const uint32_t a =
        max_u16x2(max_u16x2(raw.v.x & m, raw.v.y & m), max_u16x2(raw.v.z & m, raw.v.w & m));
    const float2 two = pair(a);
    return max(formats::abs_bits(two.x), formats::abs_bits(two.y));
  }
  __device__ static Raw pack_numbers(const float (&v)[kUnit]) {
    uint32_t w[4];
    for (int i = 0; i < 4; ++i) {
      const __half2 pair = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
      w[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    return {make_uint4(w[0], w[1], w[2], w[3])};
  }
  __device__ static Raw all_nan() {
    constexpr uint32_t kTwo = 0x10001u * formats::kF16Nan;
    return {make_uint4(kTwo, kTwo, kTwo, kTwo)};
  }
  __device__ static Raw pack(const float (&v)[kUnit]) {
    uint32_t w[4];
    for (int i = 0; i < 4; ++i) {
      const __half2 pair = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
      w[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    if (maybe_nan(v)) {
      for (int i = 0; i < 4; ++i) {
        w[i] = formats::f16_from_f32(v[2 * i]) |
               static_cast<uint32_t>(formats::f16_from_f32(v[2 * i + 1])) << 16;
      }
    }
    return {make_uint4(w[0], w[1], w[2], w[3])};
  }
  __device__ static void put(void* p, const Raw& raw) { store16(p, raw.v); }
  __device__ static void store(void* p, const float (&v)[kUnit]) { put(p, pack(v)); }
};

struct F32 {
  static constexpr int kBytes = 4;
  struct Raw {
    uint4 low, high;
  };
  __device__ static Raw load(const void* p) {
    return {load16(p), load16(static_cast<const char*>(p) + 16)};
  }
  __device__ static Raw zero() { return {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)}; }
  __device__ static void to_f32(const Raw& raw, float (&x)[kUnit]) {
    const uint32_t w[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                           raw.high.x, raw.high.y, raw.high.z, raw.high.w};
    for (int i = 0; i < kUnit; ++i) x[i] = __uint_as_float(w[i]);
  }
  __device__ static uint32_t amax(const Raw& raw) {
    const uint32_t w[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                           raw.high.x, raw.high.y, raw.high.z, raw.high.w};
    uint32_t largest = 0;
    for (int i = 0; i < kUnit; ++i) largest = max(largest, w[i] & 0x7FFFFFFFu);
    return largest;
  }
  __device__ static Raw pack_numbers(const float (&v)[kUnit]) {
    uint32_t w[8];
    for (int i = 0; i < kUnit; ++i) w[i] = __float_as_uint(v[i]);
    return {make_uint4(w[0], w[1], w[2], w[3]), make_uint4(w[4], w[5], w[6], w[7])};
  }
  __device__ static Raw all_nan() {
    constexpr uint32_t kOne = formats::kF32Nan;
    return {make_uint4(kOne, kOne, kOne, kOne), make_uint4(kOne, kOne, kOne, kOne)};
  }
  __device__ static Raw pack(const float (&v)[kUnit]) {
    uint32_t w[8];
    for (int i = 0; i < kUnit; ++i) w[i] = __float_as_uint(v[i]);
    if (maybe_nan(v)) {
      for (int i = 0; i < kUnit; ++i) w[i] = v[i] != v[i] ? formats::kF32Nan : w[i];
    }
    return {make_uint4(w[0], w[1], w[2], w[3]), make_uint4(w[4], w[5], w[6], w[7])};
  }
  __device__ static void put(void* p, const Raw& raw) {
    store16(p, raw.low);
    store16(static_cast<char*>(p) + 16, raw.high);
  }
  __device__ static void store(void* p, const float (&v)[kUnit]) { put(p, pack(v)); }
};

}  // namespace pestle::cuda
