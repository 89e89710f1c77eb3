// One row of x times rows of nibbles by bf16 dot products, on CPUs that have them (AVX512-BF16).
//
// A permute of 16-bit words gives 32 weights in bf16, exactly, where one of floats gives 16; a dot
// product then does 32 multiply-adds. x is the exact sum of one or two bf16 parts: one if it comes
// as bf16, two for f16. An f32 row would take three, which is no faster than f32 multiply-adds.
//
// Numerics: products are exact, sums f32. The instruction reads and writes subnormals as zero, so x
// is scaled by a power of two that keeps every part and every sum of products away from them; if
// none does, f32 kernels do the work.
#if defined(PESTLE_SIMD_QUANT_GEMV_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_QUANT_GEMV_BF16_INL_H_
#undef PESTLE_SIMD_QUANT_GEMV_BF16_INL_H_
#else
#define PESTLE_SIMD_QUANT_GEMV_BF16_INL_H_
#endif

#include <cmath>

#include "backends/cpu/simd/quant_gemv_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace quant {

#if HWY_TARGET <= HWY_AVX3
#define PESTLE_BF16_DOTS __attribute__((target("avx512bf16")))

HWY_INLINE bool has_bf16_dots() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}

// Table values that are small multiples of a half: exact in bf16, and products with them lose no
// more than one bit at the lower end.
HWY_INLINE bool table_is_halves(const QuantMatrix& q) {
  for (const float v : q.table) {
    if (!(v >= -64.0f && v <= 64.0f) || static_cast<float>(static_cast<int>(2 * v)) != 2 * v)
      return false;
  }
  return true;
}

// The exponent of the power of two that bf16_parts multiplies x by, or kNoExponent.
inline constexpr int kNoExponent = INT32_MIN;
HWY_INLINE int bf16_exponent(const float* x, int64_t padded) {
  const auto mask = hn::Set(DU(), 0x7FFFFFFFu);
  const auto one = hn::Set(DU(), 1u);
  auto largest = hn::Zero(DU());
  auto smallest = hn::Set(DU(), 0xFFFFFFFFu);  // less one, so that zeros are above all others
  for (int64_t k = 0; k < padded; k += kLanes) {
    const auto v = hn::And(hn::BitCast(DU(), hn::LoadU(DF(), x + k)), mask);
    largest = hn::Max(largest, v);
    smallest = hn::Min(smallest, hn::Sub(v, one));
  }
  const int top = static_cast<int>(hn::GetLane(hn::MaxOfLanes(DU(), largest)) >> 23) - 127;
  const uint32_t bottom = hn::GetLane(hn::MinOfLanes(DU(), smallest));
  const int exponent = std::min(60 - top, 120);
  if (bottom == 0xFFFFFFFFu) return exponent;  // all zero
  // The lowest magnitude times the power must be 2^-100 or more. Subnormals are 2^-149 or more.
  const int low = bottom + 1 < 0x00800000u ? -149 : static_cast<int>((bottom + 1) >> 23) - 127;
  return low + exponent >= -100 ? exponent : kNoExponent;
}

// Writes x * 2^exponent as bf16 parts, each `padded` long, to `out`; returns how many it took, or 0
// if more than two. In a block of 128, word 32 * n + j is the column of nibble n of the codes'
// 16-bit word j.
HWY_INLINE int bf16_parts(const float* x, int64_t padded, int exponent, uint16_t* out) {
  const auto upper = hn::Set(DU(), 0xFFFF0000u);
  const VF power = hn::Set(DF(), std::ldexp(1.0f, exponent));
  for (int part = 0; part < 2; ++part) {
    auto rest = hn::Zero(DU());
    for (int64_t block = 0; block < padded; block += kQuantBlock) {
      for (int n = 0; n < 4; ++n) {
        VF v[2];
        for (int half = 0; half < 2; ++half) {
          v[half] = hn::Mul(hn::LoadU(DF(), x + block + 64 * half + 16 * n), power);
          for (int p = 0; p < part; ++p) {
            v[half] =
                hn::Sub(v[half], hn::BitCast(DF(), hn::And(hn::BitCast(DU(), v[half]), upper)));
          }
          rest = hn::Or(rest, hn::AndNot(upper, hn::BitCast(DU(), v[half])));
        }
        const auto low = hn::ShiftRight<16>(hn::BitCast(DU(), v[0]));
        const auto high = hn::And(hn::BitCast(DU(), v[1]), upper);
        hn::StoreU(hn::Or(low, high), DU(),
                   reinterpret_cast<uint32_t*>(out + part * padded + block + 32 * n));
      }
    }
    if (hn::AllTrue(DU(), hn::Eq(rest, hn::Zero(DU())))) return part + 1;
  }
  return 0;
}

