// The data has the properties that its names promise, and is the same everywhere.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backends/cpu/parallel.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/float_bits.h"
#include "harness/data.h"
#include "harness/timing.h"

namespace pestle::harness {
namespace {

std::vector<float> floats(Meaning meaning, Dist dist, uint64_t seed, int64_t count = 100'000) {
  std::vector<float> values(static_cast<size_t>(count));
  fill(values.data(), DType::kF32, count, meaning, dist, seed);
  return values;
}

TEST(Data, SameForAnyThreadCount) {
  for (Dist dist : {Dist::kNormal, Dist::kSpecial, Dist::kBytes}) {
    cpu::set_threads(1);
    std::vector<uint16_t> one(300'001);
    fill(one.data(), DType::kBF16, 300'001, Meaning::kValues, dist, 7);
    cpu::set_threads(3);
    std::vector<uint16_t> three(300'001);
    fill(three.data(), DType::kBF16, 300'001, Meaning::kValues, dist, 7);
    EXPECT_EQ(one, three);
    fill(three.data(), DType::kBF16, 300'001, Meaning::kValues, dist, 8);
    EXPECT_NE(one, three);
  }
  cpu::set_threads(0);
}

TEST(Data, NormalHasItsMoments) {
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  const auto values = floats(Meaning::kValues, Dist::kNormal, 3);
  for (double v : values) {
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.2);
}

TEST(Data, ZerosAreOfBothSigns) {
  int negative = 0;
  for (float v : floats(Meaning::kValues, Dist::kZeros, 3, 1000)) {
    EXPECT_EQ(v, 0);
    negative += std::signbit(v);
  }
  EXPECT_NEAR(negative, 500, 100);
}

TEST(Data, SubnormalsAreSmall) {
  for (float v : floats(Meaning::kValues, Dist::kSubnormal, 3, 1000)) {
    EXPECT_LT(std::fabs(v), 0x1p-125f);
  }
  std::vector<uint16_t> halves(1000);
  fill(halves.data(), DType::kF16, 1000, Meaning::kValues, Dist::kSubnormal, 3);
  for (uint16_t h : halves) EXPECT_LT(std::fabs(formats::f32_from_f16(h)), 0x1p-13f);
}

TEST(Data, SpecialMixesEverythingInByFlavour) {
  for (uint64_t seed : {4, 5, 6, 7}) {
    int nan = 0, inf = 0, subnormal = 0, negative_zero = 0, largest = 0;
    for (float v : floats(Meaning::kValues, Dist::kSpecial, seed)) {
      nan += std::isnan(v);
      inf += std::isinf(v);
      subnormal += v != 0 && std::fabs(v) < 0x1p-126f;
      negative_zero += v == 0 && std::signbit(v);
      largest += std::fabs(v) == 0x1.fffffep127f;
    }
    EXPECT_EQ(nan > 0, seed % kSpecialFlavours == 0 || seed % kSpecialFlavours == 3);
    EXPECT_EQ(inf > 0, seed % kSpecialFlavours <= 1);
    EXPECT_EQ(negative_zero > 0, seed % kSpecialFlavours != kNanFlavour);
    EXPECT_EQ(subnormal > 0, seed % kSpecialFlavours != kNanFlavour);
    EXPECT_EQ(largest > 0, seed % kSpecialFlavours != kNanFlavour);
  }
}

TEST(Data, ScalesArePositive) {
  for (float v : floats(Meaning::kScales, Dist::kNormal, 3)) {
    EXPECT_GE(v, 0x1p-9f);
    EXPECT_LT(v, 0x1p-5f);
  }
  std::vector<uint8_t> codes(10'000);
  fill(codes.data(), DType::kE4M3, 10'000, Meaning::kScales, Dist::kNormal, 3);
  for (uint8_t c : codes) EXPECT_GT(formats::f32_from_code<formats::E4m3>(c), 0);
}

TEST(Data, CodesCoverTheirFormat) {
  for (DType dtype : {DType::kE4M3, DType::kE5M2}) {
    std::vector<uint8_t> codes(100'000);
    fill(codes.data(), dtype, 100'000, Meaning::kCodes, Dist::kNormal, 3);
    std::vector<bool> seen(256);
    for (uint8_t c : codes) seen[c] = true;
    for (int c = 0; c < 256; ++c) {
      const auto code = static_cast<uint8_t>(c);
      const float value = dtype == DType::kE4M3 ? formats::f32_from_code<formats::E4m3>(code)
                                                : formats::f32_from_code<formats::E5m2>(code);
      EXPECT_EQ(seen[static_cast<size_t>(c)], std::isfinite(value)) << c;
    }
  }
}

TEST(Data, CodebooksAscend) {
  const auto values = floats(Meaning::kCodebook, Dist::kSpecial, 9, 16);
  for (size_t i = 1; i < 16; ++i) EXPECT_LT(values[i - 1], values[i]);
}

TEST(Data, TargetsAreClassesOfEverySize) {
  std::vector<int64_t> targets(10'000);
  const auto count = static_cast<int64_t>(targets.size());
  fill(targets.data(), DType::kI64, count, Meaning::kIndices, Dist::kNormal, 3);
  int ignored = 0, small = 0, large = 0;
  for (int64_t t : targets) {
    EXPECT_TRUE(t == -100 || (t >= 0 && t < 65536)) << t;
    ignored += t == -100;
    small += t >= 0 && t < 100;
    large += t >= 20'000;
  }
  EXPECT_GT(ignored, 300);
  EXPECT_GT(small, 1000);
  EXPECT_GT(large, 100);
  EXPECT_EQ(meaning_of(input("target", "i64", "M", ""), DType::kI64), Meaning::kIndices);
}

TEST(Timing, MedianAndInterval) {
  const Timing odd = summarize({5, 1, 4, 2, 3});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.low, 1);
  EXPECT_EQ(odd.high, 5);
  const Timing even = summarize({1, 2, 3, 10});
  EXPECT_EQ(even.median, 2.5);
  std::vector<double> many(400, 2.0);
  for (size_t i = 0; i < 150; ++i) many[i] = 1 + static_cast<double>(i) / 1000;
  EXPECT_EQ(summarize(many).median, 2);
  EXPECT_EQ(summarize(many).spread(), 0);
}

TEST(Timing, RatioOfNeighbours) {
  const Timing ratio = paired_ratio(summarize({2, 20, 200}), summarize({1, 10, 100}));
  EXPECT_EQ(ratio.median, 2);
  EXPECT_EQ(ratio.low, 2);
  EXPECT_EQ(ratio.high, 2);
}

}  // namespace
}  // namespace pestle::harness
