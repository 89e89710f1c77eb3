// Runs of bf16 that share a scale to INT8 codes with AVX-512, where every quotient is known to be
// in range: nearest(x / scale), docs/formats/int8.md.
#if defined(PESTLE_SIMD_INT8_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_INT8_ENCODE_INL_H_
#undef PESTLE_SIMD_INT8_ENCODE_INL_H_
#else
#define PESTLE_SIMD_INT8_ENCODE_INL_H_
#endif

#include "backends/cpu/simd/blocks-inl.h"
#include "backends/cpu/simd/divide-inl.h"

#if HWY_TARGET <= HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

inline constexpr int64_t kInt8ProductMin = 8192;  // elements that pay for trying the product

// Codes of 32 bf16 as words. The two halves of a 32-bit lane are coded apart.
template <bool kProduct>
HWY_INLINE __m512i int8_code_words(__m512i words, const Divider::Fast& divide) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  const auto code = [&](__m512i bits) HWY_ATTR {
    const VF x{_mm512_castsi512_ps(bits)};
    const VF near = divide.product(x);
    return _mm512_cvtps_epi32((kProduct ? near : divide.corrected(x, near)).raw);
  };
  const __m512i even = code(_mm512_slli_epi32(words, 16));
  const __m512i odd = code(_mm512_and_si512(words, high));
  return _mm512_mask_blend_epi16(0xAAAAAAAAu, even, _mm512_slli_epi32(odd, 16));
}

template <bool kProduct>
void encode_int8_blocks(const void* from, uint8_t* to, int64_t count, const Divider& divider,
                        RunOptions options) {
  const auto divide = divider.fast_form();
  run_blocks<2, 1>(from, to, count, options,
                   [&](const uint8_t* in, uint8_t* out, int64_t, bool streams) HWY_ATTR {
                     const __m512i x0 = _mm512_loadu_si512(in);
                     const __m512i x1 = _mm512_loadu_si512(in + 64);
                     const __m512i codes =
                         _mm512_packs_epi16(int8_code_words<kProduct>(x0, divide),
                                            int8_code_words<kProduct>(x1, divide));
                     const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
                     const hn::Vec<DFull8> bytes{_mm512_permutexvar_epi64(order, codes)};
                     if (streams) {
                       put<true>(bytes, DFull8(), out);
                     } else {
                       put<false>(bytes, DFull8(), out);
                     }
                   });
}

// Needs divider.fast() and no quotient beyond 127.5 in magnitude.
inline void encode_int8_bounded(const void* from, uint8_t* to, int64_t count,
                                const Divider& divider, RunOptions options) {
  if (count >= kInt8ProductMin && divider.product_rounds_like_quotient(8)) {
    encode_int8_blocks<true>(from, to, count, divider, options);
  } else {
    encode_int8_blocks<false>(from, to, count, divider, options);
  }
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#endif  // PESTLE_SIMD_INT8_ENCODE_INL_H_
