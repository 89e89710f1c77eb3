// wgmma of 16-bit operands as attention wants it: A in registers, and widths beside the powers of
// two. Accumulators lie as in wgmma.cuh.
#pragma once

#include "backends/cuda/device/ptx/wgmma.cuh"

namespace pestle::cuda::hopper {

#if PESTLE_HOPPER

#define PESTLE_D88(c) PESTLE_D64(c), PESTLE_D16(c, 64), PESTLE_D4(c, 80), PESTLE_D4(c, 84)
#define PESTLE_T88                                                                     \
  PESTLE_T64                                                                           \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87"

#define PESTLE_D48(c) PESTLE_D32(c), PESTLE_D16(c, 32)
#define PESTLE_T48 \
  PESTLE_T32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"

// Both operands in shared memory along k, 176 columns.
#define PESTLE_WGMMA_176(TYPE)                                                     \
  asm volatile(                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %90, 0;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n176k16.f32." TYPE "." TYPE " {" PESTLE_T88 \
      "}, %88, %89, p, 1, 1, 0, 0;\n}"                                             \
      : PESTLE_D88("+f")                                                           \
      : "l"(a), "l"(b), "r"(p))
template <WgmmaType kWgmma>
__device__ inline void multiply_176(float (&d)[88], uint64_t a, uint64_t b, int p) {
  static_assert(kWgmma == WgmmaType::kBf16 || kWgmma == WgmmaType::kF16);
  if constexpr (kWgmma == WgmmaType::kBf16)
    PESTLE_WGMMA_176("bf16");
  else
    PESTLE_WGMMA_176("f16");
}

// A in registers: 16 of k of 16 rows a warp, as ldmatrix gives them.
#define PESTLE_WGMMA_A(N, TEXT, DATA, A0, A1, A2, A3, B, P, T, TYPE)                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                               \
               ", 0;\n"                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TEXT "}, {" A0 \
               ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, " T ";\n}"                              \
               : DATA("+f")                                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(p),                       \
                 "n"(kB_AlongK ? 0 : 1))
#define PESTLE_WGMMA_AN(N, TEXT, DATA, A0, A1, A2, A3, B, P, T)     \
  if constexpr (kN == N && kWgmma == WgmmaType::kBf16)              \
    PESTLE_WGMMA_A(N, TEXT, DATA, A0, A1, A2, A3, B, P, T, "bf16"); \
  if constexpr (kN == N && kWgmma == WgmmaType::kF16)               \
    PESTLE_WGMMA_A(N, TEXT, DATA, A0, A1, A2, A3, B, P, T, "f16");
template <WgmmaType kWgmma, int kN, bool kB_AlongK>
__device__ inline void multiply_registers(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                                          int p) {
  static_assert(kWgmma == WgmmaType::kBf16 || kWgmma == WgmmaType::kF16);
  static_assert(kN == 64 || kN == 96 || kN == 128 || kN == 192 || kN == 256);
  PESTLE_WGMMA_AN(64, PESTLE_T32, PESTLE_D32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
  PESTLE_WGMMA_AN(96, PESTLE_T48, PESTLE_D48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
  PESTLE_WGMMA_AN(128, PESTLE_T64, PESTLE_D64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
  PESTLE_WGMMA_AN(192, PESTLE_T96, PESTLE_D96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
  PESTLE_WGMMA_AN(256, PESTLE_T128, PESTLE_D128, "%128", "%129", "%130", "%131", "%132", "%133",
                  "%134")
}
// B lies across k.
template <WgmmaType kWgmma, int kN>
__device__ inline void multiply_across(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                                       int p) {
  multiply_registers<kWgmma, kN, false>(d, a, b, p);
}

// Registers that instructions under way read or write: nothing that uses them moves across.
template <int kCount>
__device__ inline void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i]));
}
__device__ inline void hold(uint32_t (&a)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(a[j]));
}
template <int kCount>
__device__ inline void hold(uint32_t (&a)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(a[i][j]));
}

#undef PESTLE_WGMMA_AN
#undef PESTLE_WGMMA_A
#undef PESTLE_WGMMA_176

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
