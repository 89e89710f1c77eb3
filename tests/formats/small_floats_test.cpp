// E4M3, E5M2, E2M1, E8M0, bf16 and f16: every code, every 16-bit input, every rounding tie.
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/codes_by_sum.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/e8m0.h"
#include "tests/formats/oracle.h"

namespace pestle::formats {
namespace {

using oracle::SmallFloat;

template <class F>
void check_all_codes(const SmallFloat& f, uint32_t codes) {
  for (uint32_t c = 0; c < codes; ++c) {
    const auto code = static_cast<uint8_t>(c);
    const uint32_t magnitude = c & ((1u << F::kSignShift) - 1);
    const bool negative = (c >> F::kSignShift) != 0;
    const float value = f32_from_code<F>(code);
    if (magnitude <= f.max_code) {
      EXPECT_EQ(std::fabs(static_cast<double>(value)), f.value(magnitude)) << c;
      EXPECT_EQ(std::signbit(value), negative) << c;
      EXPECT_EQ(code_from_f32<F>(value), code) << c;
    } else if (f.has_inf && magnitude == f.max_code + 1) {
      EXPECT_TRUE(std::isinf(value)) << c;
      EXPECT_EQ(std::signbit(value), negative) << c;
      EXPECT_EQ(code_from_f32<F>(value), f.max_code | (negative ? 0x80u : 0u)) << c;
    } else {
      EXPECT_EQ(bits_from_f32(value), 0x7FC00000u) << c;
      EXPECT_EQ(code_from_f32<F>(value), 0x7F) << c;
    }
  }
}

TEST(SmallFloats, EveryCodeDecodesAndReturns) {
  check_all_codes<E4m3>(oracle::kE4m3, 256);
  check_all_codes<E5m2>(oracle::kE5m2, 256);
  check_all_codes<E2m1>(oracle::kE2m1, 16);
}

TEST(SmallFloats, NamedFunctionsAreTheTraits) {
  for (uint32_t c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    EXPECT_EQ(bits_from_f32(f32_from_e4m3(code)), bits_from_f32(f32_from_code<E4m3>(code)));
    EXPECT_EQ(bits_from_f32(f32_from_e5m2(code)), bits_from_f32(f32_from_code<E5m2>(code)));
    EXPECT_EQ(bits_from_f32(f32_from_e2m1(code)), bits_from_f32(f32_from_code<E2m1>(c & 15)));
  }
  EXPECT_EQ(E4m3::kMax, f32_from_e4m3(0x7E));
  EXPECT_EQ(E5m2::kMax, f32_from_e5m2(0x7B));
  EXPECT_EQ(E2m1::kMax, f32_from_e2m1(0x7));
}

template <class F>
void check_hard_inputs(const SmallFloat& f) {
  for (const float x : oracle::hard_inputs(f)) {
    const uint8_t want = oracle::code(f, F::kSignShift, F::kNanCode, x);
    ASSERT_EQ(code_from_f32<F>(x), want) << x << " bits " << oracle::bits(x);
  }
}

TEST(SmallFloats, EverySixteenBitInputAndEveryTie) {
  check_hard_inputs<E4m3>(oracle::kE4m3);
  check_hard_inputs<E5m2>(oracle::kE5m2);
  check_hard_inputs<E2m1>(oracle::kE2m1);
}

template <class F>
void check_random_f32(const SmallFloat& f, uint64_t seed) {
  oracle::Random random(seed);
  for (int i = 0; i < 400000; ++i) {
    const float x = oracle::from_bits(random.u32());
    ASSERT_EQ(code_from_f32<F>(x), oracle::code(f, F::kSignShift, F::kNanCode, x))
        << oracle::bits(x);
  }
}

TEST(SmallFloats, RandomF32) {
  check_random_f32<E4m3>(oracle::kE4m3, 1);
  check_random_f32<E5m2>(oracle::kE5m2, 2);
  check_random_f32<E2m1>(oracle::kE2m1, 3);
}

template <class F>
void check_rounded_magnitudes() {
  // Of all signs and exponents below 107, every fraction of 11 bits, with ties and what lies beside
  // them below, and the largest fractions.
  for (uint32_t high = 0; high < 1u << 20; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7FFu, 0x800u, 0x801u, 0xFF1u, 0xFF8u, 0xFFFu}) {
      const float x = oracle::from_bits(high << 12 | low);
      if (!(std::fabs(x) < 0x1p107f)) continue;
      const float rule = std::fabs(f32_from_code<F>(code_from_f32<F>(x)));
      ASSERT_EQ(std::min(rounded_magnitude<F>(x), F::kMax), rule) << oracle::bits(x);
    }
  }
}

TEST(SmallFloats, RoundedMagnitudesAreTheRules) {
  check_rounded_magnitudes<E4m3>();
  check_rounded_magnitudes<E5m2>();
}

TEST(SmallFloats, EdgesByHand) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(e4m3_from_f32(448.0f), 0x7E);
  EXPECT_EQ(e4m3_from_f32(464.0f), 0x7E);  // the tie that torch sends to NaN
  EXPECT_EQ(e4m3_from_f32(inf), 0x7E);
  EXPECT_EQ(e4m3_from_f32(-inf), 0xFE);
  EXPECT_EQ(e4m3_from_f32(-0.0f), 0x80);
  EXPECT_EQ(e4m3_from_f32(0x1p-10f), 0x00);  // half of the smallest subnormal: tie to even
  EXPECT_EQ(e4m3_from_f32(-0x1.8p-10f), 0x81);
  EXPECT_EQ(e4m3_from_f32(0x1.8p-9f), 0x02);  // 1.5 ulp: tie to even, upwards
  EXPECT_EQ(e5m2_from_f32(inf), 0x7B);
  EXPECT_EQ(e5m2_from_f32(-1e30f), 0xFB);
  EXPECT_EQ(e2m1_from_f32(5.0f), 0x6);  // tie between 4 and 6
  EXPECT_EQ(e2m1_from_f32(0.25f), 0x0);
  EXPECT_EQ(e2m1_from_f32(-0.25f), 0x8);
  EXPECT_EQ(e2m1_from_f32(0.75f), 0x2);
  EXPECT_EQ(e2m1_from_f32(-inf), 0xF);
  EXPECT_EQ(e2m1_from_f32(-std::numeric_limits<float>::quiet_NaN()), 0x7);
  EXPECT_EQ(e4m3_from_f32(oracle::from_bits(0xFF800001u)), 0x7F);
}

