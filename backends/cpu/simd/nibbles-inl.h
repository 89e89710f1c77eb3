// 4-bit codes by table: sixteen outputs of any dtype, looked up by packed nibbles. One multiply and
// one rounding for a table entry serve every element of the group, and the result is the same.
#if defined(PESTLE_SIMD_NIBBLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_NIBBLES_INL_H_
#undef PESTLE_SIMD_NIBBLES_INL_H_
#else
#define PESTLE_SIMD_NIBBLES_INL_H_
#endif

#include "backends/cpu/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

inline constexpr size_t kTableVectors = 16 / kN;

// The 16 values of a group's codes.
struct Sixteen {
  VF part[kTableVectors];
};

HWY_INLINE Sixteen load_sixteen(const float* values) {
  Sixteen all;
  for (size_t i = 0; i < kTableVectors; ++i) all.part[i] = hn::LoadU(DF(), values + i * kN);
  return all;
}
template <class F>
HWY_INLINE Sixteen map_sixteen(const Sixteen& in, F&& f) {
  Sixteen out;
  for (size_t i = 0; i < kTableVectors; ++i) out.part[i] = f(in.part[i]);
  return out;
}

#if HWY_TARGET <= HWY_AVX3

// 16-bit outputs: the table twice in a register, so that bit 4 of an index is of no effect.
// 32-bit outputs: the table in a register.
template <class T>
class NibbleTable {
 public:
  NibbleTable() = default;
  explicit HWY_INLINE NibbleTable(const Sixteen& v) {
    if constexpr (T::kBytes == 4) {
      table_ = _mm512_castps_si512(v.part[0].raw);
    } else {
      const __m256i half = bits16(v.part[0]);
      table_ = _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
    }
  }

  // 32 codes of 16 bytes, the even element in the low nibble.
  template <bool kStream>
  HWY_INLINE void pairs32(const uint8_t* codes, void* out) const {
    auto* to = static_cast<uint8_t*>(out);
    if constexpr (T::kBytes == 4) {
      pairs16<kStream>(codes, to);
      pairs16<kStream>(codes + 8, to + 64);
    } else {
      const __m512i b =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
      const __m512i index = _mm512_or_si512(b, _mm512_slli_epi32(b, 12));
      put<kStream>(hn::Vec<DFull16>{_mm512_permutexvar_epi16(index, table_)}, DFull16(), to);
    }
  }

  // 16 codes of 8 bytes, likewise.
  template <bool kStream>
  HWY_INLINE void pairs16(const uint8_t* codes, void* out) const {
    const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    if constexpr (T::kBytes == 4) {
      const __m512i wide = _mm512_cvtepu8_epi64(b);
      put32<kStream>(_mm512_or_si512(wide, _mm512_slli_epi64(wide, 28)), out);
    } else {
      const __m256i wide = _mm256_cvtepu8_epi32(b);
      put16<kStream>(_mm256_or_si256(wide, _mm256_slli_epi32(wide, 12)), out);
    }
  }

  // 16 codes in the low (or high) nibbles of 16 bytes.
  template <bool kHigh, bool kStream>
  HWY_INLINE void plane16(const uint8_t* codes, void* out) const {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    if constexpr (T::kBytes == 4) {
      const __m512i index = _mm512_cvtepu8_epi32(b);
      put32<kStream>(kHigh ? _mm512_srli_epi32(index, 4) : index, out);
    } else {
      const __m256i index = _mm256_cvtepu8_epi16(b);
      put16<kStream>(kHigh ? _mm256_srli_epi16(index, 4) : index, out);
    }
  }

 private:
  static HWY_INLINE __m256i bits16(VF v) {
    if constexpr (T::kDType == DType::kBF16)
      return narrow_u16(Bf16::bits(v)).raw;
    else
      return F16::bits(v).raw;
  }
  template <bool kStream>
  HWY_INLINE void put32(__m512i index, void* out) const {
    put<kStream>(hn::Vec<DU>{_mm512_permutexvar_epi32(index, table_)}, DU(), out);
  }
  template <bool kStream>
  HWY_INLINE void put16(__m256i index, void* out) const {
    constexpr hn::FixedTag<uint16_t, 16> d;
    const __m256i v = _mm256_permutexvar_epi16(index, _mm512_castsi512_si256(table_));
    put<kStream>(hn::Vec<hn::FixedTag<uint16_t, 16>>{v}, d, out);
  }

  __m512i table_;
};

#elif HWY_TARGET == HWY_AVX2

// The table as planes of bytes: byte p of entry i is byte i of plane p.
template <class T>
class NibbleTable {
 public:
  NibbleTable() = default;
  explicit HWY_INLINE NibbleTable(const Sixteen& v) {
    HWY_ALIGN uint8_t entries[16 * T::kBytes];
    for (size_t i = 0; i < kTableVectors; ++i) T::store(v.part[i], entries + i * kN * T::kBytes);
    if constexpr (T::kBytes == 4) {
      hn::LoadInterleaved4(D(), entries, plane_[0], plane_[1], plane_[2], plane_[3]);
    } else {
      hn::LoadInterleaved2(D(), entries, plane_[0], plane_[1]);
    }
  }

