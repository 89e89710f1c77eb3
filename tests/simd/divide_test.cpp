// The fused division of divide-inl.h against IEEE division, the vector Philox against the scalar.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/divide_test.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/divide-inl.h"
#include "backends/cpu/simd/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::testing::HWY_NAMESPACE {
namespace simd = pestle::cpu::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;

// Quotients of the magnitudes x (count: a multiple of 16) that differ from those of division.
int64_t wrong_quotients(const float* x, int64_t count, float scale) {
  const auto divider = simd::Divider::by<simd::Bf16>(scale);
  if (!divider.fast()) return HWY_TARGET <= HWY_AVX2 ? -1 : 0;
  const auto quotient = divider.fast_form();
  const simd::VF by = hn::Set(simd::DF(), scale);
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; i += simd::kN) {
    const simd::VF v = simd::F32::load(x + i);
    const simd::VF expected = hn::Div(v, by);
    const auto same = hn::And(hn::Eq(quotient(v), expected),
                              hn::Eq(quotient.of_signed(hn::Neg(v)), hn::Neg(expected)));
    wrong += static_cast<int64_t>(simd::kN - hn::CountTrue(simd::DF(), same));
  }
  return wrong;
}

// Codes beyond the cap and of NaN: x = Inf and NaN, then 2^17 scales and more.
void extreme_quotients(float scale, float* out) {
  HWY_ALIGN const float x[16] = {INFINITY, NAN, 3.0e38f, 0.0f};
  const auto divider = simd::Divider::by<simd::Bf16>(scale);
  for (size_t i = 0; i < 16; i += simd::kN) {
    const simd::VF v = simd::F32::load(x + i);
    simd::F32::store(divider.fast() ? divider.fast_form()(v) : hn::Div(v, divider.scale()),
                     out + i);
  }
}

void random_bits(uint64_t seed, uint64_t first, int64_t count, uint16_t* out) {
  simd::RandomBits random;
  std::memcpy(out, simd::fill_random(seed, first, count, random),
              static_cast<size_t>(count) * sizeof(uint16_t));
}

}  // namespace pestle::testing::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#if defined(HWY_COMPILE_ONLY_STATIC) && HWY_ARCH_X86
// A build for one target is one of vectors (PESTLE_SIMD_ARCH).
static_assert(HWY_STATIC_TARGET <= HWY_AVX2);
#endif

#include <cmath>
#include <random>
#include <vector>

#include "tests/simd/simd_test_util.h"

namespace pestle::testing {
namespace {

HWY_EXPORT(wrong_quotients);
HWY_EXPORT(extreme_quotients);
HWY_EXPORT(random_bits);

// All significands of `bits` bits, in [1, 2).
std::vector<float> significands(int bits) {
  std::vector<float> all;
  for (uint32_t m = 0; m < 1u << (bits - 1); ++m) {
    all.push_back(formats::f32_from_bits(0x3F800000u | m << (24 - bits)));
  }
  return all;
}

// Scaling x or s by a power of two scales every step, so significands are all there is to try:
// 2^33 pairs of f16 (which include bf16's), seconds with AVX-512. Instrumented builds try fewer.
TEST(DivideSimd, EverySignificandByEveryScale) {
  const std::vector<float> x = significands(11);
  const auto count = static_cast<int64_t>(x.size());
#ifdef __OPTIMIZE__
  const uint32_t step = best_isa() == Isa::kAvx512 ? 1 : 7;
#else
  const uint32_t step = 101;
#endif
  for (uint32_t m = 0; m < 1u << 23; m += step) {
    const float scale = formats::f32_from_bits(0x3F800000u | m);
    ASSERT_EQ(HWY_DYNAMIC_DISPATCH(wrong_quotients)(x.data(), count, scale), 0) << m;
  }
}

// Every magnitude of bf16 and f16 by scales over the whole range that takes the fast form, where
// the quotient is one that any code tells from 0 and from the largest.
TEST(DivideSimd, EveryMagnitudeByScalesOfEveryExponent) {
  for_each_isa([] {
    std::mt19937 random(3);
    for (int exponent = -60; exponent < 60; ++exponent) {
      const float scale =
          std::ldexp(1.0f + static_cast<float>(random() % 8388608) / 8388608.0f, exponent);
      std::vector<float> x;
      for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
        for (float v : {formats::f32_from_bf16(static_cast<uint16_t>(bits)),
                        formats::f32_from_f16(static_cast<uint16_t>(bits))}) {
          const float ratio = v / scale;
          if (ratio >= 0x1p-40f && ratio <= 0x1p17f) x.push_back(v);
        }
      }
      x.resize((x.size() + 15) / 16 * 16, scale);
      const auto count = static_cast<int64_t>(x.size());
      ASSERT_EQ(HWY_DYNAMIC_DISPATCH(wrong_quotients)(x.data(), count, scale), 0) << exponent;
    }
  });
}

TEST(DivideSimd, BeyondTheCapStaysBeyondEveryCode) {
  for_each_isa([] {
    for (float scale : {0x1p-60f, 1.3e-9f, 1.0f, 77.0f, 0x1p60f}) {
      float out[16];
      HWY_DYNAMIC_DISPATCH(extreme_quotients)(scale, out);
      EXPECT_GE(out[0], 0x1p17f);
      EXPECT_TRUE(std::isnan(out[1]));
      EXPECT_GE(out[2], 0x1p17f);
      EXPECT_EQ(out[3], 0.0f);
    }
  });
}

TEST(PhiloxSimd, SameBitsAsTheScalarCode) {
  for_each_isa([] {
    const uint64_t seed = 0x123456789ABCDEF0u;
    // The last starts make block counters cross 2^32.
    for (uint64_t first :
         {0ull, 1ull, 7ull, 8ull, 12345ull, (1ull << 35) - 9, (1ull << 35) - 300}) {
      for (int64_t count : {1, 8, 9, 127, 512}) {
        uint16_t bits[512];
        HWY_DYNAMIC_DISPATCH(random_bits)(seed, first, count, bits);
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(bits[i], formats::philox_u16(seed, first + static_cast<uint64_t>(i)))
              << first << " + " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace pestle::testing
#endif  // HWY_ONCE
