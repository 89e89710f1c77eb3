// SIMD forms of the float conversions of formats/float_bits.h: same bits, element by element.
// Elements are named by tags (F32, Bf16, F16); kN of them fill one f32 vector.
// f32_from_f16 keeps a NaN's payload where the scalar code canonicalises it; stores canonicalise.
#if defined(PESTLE_SIMD_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_CONVERT_INL_H_
#undef PESTLE_SIMD_CONVERT_INL_H_
#else
#define PESTLE_SIMD_CONVERT_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstring>

#include "core/dtype.h"
#include "formats/float_bits.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using D16 = hn::Rebind<uint16_t, DF>;       // as many u16 as an f32 vector has lanes
using DFull16 = hn::ScalableTag<uint16_t>;  // twice as many: a whole vector
using D8 = hn::Rebind<uint8_t, DF>;
using DFull8 = hn::ScalableTag<uint8_t>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;

inline constexpr size_t kN = HWY_LANES(float);
inline constexpr size_t kBlock = 4 * kN;  // elements that give one whole vector of bytes

// Lanes of NaN.
HWY_INLINE hn::Mask<DF> nan_lanes(VF v) { return hn::IsNaN(v); }
HWY_INLINE VU abs_bits(VF v) { return hn::And(hn::BitCast(DU(), v), hn::Set(DU(), 0x7FFFFFFFu)); }

// Where AVX2 is missing (portable targets: from one lane a vector up) nothing streams, and packing
// goes lane by lane of equal count.
inline constexpr bool kCanStream = HWY_TARGET <= HWY_AVX2;

// Stores a vector; streaming stores bypass the caches and need p aligned to the vector.
// After streaming, call hwy::FlushStream() before another thread may read.
template <bool kStream, class D, class V = hn::Vec<D>>
HWY_INLINE void put(V v, D d, void* p) {
  auto* to = static_cast<hn::TFromD<D>*>(p);
  if constexpr (kStream && kCanStream) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

// The low half of each 32-bit lane (which must be < 2^16), in order.
HWY_INLINE hn::Vec<D16> narrow_u16(VU v) { return hn::TruncateTo(D16(), v); }

// Stores the low 16 bits (lanes < 2^16) of a's lanes, then b's.
template <bool kStream>
HWY_INLINE void put_u16(VU a, VU b, void* p) {
#if HWY_TARGET <= HWY_AVX3
  const __m512i packed = _mm512_packus_epi32(a.raw, b.raw);
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  put<kStream>(hn::Vec<DFull16>{_mm512_permutexvar_epi64(order, packed)}, DFull16(), p);
#elif HWY_TARGET == HWY_AVX2
  const __m256i packed = _mm256_packus_epi32(a.raw, b.raw);
  put<kStream>(hn::Vec<DFull16>{_mm256_permute4x64_epi64(packed, 0xD8)}, DFull16(), p);
#else
  put<false>(narrow_u16(a), D16(), p);
  put<false>(narrow_u16(b), D16(), static_cast<uint16_t*>(p) + kN);
#endif
}

// Stores the low byte of each 32-bit lane (lanes < 256) of a, b, c, d: kBlock bytes.
template <bool kStream>
HWY_INLINE void put_u8(VU a, VU b, VU c, VU d, void* p) {
#if HWY_TARGET <= HWY_AVX3
  const __m512i packed =
      _mm512_packus_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  put<kStream>(hn::Vec<DFull8>{_mm512_permutexvar_epi32(order, packed)}, DFull8(), p);
#elif HWY_TARGET == HWY_AVX2
  const __m256i packed =
      _mm256_packus_epi16(_mm256_packs_epi32(a.raw, b.raw), _mm256_packs_epi32(c.raw, d.raw));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  put<kStream>(hn::Vec<DFull8>{_mm256_permutevar8x32_epi32(packed, order)}, DFull8(), p);
#else
  auto* to = static_cast<uint8_t*>(p);
  for (VU v : {a, b, c, d}) {
    hn::StoreU(hn::TruncateTo(D8(), v), D8(), to);
    to += kN;
  }
#endif
}

// Stores a, b, c, d as int8, saturated to -128..127: kBlock bytes.
template <bool kStream>
HWY_INLINE void put_i8(VI a, VI b, VI c, VI d, void* p) {
#if HWY_TARGET <= HWY_AVX3
  const __m512i packed =
      _mm512_packs_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  put<kStream>(hn::Vec<DFull8>{_mm512_permutexvar_epi32(order, packed)}, DFull8(), p);
#elif HWY_TARGET == HWY_AVX2
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(a.raw, b.raw), _mm256_packs_epi32(c.raw, d.raw));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  put<kStream>(hn::Vec<DFull8>{_mm256_permutevar8x32_epi32(packed, order)}, DFull8(), p);
#else
  const VI low = hn::Set(DI(), -128);
  const VI high = hn::Set(DI(), 127);
  auto* to = static_cast<uint8_t*>(p);
  for (VI v : {a, b, c, d}) {
    const VU byte = hn::And(hn::BitCast(DU(), hn::Min(hn::Max(v, low), high)), hn::Set(DU(), 255u));
    hn::StoreU(hn::TruncateTo(D8(), byte), D8(), to);
    to += kN;
  }
#endif
}

