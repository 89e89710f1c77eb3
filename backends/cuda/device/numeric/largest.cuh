// Largest magnitudes of pairs and units of 16-bit elements, NaN above all.
#pragma once

#include <type_traits>

#include "backends/cuda/device/tensor/elements.cuh"

namespace pestle::cuda {

// The larger magnitudes of two pairs, of any sign.
template <class T>
__device__ inline uint32_t larger_magnitudes(uint32_t a, uint32_t b) {
  uint32_t r;
#if __CUDA_ARCH__ >= 860
  if constexpr (std::is_same_v<T, Bf16>)
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  else
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
  if constexpr (std::is_same_v<T, Bf16>)
    asm("{.reg .b32 a, b; abs.bf16x2 a, %1; abs.bf16x2 b, %2; max.NaN.bf16x2 %0, a, b;}"
        : "=r"(r)
        : "r"(a), "r"(b));
  else
    asm("{.reg .b32 a, b; abs.f16x2 a, %1; abs.f16x2 b, %2; max.NaN.f16x2 %0, a, b;}"
        : "=r"(r)
        : "r"(a), "r"(b));
#endif
  return r;
}
// The larger of a pair's magnitudes, as T::amax has it.
template <class T>
__device__ inline uint32_t largest_of_pair(uint32_t two) {
  two &= 0x7FFF7FFFu;
  if constexpr (std::is_same_v<T, Bf16>) return max(two << 16, two & 0xFFFF0000u);
  const float2 pair = F16::pair(two);
  return max(__float_as_uint(pair.x), __float_as_uint(pair.y));
}
template <class T>
__device__ inline uint32_t larger_of_piece(const uint4& v) {
  return larger_magnitudes<T>(larger_magnitudes<T>(v.x, v.y), larger_magnitudes<T>(v.z, v.w));
}
// T::amax; where there is no maximum of two 16-bit integers, by that of pairs of numbers.
template <class T>
__device__ inline uint32_t largest_of_unit(const typename T::Raw& raw) {
#if __CUDA_ARCH__ < 900
  if constexpr (T::kBytes == 2) return largest_of_pair<T>(larger_of_piece<T>(raw.v));
#endif
  return T::amax(raw);
}
// T::amax of two units.
template <class T>
__device__ inline uint32_t largest_of(const typename T::Raw& a, const typename T::Raw& b) {
  if constexpr (T::kBytes == 2) {
    return largest_of_pair<T>(
        larger_magnitudes<T>(larger_of_piece<T>(a.v), larger_of_piece<T>(b.v)));
  } else {
    return max(T::amax(a), T::amax(b));
  }
}

}  // namespace pestle::cuda
