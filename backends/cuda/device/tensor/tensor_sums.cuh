// Sums over 16-bit numbers by the tensor cores, which have nothing else to do in a kernel that is
// bound by instructions: products are exact, sums in f32. A warp's lanes add up in fours; what a
// lane has at the end is its share of the warp's sum, as if it had added up numbers of its own.
#pragma once

#include <cstdint>

#include "backends/cuda/device/tensor/elements.cuh"

namespace pestle::cuda {

// D += A B. Of A [16, k] lane l has rows l / 4 and l / 4 + 8, of B [k, 8] column l / 4, and of k
// the same places of both; of D [16, 8] columns l % 4 * 2 and the next: d[0], d[1] of row l / 4,
// the others of row l / 4 + 8.
template <class T>
__device__ inline void multiply_add(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  static_assert(T::kBytes == 2);
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
}
template <class T>
__device__ inline void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  static_assert(T::kBytes == 2);
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
  }
}

// By whole warps.
template <class T>
struct TensorSum {
  float d[4] = {0, 0, 0, 0};

  __device__ void add(const uint4& v) {
    constexpr uint32_t kOnes = std::is_same_v<T, Bf16> ? 0x3F803F80u : 0x3C003C00u;
    multiply_add<T>(d, v, kOnes, kOnes);
  }
  // All columns of D are the same.
  __device__ float share() const { return threadIdx.x % 4 == 0 ? d[0] + d[2] : 0.0f; }
};

// Of squares: the diagonals of products with the same numbers. What else the products hold is not
// looked at; operands in the registers that they were loaded to need no moves.
template <class T>
struct TensorSquares {
  float first[4] = {0, 0, 0, 0};   // row and column l / 4
  float second[4] = {0, 0, 0, 0};  // row l / 4 + 8

  __device__ void add(const uint4& v) {
    multiply_add<T>(first, v.x, v.y, v.x);
    multiply_add<T>(second, v.x, v.y, v.y);
    multiply_add<T>(first, v.z, v.w, v.z);
    multiply_add<T>(second, v.z, v.w, v.w);
  }
  __device__ float share() const {
    const unsigned row = threadIdx.x % 32 / 4;
    if (threadIdx.x % 4 != row / 2) return 0.0f;
    return row % 2 == 0 ? first[0] + second[2] : first[1] + second[3];
  }
};

}  // namespace pestle::cuda
