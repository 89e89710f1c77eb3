// SIMD forms of formats/e2m1.h, packed two codes to a byte, and the largest magnitude of each of
// many small blocks.
#if defined(PESTLE_SIMD_E2M1_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_E2M1_INL_H_
#undef PESTLE_SIMD_E2M1_INL_H_
#else
#define PESTLE_SIMD_E2M1_INL_H_
#endif

#include "backends/cpu/simd/blocks_avx512-inl.h"
#include "backends/cpu/simd/convert-inl.h"
#include "formats/nvfp4.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

// formats::e2m1_from_f32 of lanes without NaN.
//
// With e = 0, 1, 2 the exponent of |v| brought to 1..6, adding 1.5 * 2^(e + 22) rounds |v| to a
// multiple of 2^(e - 1), half to even, and leaves n = |v| / 2^(e - 1) in the low bits; the code
// is n + 2 * e.
HWY_INLINE VU e2m1_codes(VF v) {
  const VU bits = hn::BitCast(DU(), v);
  const VI abs = hn::BitCast(DI(), hn::And(bits, hn::Set(DU(), 0x7FFFFFFFu)));
  const VI small = hn::Min(abs, hn::Set(DI(), 0x40C00000));                                  // 6
  const VU exponent = hn::And(hn::BitCast(DU(), hn::Max(small, hn::Set(DI(), 0x3F800000))),  // 1
                              hn::Set(DU(), 0x7F800000u));
  const VU magic = hn::Add(exponent, hn::Set(DU(), (22u << 23) | 0x400000u));
  const VF sum = hn::Add(hn::BitCast(DF(), small), hn::BitCast(DF(), magic));
  const VU n = hn::Sub(hn::BitCast(DU(), sum), magic);
  const VU code = hn::Add(n, hn::Sub(hn::ShiftRight<22>(exponent), hn::Set(DU(), 254u)));
  return hn::Or(code, hn::And(hn::ShiftRight<28>(bits), hn::Set(DU(), 8u)));
}

// Stores the codes in a, b, c, d two to a byte: 2 * kN bytes.
template <bool kStream>
HWY_INLINE void store_nibbles(VU a, VU b, VU c, VU d, bool high_first, void* p) {
#if HWY_TARGET <= HWY_AVX2
  // Weights of the even and the odd code of a byte.
  const auto weights = static_cast<int16_t>(high_first ? 0x0110 : 0x1001);
#endif
#if HWY_TARGET <= HWY_AVX3
  const __m512i packed =
      _mm512_packus_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i words =
      _mm512_maddubs_epi16(_mm512_permutexvar_epi32(order, packed), _mm512_set1_epi16(weights));
  const hn::Half<DFull8> half;
  put<kStream>(hn::Vec<decltype(half)>{_mm512_cvtepi16_epi8(words)}, half, p);
#elif HWY_TARGET == HWY_AVX2
  const __m256i packed =
      _mm256_packus_epi16(_mm256_packs_epi32(a.raw, b.raw), _mm256_packs_epi32(c.raw, d.raw));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i words =
      _mm256_maddubs_epi16(_mm256_permutevar8x32_epi32(packed, order), _mm256_set1_epi16(weights));
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08);
  const hn::Half<DFull8> half;
  put<kStream>(hn::Vec<decltype(half)>{_mm256_castsi256_si128(bytes)}, half, p);
#else
  uint8_t codes[4 * kN];
  put_u8<false>(a, b, c, d, codes);
  auto* to = static_cast<uint8_t*>(p);
  for (size_t i = 0; i < 2 * kN; ++i) {
    to[i] = formats::pack_nibbles(codes[2 * i], codes[2 * i + 1], high_first);
  }
#endif
}

