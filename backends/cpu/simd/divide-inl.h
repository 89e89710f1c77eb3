// x / scale for many x and one scale, the IEEE f32 quotient. For 16-bit x a rounded reciprocal and
// one fused correction give it in three multiplications; tests/simd/divide_test.cpp tries every
// significand of x with every significand of the scale.
#if defined(PESTLE_SIMD_DIVIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_DIVIDE_INL_H_
#undef PESTLE_SIMD_DIVIDE_INL_H_
#else
#define PESTLE_SIMD_DIVIDE_INL_H_
#endif

#include "backends/cpu/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

// The correction is exact while no step over- or underflows: scales in [2^-60, 2^60], quotients of
// at least 2^-40 (smaller ones stay smaller, and every code takes them for 0), and magnitudes
// limited to 2^17 scales, which is beyond every code and keeps Inf out. NaN stays NaN.
class Divider {
 public:
  // T: the element type that x was loaded from.
  template <class T>
  static HWY_INLINE Divider by(float scale) {
    Divider d;
    // Needs fused multiply-add, and a minimum that returns its second operand for a NaN.
    d.fast_ = T::kBytes == 2 && HWY_TARGET <= HWY_AVX2 && scale >= 0x1p-60f && scale <= 0x1p60f;
    d.scale_ = scale;
    return d;
  }
  bool fast() const { return fast_; }

  // Only if fast(): |x| / scale for |x|, which must have no sign.
  struct Fast {
    VF scale, reciprocal, cap;
    HWY_INLINE VF operator()(VF abs) const { return correct(hn::Min(cap, abs)); }
    // The same in two steps, where |x| is known to be below the cap.
    HWY_INLINE VF product(VF abs) const { return hn::Mul(abs, reciprocal); }
    HWY_INLINE VF corrected(VF x, VF product) const {
      return hn::MulAdd(hn::NegMulAdd(product, scale, x), reciprocal, product);
    }
    // x of either sign; only the sign of a zero is lost.
    HWY_INLINE VF of_signed(VF x) const { return correct(hn::Max(hn::Neg(cap), hn::Min(cap, x))); }
    HWY_INLINE VF correct(VF x) const { return corrected(x, product(x)); }
  };
  HWY_INLINE Fast fast_form() const {
    return {hn::Set(DF(), scale_), hn::Set(DF(), 1.0f / scale_), hn::Set(DF(), scale_ * 0x1p17f)};
  }
  HWY_INLINE VF scale() const { return hn::Set(DF(), scale_); }
  float value() const { return scale_; }

  // Only if fast(): whether Fast::product rounds to the same code as the quotient for every 16-bit
  // x within the cap. Both are within 2^-22 of x / scale, so they can differ only where x is that
  // near to a boundary between codes, times the scale. Boundaries have at most `bits` significant
  // bits (FP8: 5, INT8: 8), and for each significand t the x nearest to t * scale is all there is
  // to try.
  bool product_rounds_like_quotient(uint32_t bits) const {
    const uint32_t first = 1u << (bits - 1);
    const float unit = 1.0f / static_cast<float>(first);
    const float reciprocal = 1.0f / scale_;
    uint32_t differing = 0;
    for (uint32_t i = first; i < 2 * first; ++i) {
      const float t = static_cast<float>(static_cast<int32_t>(i)) * unit;
      // To the 11 bits of f16, which include bf16's.
      const uint32_t nearest = (formats::bits_from_f32(t * scale_) + 0x1000u) & ~0x1FFFu;
      const float x = formats::f32_from_bits(nearest);
      const float product = x * reciprocal;
      const float quotient = x / scale_;
      differing |= static_cast<uint32_t>((product < t) != (quotient < t));
      differing |= static_cast<uint32_t>((product > t) != (quotient > t));
    }
    return differing == 0;
  }

 private:
  bool fast_;
  float scale_;
};

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_DIVIDE_INL_H_