TEST(E8m0, EveryCode) {
  for (int c = 0; c < 255; ++c) {
    const auto code = static_cast<uint8_t>(c);
    EXPECT_EQ(static_cast<double>(f32_from_e8m0(code)), std::ldexp(1.0, c - 127)) << c;
    EXPECT_EQ(static_cast<double>(e8m0_inverse(code)), std::ldexp(1.0, 127 - c)) << c;
  }
  EXPECT_EQ(bits_from_f32(f32_from_e8m0(0)), 0x00400000u);
  EXPECT_EQ(bits_from_f32(f32_from_e8m0(255)), 0x7FC00000u);
  EXPECT_EQ(bits_from_f32(e8m0_inverse(255)), 0x7FC00000u);
}

TEST(Halves, EveryCodeDecodesAndReturns) {
  for (uint32_t c = 0; c < 65536; ++c) {
    const auto code = static_cast<uint16_t>(c);
    const float b = f32_from_bf16(code);
    const float h = f32_from_f16(code);
    if (std::isnan(oracle::bf16_value(code))) {
      EXPECT_TRUE(std::isnan(b));
      EXPECT_EQ(bf16_from_f32(b), 0x7FC0) << c;
    } else {
      EXPECT_EQ(oracle::bits(b), oracle::bits(oracle::bf16_value(code)));
      EXPECT_EQ(bf16_from_f32(b), code);
    }
    if (std::isnan(oracle::f16_value(code))) {
      EXPECT_EQ(oracle::bits(h), 0x7FC00000u);
      EXPECT_EQ(f16_from_f32(h), 0x7E00) << c;
    } else {
      EXPECT_EQ(oracle::bits(h), oracle::bits(oracle::f16_value(code)));
      EXPECT_EQ(f16_from_f32(h), code);
    }
  }
}

// Between each finite magnitude and the next (Inf last, at the place the next finite one would
// have), the tie goes to the even code and its f32 neighbours to their own side.
TEST(Halves, EveryTieRoundsToEven) {
  const float inf = std::numeric_limits<float>::infinity();
  for (uint32_t c = 0; c < 0x7F80u; ++c) {
    const float tie = oracle::from_bits((c << 16) | 0x8000u);
    EXPECT_EQ(bf16_from_f32(tie), c + (c & 1)) << c;
    EXPECT_EQ(bf16_from_f32(std::nextafterf(tie, 0.0f)), c) << c;
    EXPECT_EQ(bf16_from_f32(-std::nextafterf(tie, inf)), (c + 1) | 0x8000u) << c;
  }
  for (uint32_t c = 0; c < 0x7C00u; ++c) {
    const double here = oracle::kF16.value(c);
    const double tie = (here + (c < 0x7BFFu ? oracle::kF16.value(c + 1) : 65536.0)) / 2;
    const auto t = static_cast<float>(tie);
    ASSERT_EQ(static_cast<double>(t), tie);
    EXPECT_EQ(f16_from_f32(t), c + (c & 1)) << c;
    EXPECT_EQ(f16_from_f32(std::nextafterf(t, 0.0f)), c) << c;
    EXPECT_EQ(f16_from_f32(-std::nextafterf(t, inf)), (c + 1) | 0x8000u) << c;
  }
}

TEST(FloatBits, AmaxKeepsNanAndIgnoresOrder) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = -std::numeric_limits<float>::quiet_NaN();
  const float forward[] = {1.0f, nan, -inf, 2.0f};
  const float backward[] = {2.0f, -inf, nan, 1.0f};
  EXPECT_TRUE(abs_is_nan(amax_bits(forward, 4)));
  EXPECT_EQ(amax_bits(forward, 4), amax_bits(backward, 4));
  EXPECT_EQ(amax_bits(forward, 1), oracle::bits(1.0f));
  EXPECT_EQ(amax_bits(forward + 2, 2), oracle::bits(inf));
  EXPECT_EQ(amax_bits(forward, 0), 0u);
  const float zeros[] = {-0.0f, 0.0f};
  EXPECT_EQ(amax_bits(zeros, 2), 0u);
}

TEST(FloatBits, RoundClampIsNearestEvenThenClamp) {
  for (int twice = -600; twice <= 600; ++twice) {
    const float tie = static_cast<float>(twice) * 0.5f;
    for (const float v : {tie, std::nextafterf(tie, 1e9f), std::nextafterf(tie, -1e9f)}) {
      const double rounded = std::nearbyint(static_cast<double>(v));
      const double want = rounded < -128 ? -128 : rounded > 127 ? 127 : rounded;
      EXPECT_EQ(round_clamp(v, -128, 127), static_cast<int32_t>(want)) << v;
    }
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(round_clamp(inf, -8, 7), 7);
  EXPECT_EQ(round_clamp(-inf, -8, 7), -8);
  EXPECT_EQ(round_clamp(std::numeric_limits<float>::quiet_NaN(), -8, 7), 0);
  EXPECT_EQ(round_clamp(0x1p-149f, -8, 7), 0);
}

}  // namespace
}  // namespace pestle::formats