// The 2 * kN values of the kN bytes at p.
struct NibbleReader {
#if HWY_TARGET <= HWY_AVX3
  __m512i shift;
  __m512 values;
  E2m1Unpacker unpacker;
  explicit NibbleReader(bool high_first) : unpacker(high_first) {
    shift = high_first ? _mm512_set_epi32(24, 28, 16, 20, 8, 12, 0, 4, 24, 28, 16, 20, 8, 12, 0, 4)
                       : _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    values =
        _mm512_setr_ps(0.0f, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  }
  // Permutes look at the low four bits of an index only.
  HWY_INLINE VF value(__m512i words) const {
    return VF{_mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), values)};
  }
  HWY_INLINE VF load1(const uint8_t* p) const {
    int64_t eight;
    std::memcpy(&eight, p, 8);
    const __m512i order = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    return value(_mm512_permutexvar_epi32(order, _mm512_set1_epi64(eight)));
  }
  HWY_INLINE void load2(const uint8_t* p, VF& a, VF& b) const {
    const __m512i in = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i second = _mm512_set_epi32(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2);
    a = value(_mm512_permutexvar_epi32(first, in));
    b = value(_mm512_permutexvar_epi32(second, in));
  }
#elif HWY_TARGET == HWY_AVX2
  __m256i shift;
  __m256 values;
  explicit NibbleReader(bool high_first) {
    shift = high_first ? _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24)
                       : _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    values = _mm256_setr_ps(0.0f, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  }
  HWY_INLINE VF value(const uint8_t* p) const {
    int32_t four;
    std::memcpy(&four, p, 4);
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(four), shift);
    const __m256i sign =
        _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(INT32_MIN));
    return VF{_mm256_xor_ps(_mm256_permutevar8x32_ps(values, codes), _mm256_castsi256_ps(sign))};
  }
  HWY_INLINE void load2(const uint8_t* p, VF& a, VF& b) const {
    a = value(p);
    b = value(p + 4);
  }
#else
  bool high_first;
  explicit NibbleReader(bool high) : high_first(high) {}
  HWY_INLINE void load2(const uint8_t* p, VF& a, VF& b) const {
    HWY_ALIGN float values[2 * kN];
    for (size_t i = 0; i < 2 * kN; ++i) {
      values[i] = formats::f32_from_e2m1(formats::nibble_of(p[i / 2], i % 2 == 1, high_first));
    }
    a = hn::Load(DF(), values);
    b = hn::Load(DF(), values + kN);
  }
#endif
};

// f32 bits of the largest magnitude in each of 16 blocks of kPerBlock (16 or 32) elements; those
// from `blocks` on are not read and give 0.
#if HWY_TARGET <= HWY_AVX3
template <class T, size_t kPerBlock>
HWY_INLINE __m512i block_magnitudes(const uint8_t* x, int64_t index, int64_t blocks) {
  if (index >= blocks) return _mm512_setzero_si512();
  const uint8_t* p = x + static_cast<size_t>(index) * kPerBlock * T::kBytes;
  const __m512i a =
      _mm512_and_si512(hn::BitCast(DI(), T::load(p)).raw, _mm512_set1_epi32(0x7FFFFFFF));
  if constexpr (kPerBlock == 16) return a;
  const VF second = T::load(p + 16 * T::kBytes);
  return _mm512_max_epi32(
      a, _mm512_and_si512(hn::BitCast(DI(), second).raw, _mm512_set1_epi32(0x7FFFFFFF)));
}

// Each step takes the larger of two halves of a and of b, and puts a's beside b's.
HWY_INLINE __m512i fold1(__m512i a, __m512i b) {
  return _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
HWY_INLINE __m512i fold2(__m512i a, __m512i b) {
  return _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
HWY_INLINE __m512i fold4(__m512i a, __m512i b) {
  return _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
}

template <class T, size_t kPerBlock>
HWY_INLINE void block_amax16(const uint8_t* x, int64_t blocks, uint32_t* amax) {
  if constexpr (T::kBytes == 2) {
    if (blocks == 16) return block_amax16_words<T, kPerBlock>(x, amax);
  }
  __m512i quads[4];
  for (int64_t q = 0; q < 4; ++q) {
    const auto load = [&](int64_t i)
                          HWY_ATTR { return block_magnitudes<T, kPerBlock>(x, 4 * q + i, blocks); };
    quads[q] = fold2(fold1(load(0), load(1)), fold1(load(2), load(3)));
  }
  // Each 128-bit lane now holds partial maxima of four blocks in order.
  const __m512i all = fold4(fold4(quads[0], quads[1]), fold4(quads[2], quads[3]));
  _mm512_storeu_si512(amax, all);
}
#else
template <class T, size_t kPerBlock>
HWY_INLINE void block_amax16(const uint8_t* x, int64_t blocks, uint32_t* amax) {
  for (int64_t b = 0; b < 16; ++b) {
    VI largest = hn::Zero(DI());
    for (size_t i = 0; b < blocks && i < kPerBlock; i += kN) {
      const VF v = T::load(x + (static_cast<size_t>(b) * kPerBlock + i) * T::kBytes);
      largest = hn::Max(largest, hn::BitCast(DI(), abs_bits(v)));
    }
    amax[b] = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), largest)));
  }
}
#endif

