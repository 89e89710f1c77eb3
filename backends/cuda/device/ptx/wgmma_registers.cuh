// wgmma of 16-bit operands as attention wants it: A in registers, and widths beside the powers of
// two. Accumulators lie as in wgmma.cuh.
#pragma once

#include "backends/cuda/device/ptx/wgmma.cuh"

namespace pestle::cuda::hopper {

#if PESTLE_HOPPER

#define PESTLE_D16_FIRST(c) PESTLE_D16(c, 0)
#define PESTLE_T16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PESTLE_D40(c) PESTLE_D32(c), PESTLE_D4(c, 32), PESTLE_D4(c, 36)
#define PESTLE_T40 PESTLE_T32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define PESTLE_D48(c) PESTLE_D32(c), PESTLE_D16(c, 32)
#define PESTLE_T48 PESTLE_T40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define PESTLE_D56(c) PESTLE_D48(c), PESTLE_D4(c, 48), PESTLE_D4(c, 52)
#define PESTLE_T56 PESTLE_T48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define PESTLE_D72(c) PESTLE_D64(c), PESTLE_D4(c, 64), PESTLE_D4(c, 68)
#define PESTLE_T72 PESTLE_T64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define PESTLE_D80(c) PESTLE_D64(c), PESTLE_D16(c, 64)
#define PESTLE_T80 PESTLE_T72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define PESTLE_D88(c) PESTLE_D80(c), PESTLE_D4(c, 80), PESTLE_D4(c, 84)
#define PESTLE_T88 PESTLE_T80 ", %80, %81, %82, %83, %84, %85, %86, %87"

// Both operands in shared memory along k, other widths than `multiply` has.
#define PESTLE_WGMMA_ROWS(N, TEXT, DATA, A, B, P, TYPE)                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                             \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TEXT "}, " A \
               ", " B ", p, 1, 1, 0, 0;\n}"                                                      \
               : DATA("+f")                                                                      \
               : "l"(a), "l"(b), "r"(p))
#define PESTLE_WGMMA_ROWS_N(N, TEXT, DATA, A, B, P)    \
  if constexpr (kN == N && kWgmma == WgmmaType::kBf16) \
    PESTLE_WGMMA_ROWS(N, TEXT, DATA, A, B, P, "bf16"); \
  if constexpr (kN == N && kWgmma == WgmmaType::kF16)  \
    PESTLE_WGMMA_ROWS(N, TEXT, DATA, A, B, P, "f16");
template <WgmmaType kWgmma, int kN>
__device__ inline void multiply_rows(float (&d)[kN / 2], uint64_t a, uint64_t b, int p) {
  static_assert(kWgmma == WgmmaType::kBf16 || kWgmma == WgmmaType::kF16);
  if constexpr (kN % 64 == 0) multiply<kWgmma, kN, true, true>(d, a, b, p);
  static_assert(kN % 64 == 0 || kN == 80 || kN == 96 || kN == 112 || kN == 144 || kN == 160 ||
                kN == 176);
  PESTLE_WGMMA_ROWS_N(80, PESTLE_T40, PESTLE_D40, "%40", "%41", "%42")
  PESTLE_WGMMA_ROWS_N(96, PESTLE_T48, PESTLE_D48, "%48", "%49", "%50")
  PESTLE_WGMMA_ROWS_N(112, PESTLE_T56, PESTLE_D56, "%56", "%57", "%58")
  PESTLE_WGMMA_ROWS_N(144, PESTLE_T72, PESTLE_D72, "%72", "%73", "%74")
  PESTLE_WGMMA_ROWS_N(160, PESTLE_T80, PESTLE_D80, "%80", "%81", "%82")
  PESTLE_WGMMA_ROWS_N(176, PESTLE_T88, PESTLE_D88, "%88", "%89", "%90")
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
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 96 || kN == 128 || kN == 192 ||
                kN == 256);
  PESTLE_WGMMA_AN(16, PESTLE_T8, PESTLE_D8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
  PESTLE_WGMMA_AN(32, PESTLE_T16, PESTLE_D16_FIRST, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
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
#undef PESTLE_WGMMA_ROWS_N
#undef PESTLE_WGMMA_ROWS

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
