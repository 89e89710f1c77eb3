// Philox against its authors' published answers; stochastic rounding against its rule in double.
#include <gtest/gtest.h>

#include <array>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/philox.h"
#include "formats/stochastic.h"
#include "tests/formats/oracle.h"

namespace pestle::formats {
namespace {

void expect_words(const PhiloxWords& got, std::array<uint32_t, 4> want) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.w[i], want[i]) << i;
}

// The known-answer vectors of Random123 for philox4x32, 10 rounds.
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32_10({{0, 0, 0, 0}}, 0, 0),
               {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_words(
      philox4x32_10({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff),
      {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_words(
      philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, ElementsOfABlock) {
  // Block 0 under seed 0 is the first known answer; element i takes its halves from low to high.
  const std::array<uint16_t, 8> want = {0xe8d5, 0x6627, 0xc58d, 0xe169,
                                        0xac4c, 0xbc57, 0xdbd8, 0x9b00};
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(philox_u16(0, i), want[i]) << i;
  // Block, seed halves and the upper counter word all matter.
  const uint64_t far = (uint64_t{1} << 40) + 5;
  EXPECT_EQ(philox_u16(7, far * 8 + 3), philox_lane(philox_block(7, far), 3));
  expect_words(philox_block(0x299f31d0a4093822u, 0x85a308d3243f6a88u), [] {
    const PhiloxWords w = philox4x32_10({{0x243f6a88, 0x85a308d3, 0, 0}}, 0xa4093822, 0x299f31d0);
    return std::array<uint32_t, 4>{w.w[0], w.w[1], w.w[2], w.w[3]};
  }());
  EXPECT_NE(philox_u16(1, 0), philox_u16(0, 0));
}

// The magnitude rule: with lo <= |v| < hi neighbouring codes and p = (|v| - lo) / (hi - lo), up
// iff floor(p * 65536) + u >= 65536. Beyond the largest finite code: that code.
uint32_t stochastic_by_rule(const oracle::SmallFloat& f, double v, uint32_t u) {
  uint32_t lo = 0;
  uint32_t hi = f.max_code;
  if (v >= f.value(hi)) return hi;
  while (hi - lo > 1) {
    const uint32_t mid = (lo + hi) / 2;
    (f.value(mid) <= v ? lo : hi) = mid;
  }
  const double p = (v - f.value(lo)) / (f.value(hi) - f.value(lo));
  return std::floor(p * 65536.0) + u >= 65536.0 ? hi : lo;
}

template <class F>
void check_stochastic(const oracle::SmallFloat& f, float x, uint16_t u) {
  const uint8_t got = code_stochastic<F>(x, u);
  if (std::isnan(x)) {
    ASSERT_EQ(got, F::kNanCode);
    return;
  }
  const uint32_t magnitude = stochastic_by_rule(f, std::fabs(static_cast<double>(x)), u);
  ASSERT_EQ(got, magnitude | (std::signbit(x) ? 1u << F::kSignShift : 0u)) << x << " u " << u;
}

template <class F>
void check_stochastic_inputs(const oracle::SmallFloat& f) {
  oracle::Random random(23);
  for (const float x : oracle::hard_inputs(f)) {
    for (const uint32_t u : {0u, 1u, 0x7FFFu, 0x8000u, 0xFFFEu, 0xFFFFu}) {
      check_stochastic<F>(f, x, static_cast<uint16_t>(u));
    }
    check_stochastic<F>(f, x, random.u16());
  }
}

TEST(Stochastic, EverySixteenBitInputAndTie) {
  check_stochastic_inputs<E4m3>(oracle::kE4m3);
  check_stochastic_inputs<E5m2>(oracle::kE5m2);
  check_stochastic_inputs<E2m1>(oracle::kE2m1);
}

TEST(Stochastic, EveryRandomValue) {
  for (uint32_t u = 0; u < 65536; ++u) {
    for (const float x : {1.0f, 1.06f, -1.7f, 0.013f, -0x1p-8f, 0x1p-20f, 0x1p-24f, 0x1p-25f,
                          447.9f, 0.3f, 0x1p-130f}) {
      check_stochastic<E4m3>(oracle::kE4m3, x, static_cast<uint16_t>(u));
      check_stochastic<E5m2>(oracle::kE5m2, x, static_cast<uint16_t>(u));
      check_stochastic<E2m1>(oracle::kE2m1, x, static_cast<uint16_t>(u));
    }
  }
}

TEST(Stochastic, ByHand) {
  EXPECT_EQ(e4m3_from_f32(1.125f), 0x39);
  // A quarter of the way from 1 to 1.125: up for a quarter of the random values.
  int ups = 0;
  for (uint32_t u = 0; u < 65536; ++u) {
    ups += code_stochastic<E4m3>(1.03125f, static_cast<uint16_t>(u)) == 0x39 ? 1 : 0;
  }
  EXPECT_EQ(ups, 16384);
  EXPECT_EQ(code_stochastic<E4m3>(-0.0f, 0xFFFF), 0x80);
  EXPECT_EQ(code_stochastic<E4m3>(std::numeric_limits<float>::infinity(), 0), 0x7E);
  EXPECT_EQ(code_stochastic<E5m2>(-60000.0f, 0xFFFF), 0xFB);
  EXPECT_EQ(code_stochastic_byte<E4m3>(1.03125f, 191), 0x38);
  EXPECT_EQ(code_stochastic_byte<E4m3>(1.03125f, 192), 0x39);
  EXPECT_EQ(code_stochastic_byte<E4m3>(1e6f, 0), 0x7E);               // f16 makes it Inf first
  EXPECT_EQ(code_stochastic_byte<E4m3>(1.0f + 0x1p-12f, 255), 0x38);  // and this one 1
}

TEST(Stochastic, IntegersByTheirFloor) {
  oracle::Random random(31);
  for (int i = 0; i < 400000; ++i) {
    const float t = (random.uniform() - 0.5f) * 300.0f;
    const uint16_t u = random.u16();
    const double down = std::floor(static_cast<double>(t));
    const auto part = static_cast<float>(static_cast<double>(t) - down);
    const double q = down + (static_cast<double>(u) < part * 65536.0 ? 1 : 0);
    const double want = q < -128 ? -128 : q > 127 ? 127 : q;
    ASSERT_EQ(int_stochastic(t, u, -128, 127), static_cast<int32_t>(want)) << t << " " << u;
  }
  EXPECT_EQ(int_stochastic(3.0f, 0, -8, 7), 3);
  EXPECT_EQ(int_stochastic(-3.0f, 0, -8, 7), -3);
  EXPECT_EQ(int_stochastic(-2.5f, 0x7FFF, -8, 7), -2);
  EXPECT_EQ(int_stochastic(-2.5f, 0x8000, -8, 7), -3);
  EXPECT_EQ(int_stochastic(-1e-10f, 0xFFFF, -8, 7), 0);
  EXPECT_EQ(int_stochastic(1e30f, 0, -8, 7), 7);
  EXPECT_EQ(int_stochastic(-1e30f, 0, -8, 7), -8);
  EXPECT_EQ(int_stochastic(std::numeric_limits<float>::quiet_NaN(), 0, -8, 7), 0);
}

}  // namespace
}  // namespace pestle::formats