// What turns the elements of one block into codes: x / factor or x * factor, and zeros where
// `keep` is 0 (else all ones). Factors are finite and not 0.
struct BlockFactors {
  alignas(64) float factor[16];
  alignas(64) uint32_t keep[16];
  // No `keep` is 0, every factor is positive, and every scaled element is at most 16; at most 6 if
  // factors multiply.
  bool simple;
};

template <class T, size_t kPerBlock, bool kDivide>
HWY_INLINE VU e2m1_of_block(const uint8_t* x, size_t element, const BlockFactors& f) {
  const VF v = T::load(x + element * T::kBytes);
  const VF factor = hn::Set(DF(), f.factor[element / kPerBlock]);
  const VF scaled = kDivide ? hn::Div(v, factor) : hn::Mul(v, factor);
  return hn::And(e2m1_codes(scaled), hn::Set(DU(), f.keep[element / kPerBlock]));
}

// Packed codes of up to 16 blocks without NaN. Streaming needs q aligned to 64 bytes.
template <class T, size_t kPerBlock, bool kDivide, bool kStream>
HWY_INLINE void encode_e2m1(const uint8_t* x, int64_t blocks, const BlockFactors& f,
                            bool high_first, uint8_t* q) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (T::kDType == DType::kBF16) {
    if (blocks == 16 && f.simple) {
      encode_e2m1_bf16<kPerBlock, kDivide, kStream>(x, f.factor, high_first, q);
      return;
    }
  }
#endif
  const size_t count = static_cast<size_t>(blocks) * kPerBlock;
  const auto codes = [&](size_t i)
                         HWY_ATTR { return e2m1_of_block<T, kPerBlock, kDivide>(x, i, f); };
  size_t i = 0;
  for (; i + 4 * kN <= count; i += 4 * kN) {
    store_nibbles<kStream>(codes(i), codes(i + kN), codes(i + 2 * kN), codes(i + 3 * kN),
                           high_first, q + i / 2);
  }
  if (i == count) return;
  VU rest[4] = {hn::Zero(DU()), hn::Zero(DU()), hn::Zero(DU()), hn::Zero(DU())};
  for (size_t v = 0; i + v * kN < count; ++v) rest[v] = codes(i + v * kN);
  HWY_ALIGN uint8_t bytes[2 * kN];
  store_nibbles<false>(rest[0], rest[1], rest[2], rest[3], high_first, bytes);
  std::memcpy(q + i / 2, bytes, (count - i) / 2);
}

// Values of up to 16 blocks: code * factor. Streaming needs `out` aligned to 64 bytes.
template <class T, size_t kPerBlock, bool kStream>
HWY_INLINE void decode_e2m1(const NibbleReader& reader, const uint8_t* q, int64_t blocks,
                            const float* factor, uint8_t* out) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (T::kDType == DType::kBF16) {
    if (blocks == 16 && decode_e2m1_bf16<kPerBlock, kStream>(reader.unpacker, q, factor, out)) {
      return;
    }
  }
#endif
  const size_t count = static_cast<size_t>(blocks) * kPerBlock;
  size_t i = 0;
  for (; i + 2 * kN <= count; i += 2 * kN) {
    VF a, b;
    reader.load2(q + i / 2, a, b);
    a = hn::Mul(a, hn::Set(DF(), factor[i / kPerBlock]));
    b = hn::Mul(b, hn::Set(DF(), factor[(i + kN) / kPerBlock]));
    T::template store2<kStream>(a, b, out + i * T::kBytes);
  }
#if HWY_TARGET <= HWY_AVX3
  if (i < count) {  // an odd block of 16
    const VF v = hn::Mul(reader.load1(q + i / 2), hn::Set(DF(), factor[i / kPerBlock]));
    T::store(v, out + i * T::kBytes);
  }
#endif
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_E2M1_INL_H_