// sums[i] += the 128 columns of row i whose codes are at codes[i] + offset, times their scales at
// scales[i]. The parts of x are `padded` apart.
template <int kParts>
PESTLE_BF16_DOTS HWY_INLINE void bf16_block(__m512i table, hn::Vec<DI> lane_group,
                                            const uint8_t* const (&codes)[kRows], int64_t offset,
                                            const GemvRows& r, int64_t scale, const uint16_t* x,
                                            int64_t padded, __m512 (&sums)[kRows]) {
  __m512i index[kRows];
  __m512 t[kRows];
  for (int i = 0; i < kRows; ++i) {
    index[i] = _mm512_loadu_si512(codes[i] + offset);
    t[i] = _mm512_setzero_ps();
  }
  for (int n = 0; n < 4; ++n) {
    __m512bh xv[kParts];
    for (int part = 0; part < kParts; ++part) {
      xv[part] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(x + part * padded + 32 * n));
    }
    for (int i = 0; i < kRows; ++i) {
      const auto v = reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(index[i], table));
      index[i] = _mm512_srli_epi16(index[i], 4);
      for (int part = 0; part < kParts; ++part) t[i] = _mm512_dpbf16_ps(t[i], v, xv[part]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    sums[i] = _mm512_fmadd_ps(t[i], spread(r.scales[i] + scale, lane_group).raw, sums[i]);
  }
}

// Adds the panel's columns to acc.
template <int kParts>
PESTLE_BF16_DOTS HWY_NOINLINE void bf16_panel(const QuantMatrix& q, const GemvRows& r,
                                              const uint16_t* x, int64_t padded, int64_t columns,
                                              VF (&acc)[kRows]) {
  alignas(64) uint16_t words[32];  // twice: a permute looks at five bits
  for (int i = 0; i < 32; ++i) {
    words[i] = static_cast<uint16_t>(formats::bits_from_f32(q.table[i % 16]) >> 16);
  }
  const __m512i table = _mm512_load_si512(words);
  const auto lane_group = group_of_lane(q);
  __m512 sums[kRows] = {acc[0].raw, acc[1].raw, acc[2].raw, acc[3].raw};
  ScaleCursor g(q);
  int64_t k = 0;
  for (; k + kQuantBlock <= columns; k += kQuantBlock, g.next_block()) {
    prefetch(r, k / 2);
    bf16_block<kParts>(table, lane_group, r.codes, k / 2, r, g.at, x + k, padded, sums);
  }
  if (k < columns) {
    uint8_t tail[kRows][64] = {};
    for (int i = 0; i < kRows; ++i) {
      std::memcpy(tail[i], r.codes[i] + k / 2, static_cast<size_t>((columns - k + 1) / 2));
    }
    const uint8_t* const codes[kRows] = {tail[0], tail[1], tail[2], tail[3]};
    bf16_block<kParts>(table, lane_group, codes, 0, r, g.at, x + k, padded, sums);
  }
  for (int i = 0; i < kRows; ++i) acc[i] = VF{sums[i]};
}
#endif

}  // namespace quant
}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_QUANT_GEMV_BF16_INL_H_
