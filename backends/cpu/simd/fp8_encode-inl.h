// Runs of elements that share a scale to FP8 codes: sat_rne(x / scale), docs/formats/fp8.md.
//
// Magnitudes are limited to a little more than the largest code's before the division, and no other
// care is needed but for NaN. The amax of a computed scale shows whether there is one; elements
// under a given scale are watched while they are coded, and pieces with a NaN are coded again.
#if defined(PESTLE_SIMD_FP8_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_FP8_ENCODE_INL_H_
#undef PESTLE_SIMD_FP8_ENCODE_INL_H_
#else
#define PESTLE_SIMD_FP8_ENCODE_INL_H_
#endif

#include "backends/cpu/simd/blocks-inl.h"
#include "backends/cpu/simd/divide-inl.h"
#include "backends/cpu/simd/fp8-inl.h"
#include "backends/cpu/simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

inline constexpr uint32_t kUnknownAmax = 0xFFFFFFFFu;

inline constexpr int64_t kFp8Piece = 16384;      // elements that are coded again for a NaN
inline constexpr int64_t kFp8ProductMin = 4096;  // from here on, see product_rounds_like_quotient

HWY_INLINE void put_fp8(bool stream, const VU (&code)[4], uint8_t* out) {
  if (stream) {
    put_u8<true>(code[0], code[1], code[2], code[3], out);
  } else {
    put_u8<false>(code[0], code[1], code[2], code[3], out);
  }
}

// Magnitudes above this are saturated: their quotients are above F's largest, and this one's is
// less than half a step above it even after rounding down to bf16.
template <class F>
HWY_INLINE float fp8_cap(float scale) {
  return scale * (1.027f * F::kMax);
}

#if HWY_TARGET <= HWY_AVX3
// kBlock codes of bf16, without their signs, plus kFp8SumBias; `words` are 32 magnitudes. The two
// halves of a 32-bit lane are coded apart and put together again.
template <class F, bool kProduct>
HWY_INLINE __m512i fp8_sum_words(__m512i words, const Divider::Fast& divide) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  const VF even{_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
  const VF odd{_mm512_castsi512_ps(_mm512_and_si512(words, high))};
  const auto sum = [&](VF abs) HWY_ATTR {
    const VF near = divide.product(abs);
    return fp8_sum<F>(kProduct ? near : divide.corrected(abs, near), near).raw;
  };
  const __m512i low = sum(even);
  const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAAu, low, _mm512_slli_epi32(sum(odd), 16));
  return _mm512_and_si512(both, _mm512_set1_epi16(0xFF));
}

struct Fp8Bf16Encoder {
  __m512i cap;
  __m512i largest = _mm512_setzero_si512();  // magnitude in each word so far, if watched
  explicit Fp8Bf16Encoder(float limit)
      : cap(_mm512_set1_epi16(static_cast<int16_t>(formats::bits_from_f32(limit) >> 16))) {}

  bool saw_nan() const {
    return _mm512_cmp_epu16_mask(largest, _mm512_set1_epi16(0x7F80), _MM_CMPINT_NLE) != 0;
  }

  template <bool kWatch>
  HWY_INLINE __m512i magnitudes(__m512i x) {
    const __m512i words = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
    if constexpr (kWatch) largest = _mm512_max_epu16(largest, words);
    return _mm512_min_epu16(words, cap);
  }

  template <class F, bool kProduct, bool kWatch>
  HWY_INLINE void block(const uint8_t* x, const Divider::Fast& divide, bool stream, uint8_t* out) {
    const __m512i x0 = _mm512_loadu_si512(x);
    const __m512i x1 = _mm512_loadu_si512(x + 64);
    const __m512i sum0 = fp8_sum_words<F, kProduct>(magnitudes<kWatch>(x0), divide);
    const __m512i sum1 = fp8_sum_words<F, kProduct>(magnitudes<kWatch>(x1), divide);
    const __m512i bias = _mm512_set1_epi8(static_cast<int8_t>(kFp8SumBias<F> & 0xFFu));
    const __m512i codes = _mm512_sub_epi8(_mm512_packus_epi16(sum0, sum1), bias);
    // Saturation keeps the sign: codes | (signs & 0x80)
    const __m512i signs = _mm512_packs_epi16(x0, x1);
    const __m512i top = _mm512_set1_epi8(INT8_MIN);
    const __m512i all = _mm512_ternarylogic_epi32(codes, signs, top, 0xF8);
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const hn::Vec<DFull8> bytes{_mm512_permutexvar_epi64(order, all)};
    if (stream) {
      put<true>(bytes, DFull8(), out);
    } else {
      put<false>(bytes, DFull8(), out);
    }
  }
};
#endif  // HWY_AVX3

