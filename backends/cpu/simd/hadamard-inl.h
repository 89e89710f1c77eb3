// formats::hadamard_rotate over a run of groups: the same sums in the same order.
#if defined(PESTLE_SIMD_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_HADAMARD_INL_H_
#undef PESTLE_SIMD_HADAMARD_INL_H_
#else
#define PESTLE_SIMD_HADAMARD_INL_H_
#endif

#include "backends/cpu/simd/convert-inl.h"
#include "formats/hadamard.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX2
// One butterfly on four vectors, and the norm (1 until the last stage).
template <class V>
HWY_INLINE void butterfly(V& a, V& b, V& c, V& d, V norm) {
  const V sum = hn::Add(a, b);
  const V v0 = hn::Sub(hn::Add(sum, c), d);
  const V v1 = hn::Add(hn::Sub(sum, c), d);
  const V v2 = hn::Add(hn::Add(hn::Sub(a, b), c), d);
  const V v3 = hn::Add(hn::Add(hn::Sub(b, a), c), d);
  a = hn::Mul(v0, norm);
  b = hn::Mul(v1, norm);
  c = hn::Mul(v2, norm);
  d = hn::Mul(v3, norm);
}

// The stage at distance t >= lanes of D, over [v, v + count).
template <class D>
HWY_INLINE void hadamard_stage(D d, float* v, int64_t count, int64_t t, float norm) {
  const auto scale = hn::Set(d, norm);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t base = 0; base < count; base += 4 * t) {
    for (float* p = v + base; p < v + base + t; p += lanes) {
      auto a = hn::LoadU(d, p), b = hn::LoadU(d, p + t);
      auto c = hn::LoadU(d, p + 2 * t), e = hn::LoadU(d, p + 3 * t);
      butterfly(a, b, c, e, scale);
      hn::StoreU(a, d, p);
      hn::StoreU(b, d, p + t);
      hn::StoreU(c, d, p + 2 * t);
      hn::StoreU(e, d, p + 3 * t);
    }
  }
}

// The stage at distance 1: vectors of a, b, c and d are gathered from 4 * lanes neighbours.
template <class D>
HWY_INLINE int64_t hadamard_first(D d, float* v, int64_t begin, int64_t count, float norm) {
  const auto scale = hn::Set(d, norm);
  const auto step = static_cast<int64_t>(4 * hn::Lanes(d));
  int64_t i = begin;
  for (; i + step <= count; i += step) {
    hn::Vec<D> a, b, c, e;
    hn::LoadInterleaved4(d, v + i, a, b, c, e);
    butterfly(a, b, c, e, scale);
    hn::StoreInterleaved4(a, b, c, e, d, v + i);
  }
  return i;
}
#endif

// Rotates groups of n in place; count is a multiple of n.
inline void hadamard_run(float* v, int64_t count, int64_t n) {
#if HWY_TARGET <= HWY_AVX2
  const float norm = formats::hadamard_norm(n);
  const hn::CappedTag<float, 4> d4;
  const float first_norm = n == 4 ? norm : 1.0f;
  int64_t done = hadamard_first(DF(), v, 0, count, first_norm);
  done = hadamard_first(d4, v, done, count, first_norm);
  // Fewer than 16 are left only of groups of 4.
  for (; done < count; done += 4) formats::hadamard_rotate(v + done, 4);
  if (n >= 16) hadamard_stage(d4, v, count, 4, n == 16 ? norm : 1.0f);
  for (int64_t t = 16; t < n; t *= 4) {
    hadamard_stage(DF(), v, count, t, 4 * t == n ? norm : 1.0f);
  }
#else
  for (int64_t i = 0; i < count; i += n) formats::hadamard_rotate(v + i, n);
#endif
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_HADAMARD_INL_H_
