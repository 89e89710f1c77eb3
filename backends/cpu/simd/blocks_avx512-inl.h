// Block formats to and from 16-bit floats with AVX-512BW, for the cases that matter most: whole
// groups of blocks, bf16. Same bits as the general code of e2m1-inl.h and fp8-inl.h, which takes
// over wherever a function here does not apply.
#if defined(PESTLE_SIMD_BLOCKS_AVX512_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_BLOCKS_AVX512_INL_H_
#undef PESTLE_SIMD_BLOCKS_AVX512_INL_H_
#else
#define PESTLE_SIMD_BLOCKS_AVX512_INL_H_
#endif

#include "backends/cpu/simd/convert-inl.h"
#include "formats/minifloat.h"

#if HWY_TARGET <= HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

template <bool kStream>
HWY_INLINE void put_bytes64(__m512i v, uint8_t* p) {
  if constexpr (kStream)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v);
  else
    _mm512_storeu_si512(p, v);
}
template <bool kStream>
HWY_INLINE void put_bytes32(__m256i v, uint8_t* p) {
  if constexpr (kStream)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v);
  else
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}

// ---- largest magnitudes ---------------------------------------------------------------------

// Each fold takes the larger of two halves of a and of b, in every 128-bit lane, and interleaves
// a's results with b's. Words are magnitudes, below 2^15.
HWY_INLINE __m512i fold_words(__m512i a, __m512i b) {
  return _mm512_max_epi16(_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
}
HWY_INLINE __m512i fold_dwords(__m512i a, __m512i b) {
  return _mm512_max_epi16(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
HWY_INLINE __m512i fold_qwords(__m512i a, __m512i b) {
  return _mm512_max_epi16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

HWY_INLINE __m512i magnitudes32(const uint8_t* p) {
  return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi16(0x7FFF));
}
HWY_INLINE __m512i fold_pair(const uint8_t* p) {
  return fold_words(magnitudes32(p), magnitudes32(p + 64));
}
HWY_INLINE __m512i fold_four(const uint8_t* p) {
  return fold_dwords(fold_pair(p), fold_pair(p + 128));
}
// Word i of each lane: the largest of that lane in the i-th of eight vectors at p.
HWY_INLINE __m512i fold_eight(const uint8_t* p) {
  return fold_qwords(fold_four(p), fold_four(p + 256));
}

// The largest magnitude, as the 16 bits of the element, of 16 neighbouring blocks.
template <size_t kPerBlock>
HWY_INLINE __m256i block_amax_words(const uint8_t* x) {
  if constexpr (kPerBlock == 16) {
    const __m512i lanes = fold_eight(x);
    const __m512i both = _mm512_max_epi16(lanes, _mm512_shuffle_i64x2(lanes, lanes, 0xB1));
    const __m128i even = _mm512_castsi512_si128(both);
    const __m128i odd = _mm512_extracti32x4_epi32(both, 2);
    return _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
  } else {
    const __m512i a = fold_eight(x);
    const __m512i b = fold_eight(x + 512);
    const __m512i halves =
        _mm512_max_epi16(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xDD));
    const __m512i all = _mm512_max_epi16(halves, _mm512_shuffle_i64x2(halves, halves, 0xB1));
    return _mm256_set_m128i(_mm512_extracti32x4_epi32(all, 2), _mm512_castsi512_si128(all));
  }
}

// f32 bits of the same. T: Bf16 or F16.
template <class T, size_t kPerBlock>
HWY_INLINE void block_amax16_words(const uint8_t* x, uint32_t* amax) {
  const __m256i words = block_amax_words<kPerBlock>(x);
  const __m512i bits = T::kDType == DType::kBF16
                           ? _mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16)
                           : _mm512_castps_si512(_mm512_cvtph_ps(words));
  _mm512_storeu_si512(amax, bits);
}

// ---- E2M1 from bf16 ---------------------------------------------------------------------------

// The codes of magnitudes v <= 16, without sign, in the low words; above 6 they may exceed 7.
// Between code values, code is a concave piecewise linear function of v, min(2v, v + 2, v/2 + 4)
// and the constant 7. Each piece is rounded to
// the nearest even integer by its one addition to 1.5 * 2^23, and rounding keeps the order.
HWY_INLINE __m512i e2m1_magnitude_words(__m512 v) {
  const __m512 s1 = _mm512_fmadd_ps(v, _mm512_set1_ps(2.0f), _mm512_set1_ps(12582912.0f));
  const __m512 s2 = _mm512_add_ps(v, _mm512_set1_ps(12582914.0f));
  const __m512 s3 = _mm512_fmadd_ps(v, _mm512_set1_ps(0.5f), _mm512_set1_ps(12582916.0f));
  const __m512i low = _mm512_min_epi32(_mm512_castps_si512(s1), _mm512_castps_si512(s2));
  return _mm512_min_epi32(low, _mm512_castps_si512(s3));
}

// Code magnitudes, a word each, of the 32 elements whose bf16 magnitudes are `words`. factors[0]
// belongs to the first kPerBlock of them, and so on.
template <size_t kPerBlock, bool kDivide>
HWY_INLINE __m512i e2m1_words(__m512i words, const float* factors) {
  // Unpacking with zeros below widens words to f32, in an order that packing undoes.
  const __m512i zero = _mm512_setzero_si512();
  __m512 a = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, words));
  __m512 b = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, words));
  __m512 factor;
  if constexpr (kPerBlock == 16) {
    double two;
    std::memcpy(&two, factors, 8);
    const __m512i halves = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    factor = _mm512_permutexvar_ps(halves, _mm512_castpd_ps(_mm512_set1_pd(two)));
  } else {
    factor = _mm512_set1_ps(*factors);
  }
  a = kDivide ? _mm512_div_ps(a, factor) : _mm512_mul_ps(a, factor);
  b = kDivide ? _mm512_div_ps(b, factor) : _mm512_mul_ps(b, factor);
  const __m512i order =
      _mm512_set_epi16(62, 60, 58, 56, 30, 28, 26, 24, 54, 52, 50, 48, 22, 20, 18, 16, 46, 44, 42,
                       40, 14, 12, 10, 8, 38, 36, 34, 32, 6, 4, 2, 0);
  return _mm512_permutex2var_epi16(e2m1_magnitude_words(a), order, e2m1_magnitude_words(b));
}

