// Runs of FP8 codes that share a scale to floats: f32(code) * scale, one product, one rounding.
//
// A long run to 16-bit elements looks its results up: AVX-512 holds those of all 128 magnitudes in
// four registers. The product and its rounding are symmetric, so a sign is flipped afterwards.
#if defined(PESTLE_SIMD_FP8_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_FP8_DECODE_INL_H_
#undef PESTLE_SIMD_FP8_DECODE_INL_H_
#else
#define PESTLE_SIMD_FP8_DECODE_INL_H_
#endif

#include <cmath>

#include "backends/cpu/simd/blocks-inl.h"
#include "backends/cpu/simd/fp8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

inline constexpr int64_t kFp8TableMin = 1024;  // elements that pay for filling the table

// `scale_at` gives the scales of kN elements by the index of the first.
template <class T, class F, class ScaleAt>
HWY_INLINE void decode_fp8(const void* from, void* to, int64_t count, RunOptions options,
                           ScaleAt&& scale_at) {
  run_blocks<1, T::kBytes>(from, to, count, options,
                           [&](const uint8_t* in, uint8_t* out, int64_t at, bool streams) HWY_ATTR {
                             VF v[4];
                             for (size_t j = 0; j < 4; ++j) {
                               const VF scale = scale_at(at + static_cast<int64_t>(j * kN));
                               v[j] = hn::Mul(load_fp8<F>(in + j * kN), scale);
                             }
                             put_block<T>(streams, v, out);
                           });
}

#if HWY_TARGET <= HWY_AVX3
// T: Bf16 or F16.
template <class T, class F>
class Fp8Table {
 public:
  // Where a scale makes a NaN of a number, the table does not apply.
  static bool applies(float scale) { return std::isfinite(scale) && scale != 0.0f; }

  explicit Fp8Table(float scale) {
    alignas(64) uint8_t codes[128];
    alignas(64) uint16_t values[128];
    for (int i = 0; i < 128; ++i) codes[i] = static_cast<uint8_t>(i);
    const VF by = hn::Set(DF(), scale);
    decode_fp8<T, F>(codes, values, 128, {}, [by](int64_t) HWY_ATTR { return by; });
    for (int i = 0; i < 4; ++i) table_[i] = _mm512_load_si512(values + 32 * i);
  }

  // The values of 32 codes.
  HWY_INLINE __m512i values(const uint8_t* q) const {
    const __m512i codes =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)));
    const __m512i low = _mm512_permutex2var_epi16(table_[0], codes, table_[1]);
    const __m512i high = _mm512_permutex2var_epi16(table_[2], codes, table_[3]);
    const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    const __m512i value = _mm512_mask_mov_epi16(low, is_high, high);
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7F));
    constexpr int16_t kLastNumber = F::kInfCode != 0 ? F::kInfCode : F::kMaxCode;
    const __mmask32 number =
        _mm512_cmp_epu16_mask(magnitude, _mm512_set1_epi16(kLastNumber), _MM_CMPINT_LE);
    const __m512i sign =
        _mm512_and_si512(_mm512_slli_epi16(codes, 8), _mm512_set1_epi16(INT16_MIN));
    return _mm512_mask_add_epi16(value, number, value, sign);
  }

  template <bool kStream>
  HWY_INLINE void block(const uint8_t* q, uint8_t* out) const {
    put<kStream>(hn::Vec<DFull16>{values(q)}, DFull16(), out);
    put<kStream>(hn::Vec<DFull16>{values(q + 32)}, DFull16(), out + 64);
  }

 private:
  __m512i table_[4];
};
#endif  // HWY_AVX3

template <class T, class F>
void decode_fp8_one_scale(const void* from, void* to, int64_t count, float scale,
                          RunOptions options) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (T::kBytes == 2) {
    if (count >= kFp8TableMin && Fp8Table<T, F>::applies(scale)) {
      const Fp8Table<T, F> table(scale);
      run_blocks<1, 2>(from, to, count, options,
                       [&](const uint8_t* in, uint8_t* out, int64_t, bool streams) HWY_ATTR {
                         if (streams) {
                           table.template block<true>(in, out);
                         } else {
                           table.template block<false>(in, out);
                         }
                       });
      return;
    }
  }
#endif
  const VF by = hn::Set(DF(), scale);
  decode_fp8<T, F>(from, to, count, options, [by](int64_t) HWY_ATTR { return by; });
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_FP8_DECODE_INL_H_
