// Several rows of x times the rows of a QuantMatrix: a tile of weight rows x columns is decoded
// once into a buffer of the second-level cache, then multiplied with every row of x.
//
// Both operands run along k, so nothing is transposed: a kernel holds 4 x 6 sums of vectors, each
// k step loads 4 + 6 vectors for 24 multiply-adds, and lanes are added up once a panel.
#if defined(PESTLE_SIMD_QUANT_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_QUANT_GEMM_INL_H_
#undef PESTLE_SIMD_QUANT_GEMM_INL_H_
#else
#define PESTLE_SIMD_QUANT_GEMM_INL_H_
#endif

#include "backends/cpu/simd/quant_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace quant {

inline constexpr int kTileX = 4;                               // rows of x in one kernel
inline constexpr int kTileW = HWY_TARGET <= HWY_AVX3 ? 6 : 2;  // by the number of registers

// Adds the sums over all lanes of four vectors to out[0..4).
HWY_INLINE void add_sums(VF a, VF b, VF c, VF e, float* HWY_RESTRICT out) {
  const DF d;
#if HWY_TARGET == HWY_SCALAR
  const VF four[4] = {a, b, c, e};
  for (int i = 0; i < 4; ++i) out[i] += hn::GetLane(hn::SumOfLanes(d, four[i]));
#else
  const hn::Repartition<double, DF> d64;
  const VF ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const VF ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto low = hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce));
  const auto high = hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce));
  const VF blocks = hn::Add(hn::BitCast(d, low), hn::BitCast(d, high));
  const hn::Full128<float> d4;
  [[maybe_unused]] const hn::Half<DF> dh;
#if HWY_TARGET <= HWY_AVX3
  const auto half = hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
  const auto sums = hn::Add(hn::LowerHalf(d4, half), hn::UpperHalf(d4, half));
#elif HWY_TARGET == HWY_AVX2
  const auto sums = hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
#else
  const auto sums = blocks;
#endif
  hn::StoreU(hn::Add(hn::LoadU(d4, out), sums), d4, out);
#endif
}

// sums[n * sums_stride + m] += x rows m (kTileX of them) times w rows n (kTileW), over `columns`.
HWY_NOINLINE inline void gemm_tile(const float* HWY_RESTRICT x, int64_t x_stride,
                                   const float* HWY_RESTRICT w, int64_t w_stride, int64_t columns,
                                   float* HWY_RESTRICT sums, int64_t sums_stride) {
  const DF d;
  VF acc[kTileX][kTileW];
  for (int m = 0; m < kTileX; ++m) {
    for (int n = 0; n < kTileW; ++n) acc[m][n] = hn::Zero(d);
  }
  for (int64_t k = 0; k < columns; k += kLanes) {
    const VF x0 = hn::LoadU(d, x + k);
    const VF x1 = hn::LoadU(d, x + x_stride + k);
    const VF x2 = hn::LoadU(d, x + 2 * x_stride + k);
    const VF x3 = hn::LoadU(d, x + 3 * x_stride + k);
    for (int n = 0; n < kTileW; ++n) {
      const VF wv = hn::LoadU(d, w + n * w_stride + k);
      acc[0][n] = hn::MulAdd(x0, wv, acc[0][n]);
      acc[1][n] = hn::MulAdd(x1, wv, acc[1][n]);
      acc[2][n] = hn::MulAdd(x2, wv, acc[2][n]);
      acc[3][n] = hn::MulAdd(x3, wv, acc[3][n]);
    }
  }
  for (int n = 0; n < kTileW; ++n) {
    add_sums(acc[0][n], acc[1][n], acc[2][n], acc[3][n], sums + n * sums_stride);
  }
}

}  // namespace quant
}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_QUANT_GEMM_INL_H_
