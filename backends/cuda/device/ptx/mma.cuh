// Products of a warp (mma.sync, sm_80 and later): fragments out of shared memory, the instructions,
// and 8-bit floats as f16.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace pestle::cuda::warp {

// What is multiplied. Codes: 8-bit floats, widened to f16 in registers. Tf32: the upper 19 bits of f32.
enum class Kind { kBf16, kF16, kInt8, kCodes, kTf32 };

constexpr bool is_8_bit(Kind kind) { return kind == Kind::kInt8 || kind == Kind::kCodes; }
template <Kind kKind>
using SumOf = std::conditional_t<kKind == Kind::kInt8, int, float>;

#ifdef __CUDACC__

__device__ inline uint32_t shared_place(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four matrices of 8 rows of 16 bytes; lane i says where row i % 8 of matrix i / 8 lies. Each is
// given as rows, or transposed (16-bit elements).
template <bool kTransposed>
__device__ inline void load_fragments(uint32_t from, uint32_t& a, uint32_t& b, uint32_t& c,
                                      uint32_t& d) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(from)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(from)
                 : "memory");
}

#define PESTLE_WARP_MMA(TEXT, C)                                                                  \
  asm("mma.sync.aligned." TEXT " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : C(d[0]), C(d[1]), C(d[2]), C(d[3])                                                        \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))

// d[16, 8] += a[16, 32 bytes of k] * b[32 bytes of k, 8], f16 for codes.
template <Kind kKind>
__device__ inline void multiply(SumOf<kKind> (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (kKind == Kind::kBf16)
    PESTLE_WARP_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
  else if constexpr (kKind == Kind::kInt8)
    PESTLE_WARP_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r");
  else if constexpr (kKind == Kind::kTf32)
    PESTLE_WARP_MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "+f");
  else
    PESTLE_WARP_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f");
}
#undef PESTLE_WARP_MMA

// f32 as the sum of two that the tensor cores read, but for its last bit.
struct Tf32Parts {
  uint32_t high, low;
};
__device__ inline Tf32Parts tf32_parts(uint32_t bits) {
  Tf32Parts p;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(p.high) : "f"(__uint_as_float(bits)));
  p.low = __float_as_uint(__uint_as_float(bits) - __uint_as_float(p.high));
  return p;
}
__device__ inline uint32_t load_word(uint32_t from) {
  uint32_t w;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w) : "r"(from) : "memory");
  return w;
}

// The codes of NaN among four e4m3, as f16's.
__device__ __noinline__ inline uint2 widen_nans(uint32_t codes, uint2 v) {
  for (int i = 0; i < 4; ++i) {
    if ((codes >> (8 * i) & 0x7F) != 0x7F) continue;
    const uint32_t nan = 0x7FFFu << (i % 2 * 16);
    (i < 2 ? v.x : v.y) |= nan;
  }
  return v;
}

// Four codes to two pairs of f16, exactly.
__device__ inline uint2 widen_e5m2(uint32_t codes) {
  return make_uint2(__byte_perm(codes, 0, 0x1404), __byte_perm(codes, 0, 0x3424));
}
__device__ inline uint2 widen_e4m3(uint32_t codes) {
  uint2 v;
#if __CUDA_ARCH__ >= 890
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(v.x), "=r"(v.y)
      : "r"(codes));
#else
  // Exponent and fraction keep their places behind an exponent that is 8 too small.
  const auto half = [](uint32_t upper) {
    const uint32_t bits = (upper & 0x80008000u) | ((upper & 0x7F007F00u) >> 1);
    const __half2 scaled =
        __hmul2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(256.0f));
    return *reinterpret_cast<const uint32_t*>(&scaled);
  };
  const uint2 upper = widen_e5m2(codes);
  v = make_uint2(half(upper.x), half(upper.y));
  if (((codes & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) v = widen_nans(codes, v);
#endif
  return v;
}
__device__ inline uint2 widen(uint32_t codes, bool e5m2) {
  return e5m2 ? widen_e5m2(codes) : widen_e4m3(codes);
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::warp
