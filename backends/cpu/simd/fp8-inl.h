// SIMD forms of formats/minifloat.h and formats/stochastic.h for E4M3 and E5M2: same codes. Only
// integer operations and additions whose results are normal, so that no denormal assists occur.
#if defined(PESTLE_SIMD_FP8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_FP8_INL_H_
#undef PESTLE_SIMD_FP8_INL_H_
#else
#define PESTLE_SIMD_FP8_INL_H_
#endif

#include "backends/cpu/simd/convert-inl.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

HWY_INLINE VU if_less(VU a, uint32_t limit, VU yes, VU no) {  // all below 2^31
  const auto mask = hn::Lt(hn::BitCast(DI(), a), hn::Set(DI(), static_cast<int32_t>(limit)));
  return hn::IfThenElse(hn::RebindMask(DU(), mask), yes, no);
}

// f32 bits of F's smallest normal.
template <class F>
inline constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - F::kBias) << 23;

template <class F>
HWY_INLINE VU fp8_saturate(VU code) {
  const VI largest = hn::Set(DI(), static_cast<int32_t>(F::kMaxCode));
  return hn::BitCast(DU(), hn::Min(hn::BitCast(DI(), code), largest));
}

// The code magnitude of v plus kFp8SumBias, in the low byte of each lane; the rest is no use.
// v: not negative, and less than half a step above F's largest. `exponent`: v, or a float next to
// it.
//
// Adding the power of two whose ulp is the step between codes of v's exponent rounds v to a number
// n of steps, which the low bits then hold below the exponent E: the code is n + (E << kMan) but
// for a constant. A power of two may count as 2^kMan steps or as twice as many: the code is the
// same. Under the smallest normal the step stays the same.
template <class F>
inline constexpr uint32_t kFp8SumBias =
    static_cast<uint32_t>(127 + 23 - F::kMan + 1 - F::kBias) << F::kMan;
template <class F>
HWY_INLINE VU fp8_sum(VF v, VF exponent) {
  constexpr int kShift = 23 - F::kMan;
  const VF field = hn::BitCast(DF(), hn::Set(DU(), formats::kF32Inf));
  const VF least = hn::BitCast(DF(), hn::Set(DU(), kSmallestNormal<F>));
  const VF power = hn::Max(hn::And(exponent, field), least);
  const VF steps = hn::Set(DF(), static_cast<float>(1 << kShift));
  const VU sum = hn::BitCast(DU(), hn::MulAdd(power, steps, v));  // the product is exact
  return hn::Add(sum, hn::ShiftRight<kShift>(sum));
}
template <class F>
HWY_INLINE VU fp8_round_bounded(VF v, VF exponent) {
  const VU code = hn::Sub(fp8_sum<F>(v, exponent), hn::Set(DU(), kFp8SumBias<F>));
  return hn::And(code, hn::Set(DU(), 0xFFu));
}

// Code magnitudes of non-negative values given as bits: nearest even, saturated. Not for NaN.
template <class F>
HWY_INLINE VU fp8_round(VU abs) {
  const VF v = hn::Min(hn::BitCast(DF(), abs), hn::Set(DF(), F::kMax));
  return fp8_round_bounded<F>(v, v);
}

// The same with stochastic rounding by u, 16 random bits in the low half of each lane.
template <class F>
HWY_INLINE VU fp8_round_stochastic(VU abs, VU u) {
  constexpr int kAlign = 23 - F::kMan - 16;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - F::kBias) << F::kMan;
  // floor((m + u * 2^(shift - 16)) / 2^shift) = (floor(m / 2^(shift - 16)) + u) >> 16
  const VU normal =
      hn::Sub(hn::ShiftRight<16>(hn::Add(hn::ShiftRight<kAlign>(abs), u)), hn::Set(DU(), kRebias));
  const VU field = hn::ShiftRight<23>(abs);
  const VU fraction = hn::And(abs, hn::Set(DU(), 0x007FFFFFu));
  // An f32 subnormal needs no care: it is shifted out either way.
  const VU m = hn::Or(fraction, hn::Set(DU(), 0x00800000u));
  const VI lack = hn::Sub(hn::Set(DI(), 128 - F::kBias), hn::BitCast(DI(), field));
  const VI shift =
      hn::Add(hn::Max(hn::Min(lack, hn::Set(DI(), 24)), hn::Zero(DI())), hn::Set(DI(), kAlign));
  const VU subnormal = hn::ShiftRight<16>(hn::Add(hn::Shr(m, hn::BitCast(DU(), shift)), u));
  return fp8_saturate<F>(if_less(abs, kSmallestNormal<F>, subnormal, normal));
}

HWY_INLINE VU fp8_with_sign(VU magnitude, VF signs) {
  const VU sign = hn::And(hn::ShiftRight<24>(hn::BitCast(DU(), signs)), hn::Set(DU(), 0x80u));
  return hn::Or(magnitude, sign);
}

// A magnitude with the sign of `signs`; where `abs` is a NaN, the canonical code without sign.
template <class F>
HWY_INLINE VU fp8_finish(VU magnitude, VU abs, VF signs) {
  return if_less(abs, formats::kF32Inf + 1, fp8_with_sign(magnitude, signs),
                 hn::Set(DU(), F::kNanCode));
}

// formats::code_from_f32, one code in the low byte of each lane.
template <class F>
HWY_INLINE VU fp8_codes(VF v) {
  const VU abs = abs_bits(v);
  return fp8_finish<F>(fp8_round<F>(abs), abs, v);
}

// formats::code_stochastic.
template <class F>
HWY_INLINE VU fp8_codes_stochastic(VF v, VU u) {
  const VU abs = abs_bits(v);
  return fp8_finish<F>(fp8_round_stochastic<F>(abs, u), abs, v);
}

// formats::f32_from_code of the low bytes of lanes that are < 256.
template <class F>
HWY_INLINE VF f32_from_fp8(VU code) {
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - F::kBias) << 23;
  const VU magnitude = hn::And(code, hn::Set(DU(), 0x7Fu));
  const VU sign = hn::ShiftLeft<24>(hn::Xor(code, magnitude));
  const VU shifted = hn::ShiftLeft<23 - F::kMan>(magnitude);
  const VU normal = hn::Add(shifted, hn::Set(DU(), kRebias));
  // Subnormals as 2^e * (1 + fraction) - 2^e, with 2^e the smallest normal.
  const VU base = hn::Set(DU(), kSmallestNormal<F>);
  const VF difference = hn::Sub(hn::BitCast(DF(), hn::Or(shifted, base)), hn::BitCast(DF(), base));
  VU abs = if_less(magnitude, 1u << F::kMan, hn::BitCast(DU(), difference), normal);
  if constexpr (F::kInfCode != 0) {
    abs = if_less(magnitude, F::kInfCode, abs, hn::Set(DU(), formats::kF32Inf));
    const VU signed_value = hn::Or(abs, sign);
    return hn::BitCast(
        DF(), if_less(magnitude, F::kInfCode + 1, signed_value, hn::Set(DU(), formats::kF32Nan)));
  } else {
    return hn::BitCast(DF(), if_less(magnitude, F::kMaxCode + 1, hn::Or(abs, sign),
                                     hn::Set(DU(), formats::kF32Nan)));
  }
}

// kN codes at p as floats.
template <class F>
HWY_INLINE VF load_fp8(const void* p) {
  return f32_from_fp8<F>(hn::PromoteTo(DU(), hn::LoadU(D8(), static_cast<const uint8_t*>(p))));
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_FP8_INL_H_
