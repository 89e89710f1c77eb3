// 16-bit numbers to f32 by the tensor cores, in a kernel that is bound by instructions: the product
// with a diagonal matrix leaves every number with the lane that had it, so that one instruction
// unpacks four of them, and two multiply them by a factor besides, where the others need one and
// two an element. Whole warps call these. All numbers are finite, or others of the same eight rows
// and columns become NaN; zeros lose their sign.
#pragma once

#include <cstdint>

#include "backends/cuda/device/tensor/elements.cuh"

namespace pestle::cuda {

// D = A B + C, places as in tensor_sums.cuh.
__device__ inline void bf16_product(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b,
                                    const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%7, %8, %9, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// This lane's part of the diagonal matrix of a bf16 that fills both halves of `twice`.
__device__ inline uint32_t on_diagonal(uint32_t twice) {
  const unsigned lane = threadIdx.x % 32;
  if (lane % 4 != lane / 8) return 0;
  return twice & (lane / 4 % 2 == 0 ? 0xFFFFu : 0xFFFF0000u);
}

// Numbers as they are.
struct TensorUnpack {
  uint32_t ones = on_diagonal(0x3F803F80u);

  __device__ TensorUnpack() { asm volatile("" : "+r"(ones)); }

  // low and high half of a0, then of a1
  __device__ void unpack(uint32_t a0, uint32_t a1, float (&v)[4]) const {
    const float none[4] = {0, 0, 0, 0};
    bf16_product(v, a0, a1, ones, none);
  }
};

// x * factor + addend. The factor is rounded to two bf16, 16 bits; what the addend is made of has
// to use the same.
struct TensorScale {
  float factor;

  __device__ explicit TensorScale(float f) {
    const uint32_t first = pair_of(f);
    const float upper = __uint_as_float(first << 16);
    const uint32_t second = upper < 0x1p120f ? pair_of(f - upper) : 0u;
    factor = upper + __uint_as_float(second << 16);
    high_ = on_diagonal(first);
    rest_ = on_diagonal(second);
  }
  // zeros: four numbers that the compiler takes for different ones, or it makes four registers in a
  // row of one for each product.
  __device__ void add(float addend, const float (&zeros)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) addend_[i] = addend + zeros[i];
  }
  __device__ void add_nothing() {
    for (float& one : addend_) one = 0;
  }
  __device__ void apply(const uint4& piece, float* v) const {
    four(piece.x, piece.y, v);
    four(piece.z, piece.w, v + 4);
  }

 private:
  uint32_t high_, rest_;
  float addend_[4];

  __device__ static uint32_t pair_of(float f) {
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(two) : "f"(f));
    return two;
  }
  __device__ void four(uint32_t a0, uint32_t a1, float* v) const {
    float part[4], all[4];
    bf16_product(part, a0, a1, rest_, addend_);
    bf16_product(all, a0, a1, high_, part);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = all[i];
  }
};

}  // namespace pestle::cuda