  template <bool kStream>
  HWY_INLINE void pairs32(const uint8_t* codes, void* out) const {
    const V b = hn::LoadU(D(), codes);
    const V low = nibble<false>(b);
    const V high = nibble<true>(b);
    look_up<kStream>(hn::InterleaveLower(D(), low, high), out);
    look_up<kStream>(hn::InterleaveUpper(D(), low, high),
                     static_cast<uint8_t*>(out) + 16 * T::kBytes);
  }

  template <bool kStream>
  HWY_INLINE void pairs16(const uint8_t* codes, void* out) const {
    const V b{_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))};
    look_up<kStream>(hn::InterleaveLower(D(), nibble<false>(b), nibble<true>(b)), out);
  }

  template <bool kHigh, bool kStream>
  HWY_INLINE void plane16(const uint8_t* codes, void* out) const {
    look_up<kStream>(nibble<kHigh>(hn::LoadU(D(), codes)), out);
  }

 private:
  using D = hn::FixedTag<uint8_t, 16>;
  using V = hn::Vec<D>;

  template <bool kHigh>
  static HWY_INLINE V nibble(V b) {
    const hn::Repartition<uint16_t, D> d16;
    if constexpr (kHigh) b = hn::BitCast(D(), hn::ShiftRight<4>(hn::BitCast(d16, b)));
    return hn::And(b, hn::Set(D(), 15));
  }

  template <bool kStream>
  HWY_INLINE void look_up(V index, void* out) const {
    auto* to = static_cast<uint8_t*>(out);
    const V b0 = hn::TableLookupBytes(plane_[0], index);
    const V b1 = hn::TableLookupBytes(plane_[1], index);
    if constexpr (T::kBytes == 4) {
      hn::StoreInterleaved4(b0, b1, hn::TableLookupBytes(plane_[2], index),
                            hn::TableLookupBytes(plane_[3], index), D(), to);
    } else {
      put<kStream>(hn::InterleaveLower(D(), b0, b1), D(), to);
      put<kStream>(hn::InterleaveUpper(D(), b0, b1), D(), to + 16);
    }
  }

  V plane_[T::kBytes];
};

#else

template <class T>
class NibbleTable {
 public:
  NibbleTable() = default;
  explicit HWY_INLINE NibbleTable(const Sixteen& v) {
    for (size_t i = 0; i < kTableVectors; ++i) T::store(v.part[i], entries_ + i * kN * T::kBytes);
  }
  template <bool kStream>
  HWY_INLINE void pairs32(const uint8_t* codes, void* out) const {
    pairs16<kStream>(codes, out);
    pairs16<kStream>(codes + 8, static_cast<uint8_t*>(out) + 16 * T::kBytes);
  }
  template <bool kStream>
  HWY_INLINE void pairs16(const uint8_t* codes, void* out) const {
    for (int i = 0; i < 8; ++i) {
      copy(codes[i] & 15, out, 2 * i);
      copy(codes[i] >> 4, out, 2 * i + 1);
    }
  }
  template <bool kHigh, bool kStream>
  HWY_INLINE void plane16(const uint8_t* codes, void* out) const {
    for (int i = 0; i < 16; ++i) copy(kHigh ? codes[i] >> 4 : codes[i] & 15, out, i);
  }

 private:
  HWY_INLINE void copy(int code, void* out, int element) const {
    std::memcpy(static_cast<uint8_t*>(out) + element * int{T::kBytes},
                entries_ + code * int{T::kBytes}, T::kBytes);
  }
  uint8_t entries_[16 * T::kBytes];
};

#endif

// `count` codes (even), the even element in the low nibble. Streaming needs `out` aligned to a
// vector and a count that is a multiple of 32.
template <bool kStream, class T>
HWY_INLINE void expand_pairs(const NibbleTable<T>& table, const uint8_t* codes, int64_t count,
                             uint8_t* out) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    table.template pairs32<kStream>(codes + i / 2, out + i * int64_t{T::kBytes});
  }
  if (i == count) return;
  const auto left = static_cast<size_t>(count - i);
  HWY_ALIGN uint8_t few[16] = {};
  HWY_ALIGN uint8_t values[32 * T::kBytes];
  std::memcpy(few, codes + i / 2, left / 2);
  table.template pairs32<false>(few, values);
  std::memcpy(out + i * int64_t{T::kBytes}, values, left * T::kBytes);
}

// `count` floats as elements of type T. Streaming needs `out` aligned to a vector.
template <bool kStream, class T>
HWY_INLINE void convert_run(const float* values, int64_t count, uint8_t* out) {
  constexpr auto kStep = static_cast<int64_t>(2 * kN);
  constexpr auto kBytes = static_cast<int64_t>(T::kBytes);
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    T::template store2<kStream>(F32::load(values + i), F32::load(values + i + kN),
                                out + i * kBytes);
  }
  for (; i < count; i += kN) {
    const auto left = static_cast<size_t>(count - i) < kN ? static_cast<size_t>(count - i) : kN;
    store_n<T>(load_n<F32>(values + i, left), out + i * kBytes, left);
  }
}
// And back.
template <class T>
HWY_INLINE void convert_to_f32(const void* from, int64_t count, float* values) {
  const auto* in = static_cast<const uint8_t*>(from);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kN) <= count; i += kN)
    F32::store(T::load(in + i * T::kBytes), values + i);
  if (i < count) {
    const auto left = static_cast<size_t>(count - i);
    store_n<F32>(load_n<T>(in + i * T::kBytes, left), values + i, left);
  }
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_NIBBLES_INL_H_