// Elements of 32 bits.
struct F32 {
  static constexpr size_t kBytes = 4;
  static constexpr DType kDType = DType::kF32;
  static HWY_INLINE VF load(const void* p) { return hn::LoadU(DF(), static_cast<const float*>(p)); }
  static HWY_INLINE void store(VF v, void* p) { hn::StoreU(v, DF(), static_cast<float*>(p)); }
  template <bool kStream>
  static HWY_INLINE void store2(VF a, VF b, void* p) {
    put<kStream>(a, DF(), p);
    put<kStream>(b, DF(), static_cast<float*>(p) + kN);
  }
};

struct Bf16 {
  static constexpr size_t kBytes = 2;
  static constexpr DType kDType = DType::kBF16;
  static HWY_INLINE VF load(const void* p) {
    const auto bits = hn::LoadU(D16(), static_cast<const uint16_t*>(p));
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), bits)));
  }
  // The 16 bits in the low half of each lane.
  static HWY_INLINE VU bits(VF v) {
    const VU u = hn::BitCast(DU(), v);
    const VU odd = hn::And(hn::ShiftRight<16>(u), hn::Set(DU(), 1));
    const VU up = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(DU(), 0x7FFFu))));
    return hn::IfThenElse(hn::RebindMask(DU(), nan_lanes(v)),
                          hn::Set(DU(), uint32_t{formats::kBf16Nan}), up);
  }
  static HWY_INLINE void store(VF v, void* p) {
    hn::StoreU(narrow_u16(bits(v)), D16(), static_cast<uint16_t*>(p));
  }
  template <bool kStream>
  static HWY_INLINE void store2(VF a, VF b, void* p) {
    put_u16<kStream>(bits(a), bits(b), p);
  }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  static constexpr DType kDType = DType::kF16;
  static HWY_INLINE VF from_bits(hn::Vec<D16> bits) {
#if HWY_TARGET <= HWY_AVX3
    return VF{_mm512_cvtph_ps(bits.raw)};
#elif HWY_TARGET == HWY_AVX2
    return VF{_mm256_cvtph_ps(bits.raw)};
#else
    HWY_ALIGN uint16_t in[kN];
    HWY_ALIGN float out[kN];
    hn::Store(bits, D16(), in);
    for (size_t i = 0; i < kN; ++i) out[i] = formats::f32_from_f16(in[i]);
    return hn::Load(DF(), out);
#endif
  }
  static HWY_INLINE VF load(const void* p) {
    return from_bits(hn::LoadU(D16(), static_cast<const uint16_t*>(p)));
  }
  // Rounded to nearest even, every NaN 0x7E00.
  static HWY_INLINE hn::Vec<D16> bits(VF v) {
#if HWY_TARGET <= HWY_AVX3
    const __m256i h = _mm512_cvtps_ph(v.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __mmask16 nan = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_UNORD_Q);
    return hn::Vec<D16>{_mm256_mask_mov_epi16(h, nan, _mm256_set1_epi16(0x7E00))};
#elif HWY_TARGET == HWY_AVX2
    const __m128i h = _mm256_cvtps_ph(v.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v.raw, v.raw, _CMP_UNORD_Q));
    const __m128i nan16 =
        _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    return hn::Vec<D16>{_mm_blendv_epi8(h, _mm_set1_epi16(0x7E00), nan16)};
#else
    HWY_ALIGN float in[kN];
    HWY_ALIGN uint16_t out[kN];
    hn::Store(v, DF(), in);
    for (size_t i = 0; i < kN; ++i) out[i] = formats::f16_from_f32(in[i]);
    return hn::Load(D16(), out);
#endif
  }
  static HWY_INLINE void store(VF v, void* p) {
    hn::StoreU(bits(v), D16(), static_cast<uint16_t*>(p));
  }
  template <bool kStream>
  static HWY_INLINE void store2(VF a, VF b, void* p) {
#if HWY_TARGET <= HWY_AVX2
    put<kStream>(hn::Combine(DFull16(), bits(b), bits(a)), DFull16(), p);
#else
    store(a, p);
    store(b, static_cast<uint16_t*>(p) + kN);
#endif
  }
};

// kBlock elements; streaming needs p aligned to a vector.
template <bool kStream, class T>
HWY_INLINE void store4(VF a, VF b, VF c, VF d, void* p) {
  T::template store2<kStream>(a, b, p);
  T::template store2<kStream>(c, d, static_cast<uint8_t*>(p) + 2 * kN * T::kBytes);
}

// The first n (<= kN) elements at p; the other lanes are 0.
template <class T>
HWY_INLINE VF load_n(const void* p, size_t n) {
  HWY_ALIGN uint8_t buffer[kN * T::kBytes] = {};
  std::memcpy(buffer, p, n * T::kBytes);
  return T::load(buffer);
}
template <class T>
HWY_INLINE void store_n(VF v, void* p, size_t n) {
  HWY_ALIGN uint8_t buffer[kN * T::kBytes];
  T::store(v, buffer);
  std::memcpy(p, buffer, n * T::kBytes);
}

// Calls body with the tag of a floating dtype of activations and weights.
template <class Body>
HWY_INLINE auto with_element(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: return body(F32());
    case DType::kF16: return body(F16());
    default: return body(Bf16());
  }
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_CONVERT_INL_H_
