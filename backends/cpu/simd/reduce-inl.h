// Largest magnitude of a run of elements, as the bits of its f32 value (formats::abs_bits): an
// integer maximum, so it keeps NaN and does not depend on the order.
#if defined(PESTLE_SIMD_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_REDUCE_INL_H_
#undef PESTLE_SIMD_REDUCE_INL_H_
#else
#define PESTLE_SIMD_REDUCE_INL_H_
#endif

#include "backends/cpu/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

// SSE2 has no unsigned maximum, but with the sign bit gone signed order is the same.
HWY_INLINE VI max_abs(VI largest, VI v, VI mask) { return hn::Max(largest, hn::And(v, mask)); }

// Largest of the 32-bit lanes, all of which must be < 2^31.
HWY_INLINE uint32_t largest_lane(VI v) {
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), v)));
}

// f32 bits of the magnitude that is the largest among 16-bit patterns without sign.
template <class T>
HWY_INLINE uint32_t f32_bits_of(uint32_t bits16) {
  const auto bits = static_cast<uint16_t>(bits16);
  if constexpr (T::kDType == DType::kBF16)
    return static_cast<uint32_t>(bits) << 16;
  else
    return formats::abs_bits(formats::f32_from_f16(bits));
}

// Elements of 16 bits are compared as they are: their order as integers is that of their values.
template <class T>
HWY_INLINE uint32_t amax_of_16(const uint8_t* x, int64_t count) {
  int64_t i = 0;
  uint32_t largest = 0;
#if HWY_TARGET <= HWY_AVX2
  using D = hn::ScalableTag<int16_t>;
  constexpr int64_t kLanes = 2 * kN;
  const auto mask = hn::Set(D(), int16_t{0x7FFF});
  const auto load = [&](int64_t i) HWY_ATTR {
    return hn::And(mask, hn::LoadU(D(), reinterpret_cast<const int16_t*>(x + 2 * i)));
  };
  auto m0 = hn::Zero(D()), m1 = m0, m2 = m0, m3 = m0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    m0 = hn::Max(m0, load(i));
    m1 = hn::Max(m1, load(i + kLanes));
    m2 = hn::Max(m2, load(i + 2 * kLanes));
    m3 = hn::Max(m3, load(i + 3 * kLanes));
  }
  for (; i + kLanes <= count; i += kLanes) m0 = hn::Max(m0, load(i));
  const VU all = hn::BitCast(DU(), hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  const VI low = hn::BitCast(DI(), hn::And(all, hn::Set(DU(), 0xFFFFu)));
  largest = largest_lane(hn::Max(low, hn::BitCast(DI(), hn::ShiftRight<16>(all))));
#endif
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, x + 2 * i, 2);
    const uint32_t abs = bits & 0x7FFFu;
    largest = abs > largest ? abs : largest;
  }
  return f32_bits_of<T>(largest);
}

HWY_INLINE uint32_t amax_of_f32(const uint8_t* x, int64_t count) {
  constexpr int64_t kLanes = kN;
  const VI mask = hn::Set(DI(), 0x7FFFFFFF);
  const auto load = [&](int64_t i) HWY_ATTR {
    return hn::LoadU(DI(), reinterpret_cast<const int32_t*>(x + 4 * i));
  };
  VI m0 = hn::Zero(DI()), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    m0 = max_abs(m0, load(i), mask);
    m1 = max_abs(m1, load(i + kLanes), mask);
    m2 = max_abs(m2, load(i + 2 * kLanes), mask);
    m3 = max_abs(m3, load(i + 3 * kLanes), mask);
  }
  for (; i + kLanes <= count; i += kLanes) m0 = max_abs(m0, load(i), mask);
  uint32_t largest = largest_lane(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  for (; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + 4 * i, 4);
    const uint32_t abs = bits & 0x7FFFFFFFu;
    largest = abs > largest ? abs : largest;
  }
  return largest;
}

// T: F32, Bf16, F16.
template <class T>
HWY_INLINE uint32_t amax_bits(const void* x, int64_t count) {
  const auto* bytes = static_cast<const uint8_t*>(x);
  if constexpr (T::kBytes == 2)
    return amax_of_16<T>(bytes, count);
  else
    return amax_of_f32(bytes, count);
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_REDUCE_INL_H_
