// Hopper's warpgroup matrix instruction, D[64, N] += A[64, k] * B[k, N], as functions.
// Four warps issue it together. B lies in shared memory; A there or in registers. Each thread holds
// N/2 accumulators: of every 8 columns j, d[4j], d[4j+1] are row 16*warp + lane/4, columns
// 2*(lane%4) and one more, d[4j+2], d[4j+3] the same 8 rows below.
#pragma once

#include "backends/cuda/device/ptx/hopper.cuh"

namespace pestle::cuda::hopper {

// What both operands are. 16-bit operands may lie either way; 8-bit ones along k only.
enum class WgmmaType { kBf16, kF16, kE4m3, kE5m2, kE4m3E5m2, kE5m2E4m3, kInt8 };

constexpr bool is_8_bit(WgmmaType p) { return p != WgmmaType::kBf16 && p != WgmmaType::kF16; }

#if PESTLE_HOPPER

// ---- shared memory as the instruction wants it: rows of 128 bytes, swizzled
// ------------------------ `along_k`: a row holds 128 bytes along k, 8 rows make 1,024 bytes. Else
// a row holds 64 elements across k; `chunk_bytes` leads to the next 64.
template <bool kAlongK>
__device__ inline uint64_t describe(const void* tile, int chunk_bytes) {
  uint64_t d = (shared_address(tile) & 0x3FFFF) >> 4;
  d |= static_cast<uint64_t>(kAlongK ? 1 : chunk_bytes >> 4) << 16;
  d |= static_cast<uint64_t>(1024 >> 4) << 32;
  return d | uint64_t{1} << 62;  // 128-byte swizzle
}

__device__ inline void fence_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_wgmma() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups are still at work.
template <int kPending>
__device__ inline void wait_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Registers of an accumulator as an operand list of the asm statement.
#define PESTLE_D4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define PESTLE_D16(c, i) \
  PESTLE_D4(c, i), PESTLE_D4(c, i + 4), PESTLE_D4(c, i + 8), PESTLE_D4(c, i + 12)
#define PESTLE_D8(c) PESTLE_D4(c, 0), PESTLE_D4(c, 4)
#define PESTLE_D32(c) PESTLE_D16(c, 0), PESTLE_D16(c, 16)
#define PESTLE_D64(c) PESTLE_D32(c), PESTLE_D16(c, 32), PESTLE_D16(c, 48)
#define PESTLE_D96(c) PESTLE_D64(c), PESTLE_D16(c, 64), PESTLE_D16(c, 80)
#define PESTLE_D128(c) PESTLE_D96(c), PESTLE_D16(c, 96), PESTLE_D16(c, 112)

// "%0, %1, ...": the same registers in the instruction's text.
#define PESTLE_T32                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PESTLE_T8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PESTLE_T64                                                                     \
  PESTLE_T32                                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PESTLE_T96                                                                     \
  PESTLE_T64                                                                           \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define PESTLE_T128                                                                            \
  PESTLE_T96                                                                                   \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "   \
  "%111, "                                                                                     \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"

// a, b: descriptors. p: 0 starts the sum anew. The operands after the accumulators have numbers
// that depend on their count, so they are given for each width.
#define PESTLE_WGMMA_16(N, TEXT, DATA, A, B, P, TA, TB, TYPE)                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                             \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TEXT "}, " A \
               ", " B ", p, 1, 1, " TA ", " TB ";\n}"                                            \
               : DATA("+f")                                                                      \
               : "l"(a), "l"(b), "r"(p), "n"(kAlongK_A ? 0 : 1), "n"(kAlongK_B ? 0 : 1))
#define PESTLE_WGMMA_8(N, TEXT, DATA, A, B, P, TYPE, C, TAIL)                              \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                       \
               ", 0;\n"                                                                    \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32." TYPE " {" TEXT "}, " A ", " B \
               ", p" TAIL ";\n}"                                                           \
               : DATA(C)                                                                   \
               : "l"(a), "l"(b), "r"(p))
