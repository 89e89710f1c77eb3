// SIMD forms of formats/mx.h and of NVFP4's block scales, sixteen blocks at a time.
#if defined(PESTLE_SIMD_BLOCK_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_BLOCK_SCALES_INL_H_
#undef PESTLE_SIMD_BLOCK_SCALES_INL_H_
#else
#define PESTLE_SIMD_BLOCK_SCALES_INL_H_
#endif

#include "backends/cpu/simd/e2m1-inl.h"
#include "backends/cpu/simd/fp8-inl.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

// For streams of x that the hardware's prefetch falls behind: `bytes` at p, ahead of their use.
HWY_INLINE void prefetch(const uint8_t* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) hwy::Prefetch(p + 2048 + i);
}

HWY_INLINE void store_bytes(VU codes, uint8_t* p) {
  hn::StoreU(hn::TruncateTo(D8(), codes), D8(), p);
}
HWY_INLINE VU load_bytes(const uint8_t* p) { return hn::PromoteTo(DU(), hn::LoadU(D8(), p)); }

// 1 in lanes where `mask` holds, keep = all ones there.
template <class M>
HWY_INLINE void store_factors(VF factor, M keep, size_t at, BlockFactors& f) {
  const auto positive = hn::And(keep, hn::Gt(factor, hn::Zero(DF())));
  f.simple = (at == 0 || f.simple) && hn::AllTrue(DF(), positive);
  hn::Store(hn::IfThenElse(keep, factor, hn::Set(DF(), 1.0f)), DF(), f.factor + at);
  hn::Store(hn::IfThenElseZero(hn::RebindMask(DU(), keep), hn::Set(DU(), 0xFFFFFFFFu)), DU(),
            f.keep + at);
}

// formats::mx_scale of 16 magnitudes, and the factors 2^(127 - e): NaN for a NaN block. False when
// there is one.
template <class F>
HWY_INLINE bool mx_scales16(const uint32_t* amax, uint8_t* codes, BlockFactors& f) {
  bool finite = true;
  for (size_t i = 0; i < 16; i += kN) {
    const VU bits = hn::Load(DU(), amax + i);
    const VU fraction = hn::And(bits, hn::Set(DU(), 0x007FFFFFu));
    const VU up = if_less(fraction, F::kMaxFraction + 1, hn::Zero(DU()), hn::Set(DU(), 1));
    const VI e = hn::Sub(hn::BitCast(DI(), hn::Add(hn::ShiftRight<23>(bits), up)),
                         hn::Set(DI(), F::kMaxExponent));
    const VU code = hn::BitCast(DU(), hn::Max(e, hn::Zero(DI())));
    // At most 253 but for NaN, so the inverse is normal.
    const VU inverse = hn::ShiftLeft<23>(hn::Sub(hn::Set(DU(), 254), code));
    constexpr uint32_t kNanFrom = formats::kF32Inf + 1;
    store_bytes(if_less(bits, kNanFrom, code, hn::Set(DU(), uint32_t{formats::kE8m0Nan})),
                codes + i);
    const VU factor = if_less(bits, kNanFrom, inverse, hn::Set(DU(), formats::kF32Nan));
    const auto keep = hn::RebindMask(DF(), hn::Ne(bits, hn::Zero(DU())));
    store_factors(hn::BitCast(DF(), factor), keep, i, f);
    constexpr auto kInf = static_cast<int32_t>(formats::kF32Inf);
    f.simple = f.simple && hn::AllTrue(DI(), hn::Lt(hn::BitCast(DI(), bits), hn::Set(DI(), kInf)));
    finite = finite && hn::AllTrue(DI(), hn::Lt(hn::BitCast(DI(), bits),
                                                hn::Set(DI(), static_cast<int32_t>(kNanFrom))));
  }
  return finite;
}

// FP8 codes of up to 16 MX blocks. Streaming needs q aligned to 64 bytes.
template <class F, class T, bool kStream>
HWY_INLINE void encode_mxfp8(const uint8_t* x, int64_t blocks, const BlockFactors& f, uint8_t* q) {
  constexpr size_t kPerBlock = formats::kMxBlock;
  const size_t count = static_cast<size_t>(blocks) * kPerBlock;
  const auto codes = [&](size_t i) HWY_ATTR {
    const VF v = hn::Mul(T::load(x + i * T::kBytes), hn::Set(DF(), f.factor[i / kPerBlock]));
    return hn::And(fp8_codes<F>(v), hn::Set(DU(), f.keep[i / kPerBlock]));
  };
  size_t i = 0;
  for (; i + 4 * kN <= count; i += 4 * kN) {
    put_u8<kStream>(codes(i), codes(i + kN), codes(i + 2 * kN), codes(i + 3 * kN), q + i);
  }
  if (i == count) return;
  // An odd block of 32 where a vector holds two.
  const VU zero = hn::Zero(DU());
  HWY_ALIGN uint8_t bytes[4 * kN];
  put_u8<false>(codes(i), codes(i + kN), zero, zero, bytes);
  std::memcpy(q + i, bytes, count - i);
}

// Values of up to 16 MXFP8 blocks: code * factor. Streaming needs `out` aligned to 64 bytes.
template <class F, class T, bool kStream>
HWY_INLINE void decode_mxfp8(const uint8_t* q, int64_t blocks, const float* factor, uint8_t* out) {
  constexpr size_t kPerBlock = formats::kMxBlock;
  const size_t count = static_cast<size_t>(blocks) * kPerBlock;
  for (size_t i = 0; i < count; i += 2 * kN) {
    const VF scale = hn::Set(DF(), factor[i / kPerBlock]);
    T::template store2<kStream>(hn::Mul(load_fp8<F>(q + i), scale),
                                hn::Mul(load_fp8<F>(q + i + kN), scale), out + i * T::kBytes);
  }
}

