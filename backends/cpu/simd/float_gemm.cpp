#include "backends/cpu/simd/float_gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/float_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/quant_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace {

using quant::DF;
using quant::kLanes;
using quant::kTileW;
using quant::kTileX;
using quant::VF;
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kGemmRows % kTileX == 0 && kGemmAlong % kTileW == 0);
static_assert(kGemmAcross % (kTileW * kLanes) == 0 && kGemmDepth % kLanes == 0);

// kTileX rows and kTileW vectors of columns: each step of k loads the vectors of b once.
HWY_NOINLINE void across_tile(const float* HWY_RESTRICT a, int64_t a_stride,
                              const float* HWY_RESTRICT b, int64_t b_stride, int64_t k,
                              float* HWY_RESTRICT sums, int64_t sums_stride) {
  const DF d;
  VF acc[kTileX][kTileW];
  for (int m = 0; m < kTileX; ++m)
    for (int n = 0; n < kTileW; ++n) acc[m][n] = hn::LoadU(d, sums + m * sums_stride + n * kLanes);
  for (int64_t i = 0; i < k; ++i) {
    const VF a0 = hn::Set(d, a[i]);
    const VF a1 = hn::Set(d, a[a_stride + i]);
    const VF a2 = hn::Set(d, a[2 * a_stride + i]);
    const VF a3 = hn::Set(d, a[3 * a_stride + i]);
    for (int n = 0; n < kTileW; ++n) {
      const VF v = hn::LoadU(d, b + i * b_stride + n * kLanes);
      acc[0][n] = hn::MulAdd(a0, v, acc[0][n]);
      acc[1][n] = hn::MulAdd(a1, v, acc[1][n]);
      acc[2][n] = hn::MulAdd(a2, v, acc[2][n]);
      acc[3][n] = hn::MulAdd(a3, v, acc[3][n]);
    }
  }
  for (int m = 0; m < kTileX; ++m)
    for (int n = 0; n < kTileW; ++n) hn::StoreU(acc[m][n], d, sums + m * sums_stride + n * kLanes);
}

void along(const GemmBlock& g) {
  for (int64_t n = 0; n < g.n; n += kTileW) {
    for (int64_t m = 0; m < g.m; m += kTileX) {
      quant::gemm_tile(g.a + m * g.a_stride, g.a_stride, g.b + n * g.b_stride, g.b_stride, g.k,
                       g.sums + n * g.sums_stride + m, g.sums_stride);
    }
  }
}

void across(const GemmBlock& g) {
  for (int64_t n = 0; n < g.n; n += kTileW * kLanes) {
    for (int64_t m = 0; m < g.m; m += kTileX) {
      across_tile(g.a + m * g.a_stride, g.a_stride, g.b + n, g.b_stride, g.k,
                  g.sums + m * g.sums_stride + n, g.sums_stride);
    }
  }
}

}  // namespace
}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::cpu {
namespace {
HWY_EXPORT(along);
HWY_EXPORT(across);
}  // namespace

void gemm_along(const GemmBlock& block) { HWY_DYNAMIC_DISPATCH(along)(block); }
void gemm_across(const GemmBlock& block) { HWY_DYNAMIC_DISPATCH(across)(block); }

}  // namespace pestle::cpu
#endif  // HWY_ONCE