#define PESTLE_WGMMA_N(N, TEXT, DATA, A, B, P, TA, TB)                         \
  if constexpr (kN == N) {                                                     \
    if constexpr (kWgmma == WgmmaType::kBf16)                                  \
      PESTLE_WGMMA_16(N, TEXT, DATA, A, B, P, TA, TB, "bf16");                 \
    if constexpr (kWgmma == WgmmaType::kF16)                                   \
      PESTLE_WGMMA_16(N, TEXT, DATA, A, B, P, TA, TB, "f16");                  \
    if constexpr (kWgmma == WgmmaType::kE4m3)                                  \
      PESTLE_WGMMA_8(N, TEXT, DATA, A, B, P, "f32.e4m3.e4m3", "+f", ", 1, 1"); \
    if constexpr (kWgmma == WgmmaType::kE5m2)                                  \
      PESTLE_WGMMA_8(N, TEXT, DATA, A, B, P, "f32.e5m2.e5m2", "+f", ", 1, 1"); \
    if constexpr (kWgmma == WgmmaType::kE4m3E5m2)                              \
      PESTLE_WGMMA_8(N, TEXT, DATA, A, B, P, "f32.e4m3.e5m2", "+f", ", 1, 1"); \
    if constexpr (kWgmma == WgmmaType::kE5m2E4m3)                              \
      PESTLE_WGMMA_8(N, TEXT, DATA, A, B, P, "f32.e5m2.e4m3", "+f", ", 1, 1"); \
    if constexpr (kWgmma == WgmmaType::kInt8)                                  \
      PESTLE_WGMMA_8(N, TEXT, DATA, A, B, P, "s32.s8.s8", "+r", "");           \
  }

// One instruction: 32 bytes of k of A (64 rows) and B (kN rows). T: float, int for kInt8.
template <WgmmaType kWgmma, int kN, bool kAlongK_A, bool kAlongK_B, class T>
__device__ inline void multiply(T (&d)[kN / 2], uint64_t a, uint64_t b, int p) {
  static_assert(kN == 16 || kN == 64 || kN == 128 || kN == 192 || kN == 256);
  PESTLE_WGMMA_N(16, PESTLE_T8, PESTLE_D8, "%8", "%9", "%10", "%11", "%12")
  PESTLE_WGMMA_N(64, PESTLE_T32, PESTLE_D32, "%32", "%33", "%34", "%35", "%36")
  PESTLE_WGMMA_N(128, PESTLE_T64, PESTLE_D64, "%64", "%65", "%66", "%67", "%68")
  PESTLE_WGMMA_N(192, PESTLE_T96, PESTLE_D96, "%96", "%97", "%98", "%99", "%100")
  PESTLE_WGMMA_N(256, PESTLE_T128, PESTLE_D128, "%128", "%129", "%130", "%131", "%132")
}

// The same with A in registers: 32 bytes of k of 16 rows a warp, as ldmatrix gives them. 64
// columns.
#define PESTLE_WGMMA_R(KIND, TYPE)                                       \
  if constexpr (kWgmma == KIND)                                          \
  asm volatile(                                                          \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                       \
      "wgmma.mma_async.sync.aligned.m64n64k32.f32." TYPE " {" PESTLE_T32 \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"                        \
      : PESTLE_D32("+f")                                                 \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(p))
template <WgmmaType kWgmma>
__device__ inline void multiply_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                          int p) {
  PESTLE_WGMMA_R(WgmmaType::kE4m3, "e4m3.e4m3");
  PESTLE_WGMMA_R(WgmmaType::kE5m2, "e5m2.e5m2");
  PESTLE_WGMMA_R(WgmmaType::kE4m3E5m2, "e4m3.e5m2");
  PESTLE_WGMMA_R(WgmmaType::kE5m2E4m3, "e5m2.e4m3");
}

#undef PESTLE_WGMMA_R
#undef PESTLE_WGMMA_N
#undef PESTLE_WGMMA_8
#undef PESTLE_WGMMA_16

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