// Packed codes of 16 blocks of bf16 with `simple` factors (BlockFactors).
template <size_t kPerBlock, bool kDivide, bool kStream>
HWY_INLINE void encode_e2m1_bf16(const uint8_t* x, const float* factors, bool high_first,
                                 uint8_t* q) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  const __m512i weights = _mm512_set1_epi16(static_cast<int16_t>(high_first ? 0x0110 : 0x1001));
  const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  constexpr size_t kFactorStep = 32 / kPerBlock;
  for (size_t i = 0; i < 16 * kPerBlock; i += 64, factors += 2 * kFactorStep) {
    const __m512i x0 = _mm512_loadu_si512(x + 2 * i);
    const __m512i x1 = _mm512_loadu_si512(x + 2 * i + 64);
    const __m512i c0 = e2m1_words<kPerBlock, kDivide>(_mm512_and_si512(x0, magnitude), factors);
    const __m512i c1 =
        e2m1_words<kPerBlock, kDivide>(_mm512_and_si512(x1, magnitude), factors + kFactorStep);
    __m512i codes = _mm512_permutexvar_epi64(order, _mm512_packus_epi16(c0, c1));
    if constexpr (kDivide) codes = _mm512_min_epu8(codes, _mm512_set1_epi8(7));
    const __mmask64 negative = _mm512_kunpackd(_mm512_movepi16_mask(x1), _mm512_movepi16_mask(x0));
    const __m512i with_sign = _mm512_mask_add_epi8(codes, negative, codes, _mm512_set1_epi8(8));
    const __m512i bytes = _mm512_maddubs_epi16(with_sign, weights);
    put_bytes32<kStream>(_mm512_cvtepi16_epi8(bytes), q + i / 2);
  }
}

// ---- E2M1 to bf16 -----------------------------------------------------------------------------

// The values of code magnitude 0..7 in four blocks, as 32 words of bf16. `pairs` holds a dword a
// block: bf16 of the factor f below bf16 of 1.5 * f. All else is a shift of the exponent.
HWY_INLINE __m512i e2m1_table(const uint32_t* pairs) {
  const __m512i in =
      _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs)));
  const __m512i from = _mm512_set_epi16(7, 6, 7, 6, 7, 6, 6, 6, 5, 4, 5, 4, 5, 4, 4, 4, 3, 2, 3, 2,
                                        3, 2, 2, 2, 1, 0, 1, 0, 1, 0, 0, 0);
  const __m512i shift =
      _mm512_broadcast_i32x4(_mm_set_epi16(0x100, 0x100, 0x80, 0x80, 0, 0, -0x80, 0));
  return _mm512_maskz_add_epi16(0xFEFEFEFEu, _mm512_permutexvar_epi16(from, in), shift);
}

struct E2m1Unpacker {
  __m512i bytes;  // spreads a lane's four bytes over words, twice each
  __m512i shift;
  explicit E2m1Unpacker(bool high_first) {
    const __m128i first =
        _mm_set_epi8(-128, 3, -128, 3, -128, 2, -128, 2, -128, 1, -128, 1, -128, 0, -128, 0);
    const __m512i lane =
        _mm512_set_epi64(0x000C000C000C000C, 0x000C000C000C000C, 0x0008000800080008,
                         0x0008000800080008, 0x0004000400040004, 0x0004000400040004, 0, 0);
    bytes = _mm512_add_epi8(_mm512_broadcast_i32x4(first), lane);
    shift = _mm512_set1_epi32(high_first ? 4 : 4 << 16);
  }
  // 32 values from 16 bytes; `block` is where each one's block starts in the table.
  HWY_INLINE __m512i values(const uint8_t* q, __m512i table, __m512i block) const {
    const __m512i in = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    const __m512i words = _mm512_srlv_epi16(_mm512_shuffle_epi8(in, bytes), shift);
    // (words & 7) | block
    const __m512i index = _mm512_ternarylogic_epi32(words, _mm512_set1_epi16(7), block, 0xEA);
    const __m512i magnitude = _mm512_permutexvar_epi16(index, table);
    // magnitude ^ (sign & 0x8000)
    return _mm512_ternarylogic_epi32(_mm512_slli_epi16(words, 12), _mm512_set1_epi16(INT16_MIN),
                                     magnitude, 0x6A);
  }
};