// The same for bf16, block by block where a scale allows the short way.
#if HWY_TARGET <= HWY_AVX3
template <class F, bool kStream>
HWY_INLINE void decode_mxfp8_bf16(const Fp8Unpacker<F>& unpacker, const uint8_t* q, int64_t blocks,
                                  const uint8_t* scales, const float* factor, uint8_t* out) {
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* from = q + b * formats::kMxBlock;
    uint8_t* to = out + b * formats::kMxBlock * 2;
    if (Fp8Unpacker<F>::applies(scales[b])) {
      put_bytes64<kStream>(unpacker.values(from, scales[b]), to);
    } else {
      decode_mxfp8<F, Bf16, kStream>(from, 1, factor + b, to);
    }
  }
}
#endif

// formats::f32_from_e8m0 of 16 codes.
HWY_INLINE void e8m0_values16(const uint8_t* codes, float* values) {
  for (size_t i = 0; i < 16; i += kN) {
    const VU code = load_bytes(codes + i);
    const VU power = if_less(code, 1, hn::Set(DU(), 0x00400000u), hn::ShiftLeft<23>(code));
    const VU value = if_less(code, formats::kE8m0Nan, power, hn::Set(DU(), formats::kF32Nan));
    hn::Store(hn::BitCast(DF(), value), DF(), values + i);
  }
}

// The usual case of one vector of nvfp4_scales16: t rounds to a normal E4M3 code without clamping.
// False, with nothing of use stored, in any other case.
HWY_INLINE bool nvfp4_scales_usual(VF largest, VF t, VF global, size_t at, uint8_t* codes,
                                   BlockFactors& f) {
  const VU bits = hn::BitCast(DU(), t);
  const VU odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(DU(), 1));
  const VU rounded =
      hn::And(hn::Add(hn::Add(bits, odd), hn::Set(DU(), 0x7FFFFu)), hn::Set(DU(), 0xFFF00000u));
  const VF factor = hn::Mul(hn::BitCast(DF(), rounded), global);
  const auto normal = hn::And(hn::Ge(t, hn::Set(DF(), 0x1p-6f)), hn::Le(t, hn::Set(DF(), 448.0f)));
  const auto near = hn::And(hn::Le(largest, hn::Mul(factor, hn::Set(DF(), 16.0f))),
                            hn::Lt(factor, hn::Set(DF(), 0x1p120f)));
  if (!hn::AllTrue(DF(), hn::And(normal, near))) return false;
  store_bytes(hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(DU(), 120u << 3)), codes + at);
  hn::Store(factor, DF(), f.factor + at);
  hn::Store(hn::Set(DU(), 0xFFFFFFFFu), DU(), f.keep + at);
  f.simple = at == 0 || f.simple;
  return true;
}

// formats::nvfp4_block_scale of 16 magnitudes, and the factors s * g. False when one is not finite.
HWY_INLINE bool nvfp4_scales16(const uint32_t* amax, float g, uint8_t* codes, BlockFactors& f) {
  const VF global = hn::Set(DF(), g);
  bool finite = true;
  for (size_t i = 0; i < 16; i += kN) {
    const VF largest = hn::BitCast(DF(), hn::Load(DU(), amax + i));
    const VF quotient = hn::Div(hn::Div(largest, hn::Set(DF(), 6.0f)), global);
    if (nvfp4_scales_usual(largest, quotient, global, i, codes, f)) continue;
    const VF limit = hn::Set(DF(), 448.0f);
    const VF t = hn::IfThenElse(hn::Gt(quotient, limit), limit, quotient);
    const auto zero = hn::Or(hn::Eq(largest, hn::Zero(DF())), hn::Eq(global, hn::Zero(DF())));
    const VU code = hn::IfThenZeroElse(hn::RebindMask(DU(), zero), fp8_codes<formats::E4m3>(t));
    store_bytes(code, codes + i);
    const auto none = hn::RebindMask(DF(), hn::Eq(code, hn::Zero(DU())));
    const VF factor = hn::IfThenZeroElse(none, hn::Mul(f32_from_fp8<formats::E4m3>(code), global));
    store_factors(factor, hn::Ne(factor, hn::Zero(DF())), i, f);
    // Beyond that lie blocks whose scale was clamped.
    const auto near = hn::Le(largest, hn::Mul(factor, hn::Set(DF(), 16.0f)));
    f.simple = f.simple && hn::AllTrue(DF(), near);
    const auto bounded = hn::Lt(hn::BitCast(DI(), abs_bits(factor)),
                                hn::Set(DI(), static_cast<int32_t>(formats::kF32Inf)));
    finite = finite && hn::AllTrue(DI(), bounded);
  }
  return finite;
}

// formats::nvfp4_factor of 16 codes.
HWY_INLINE void nvfp4_factors16(const uint8_t* codes, float g, float* factors) {
  for (size_t i = 0; i < 16; i += kN) {
    const VF s = f32_from_fp8<formats::E4m3>(load_bytes(codes + i));
    hn::Store(hn::Mul(s, hn::Set(DF(), g)), DF(), factors + i);
  }
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_BLOCK_SCALES_INL_H_