// Codes of numbers where divider.fast(). If kWatch: false where there was a NaN, whose code, and no
// other, is then wrong.
template <class T, class F, bool kProduct, bool kWatch>
bool encode_fp8_numbers(const void* from, uint8_t* to, int64_t count, const Divider& divider,
                        RunOptions options) {
  const auto divide = divider.fast_form();
  const float cap = fp8_cap<F>(divider.value());
#if HWY_TARGET <= HWY_AVX3
  if constexpr (T::kDType == DType::kBF16) {
    Fp8Bf16Encoder encoder(cap);
    run_blocks<2, 1>(from, to, count, options,
                     [&](const uint8_t* in, uint8_t* out, int64_t, bool streams) HWY_ATTR {
                       encoder.template block<F, kProduct, kWatch>(in, divide, streams, out);
                     });
    return !encoder.saw_nan();
  }
#endif
  VI largest = hn::Zero(DI());
  run_blocks<T::kBytes, 1>(from, to, count, options,
                           [&](const uint8_t* in, uint8_t* out, int64_t, bool streams) HWY_ATTR {
                             VU code[4];
                             for (size_t j = 0; j < 4; ++j) {
                               const VF v = T::load(in + j * kN * T::kBytes);
                               const VF all = hn::Abs(v);
                               if constexpr (kWatch)
                                 largest = hn::Max(largest, hn::BitCast(DI(), all));
                               const VF abs = hn::Min(all, hn::Set(DF(), cap));
                               const VF near = divide.product(abs);
                               const VF quotient = kProduct ? near : divide.corrected(abs, near);
                               code[j] = fp8_with_sign(fp8_round_bounded<F>(quotient, near), v);
                             }
                             put_fp8(streams, code, out);
                           });
  return largest_lane(largest) <= formats::kF32Inf;
}

template <class T, class F>
void encode_fp8_fast(const void* from, uint8_t* to, int64_t count, const Divider& divider,
                     RunOptions options) {
  const auto quotient = divider.fast_form();
  run_blocks<T::kBytes, 1>(from, to, count, options,
                           [&](const uint8_t* in, uint8_t* out, int64_t, bool streams) HWY_ATTR {
                             VU code[4];
                             for (size_t j = 0; j < 4; ++j) {
                               const VF v = T::load(in + j * kN * T::kBytes);
                               const VU abs = hn::BitCast(DU(), quotient(hn::Abs(v)));
                               code[j] = fp8_finish<F>(fp8_round<F>(abs), abs, v);
                             }
                             put_fp8(streams, code, out);
                           });
}

template <class T, class F>
void encode_fp8_slow(const void* from, uint8_t* to, int64_t count, VF by, RunOptions options) {
  run_blocks<T::kBytes, 1>(from, to, count, options,
                           [&](const uint8_t* in, uint8_t* out, int64_t, bool streams) HWY_ATTR {
                             VU code[4];
                             for (size_t j = 0; j < 4; ++j) {
                               const VF v = T::load(in + j * kN * T::kBytes);
                               code[j] = fp8_codes<F>(hn::Div(v, by));
                             }
                             put_fp8(streams, code, out);
                           });
}

// Codes of `count` elements of type T. amax: f32 bits of their largest magnitude or more, or
// kUnknownAmax.
template <class T, class F>
void encode_fp8(const void* from, uint8_t* to, int64_t count, float scale, uint32_t amax,
                RunOptions options) {
  const auto divider = Divider::by<T>(scale);
  if (!divider.fast()) {
    encode_fp8_slow<T, F>(from, to, count, divider.scale(), options);
    return;
  }
  if constexpr (T::kBytes == 2) {
    const bool product = count >= kFp8ProductMin && divider.product_rounds_like_quotient(5);
    const bool watch = amax > formats::kF32Inf;
    const auto numbers =
        product
            ? (watch ? encode_fp8_numbers<T, F, true, true> : encode_fp8_numbers<T, F, true, false>)
            : (watch ? encode_fp8_numbers<T, F, false, true>
                     : encode_fp8_numbers<T, F, false, false>);
    const auto* x = static_cast<const uint8_t*>(from);
    for (int64_t i = 0; i < count; i += kFp8Piece) {
      const int64_t length = std::min(kFp8Piece, count - i);
      const uint8_t* piece = x + i * 2;
      if (numbers(piece, to + i, length, divider, options)) continue;
      hwy::FlushStream();
      encode_fp8_fast<T, F>(piece, to + i, length, divider, options);
    }
  }
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_FP8_ENCODE_INL_H_