// Round to nearest even to bf16, in the low half of each lane; for values without NaN.
HWY_INLINE __m512i bf16_of(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))),
                           16);
}

// Values of 16 blocks as bf16. False, with nothing done, unless all factors are positive and far
// enough from the ends of the range for every value to be normal.
template <size_t kPerBlock, bool kStream>
HWY_INLINE bool decode_e2m1_bf16(const E2m1Unpacker& unpacker, const uint8_t* q,
                                 const float* factors, uint8_t* out) {
  const __m512 f = _mm512_loadu_ps(factors);
  const __m512i above = _mm512_sub_epi32(_mm512_castps_si512(f), _mm512_set1_epi32(4 << 23));
  if (_mm512_cmp_epu32_mask(above, _mm512_set1_epi32(240 << 23), _MM_CMPINT_LT) != 0xFFFF) {
    return false;
  }
  alignas(64) uint32_t pairs[16];
  const __m512i half_more = bf16_of(_mm512_mul_ps(f, _mm512_set1_ps(1.5f)));
  _mm512_store_si512(pairs, _mm512_or_si512(bf16_of(f), _mm512_slli_epi32(half_more, 16)));
  for (size_t b = 0; b < 16; b += 4) {
    const __m512i table = e2m1_table(pairs + b);
    for (size_t i = 0; i < 4 * kPerBlock; i += 32) {
      const auto first = static_cast<int16_t>(8 * (i / kPerBlock));
      const auto second = static_cast<int16_t>(8 * ((i + 16) / kPerBlock));
      const __m512i block =
          _mm512_inserti64x4(_mm512_set1_epi16(first), _mm256_set1_epi16(second), 1);
      const size_t at = b * kPerBlock + i;
      put_bytes64<kStream>(unpacker.values(q + at / 2, table, block), out + 2 * at);
    }
  }
  return true;
}

// ---- FP8 to bf16 ------------------------------------------------------------------------------

// Every magnitude of F is a bf16.
template <class F>
struct Fp8Words {
  alignas(64) uint16_t bits[128];
  Fp8Words() {
    for (int i = 0; i < 128; ++i) {
      const float value = formats::f32_from_code<F>(static_cast<uint8_t>(i));
      bits[i] = static_cast<uint16_t>(formats::bits_from_f32(value) >> 16);
    }
  }
};

template <class F>
struct Fp8Unpacker {
  __m512i table[4];
  Fp8Unpacker() {
    static const Fp8Words<F> words;
    for (int i = 0; i < 4; ++i) table[i] = _mm512_load_si512(words.bits + 32 * i);
  }
  // Scales that leave all values of F normal in f32 and bf16: multiplying adds to the exponent.
  static constexpr uint32_t kFirstScale = 17;
  static constexpr uint32_t kScales = 239 - 17 + 1;
  static bool applies(uint8_t scale) { return uint32_t{scale} - kFirstScale < kScales; }

  // 32 values times 2^(scale - 127).
  HWY_INLINE __m512i values(const uint8_t* q, uint8_t scale) const {
    const __m512i codes =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)));
    const __m512i low = _mm512_permutex2var_epi16(table[0], codes, table[1]);
    const __m512i high = _mm512_permutex2var_epi16(table[2], codes, table[3]);
    const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    __m512i value = _mm512_mask_mov_epi16(low, is_high, high);
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7F));
    const __mmask32 finite_not_0 =
        _mm512_cmp_epu16_mask(_mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)),
                              _mm512_set1_epi16(F::kMaxCode), _MM_CMPINT_LT);
    const __m512i shift = _mm512_set1_epi16(static_cast<int16_t>((int{scale} - 127) * 128));
    value = _mm512_mask_add_epi16(value, finite_not_0, value, shift);
    constexpr int16_t kLastNumber = F::kInfCode != 0 ? F::kInfCode : F::kMaxCode;
    const __mmask32 number =
        _mm512_cmp_epu16_mask(magnitude, _mm512_set1_epi16(kLastNumber), _MM_CMPINT_LE);
    const __m512i sign =
        _mm512_and_si512(_mm512_slli_epi16(codes, 8), _mm512_set1_epi16(INT16_MIN));
    return _mm512_mask_add_epi16(value, number, value, sign);
  }
};

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#endif  // PESTLE_SIMD_BLOCKS_AVX512_INL_H_
