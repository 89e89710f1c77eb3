// W4A8: the codebook quantiser step by step in double-checked f32, its quality, and its edges.
#include <gtest/gtest.h>

#include <set>

#include "formats/w4a8.h"
#include "tests/formats/oracle.h"

namespace pestle::formats {
namespace {

W4a8Table default_table() {
  float levels[16];
  w4a8_default_codebook(levels);
  return w4a8_table(levels);
}

// Nearest level with ties to the lower index, in double; only for tables without ties by rounding.
int nearest_index(const float* levels, double v) {
  int best = 0;
  for (int i = 1; i < 16; ++i) {
    if (std::fabs(v - levels[i]) < std::fabs(v - levels[best])) best = i;
  }
  return best;
}

TEST(W4a8, CodebookIsAscendingAndNearlyOdd) {
  const W4a8Table t = default_table();
  for (int i = 0; i < 15; ++i) EXPECT_LT(t.level[i], t.level[i + 1]);
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(t.level[i], -t.level[15 - i], 0.003f);
}

TEST(W4a8, IndexIsNearestWithTiesDown) {
  const W4a8Table t = default_table();
  for (uint32_t b = 0; b < 65536; ++b) {
    const float v = oracle::f16_value(static_cast<uint16_t>(b));
    if (std::isnan(v)) {
      EXPECT_EQ(w4a8_index(t, v), 0);
    } else if (std::isfinite(v)) {
      EXPECT_EQ(w4a8_index(t, v), nearest_index(t.level, v)) << v;
    }
  }
  float integers[16];
  for (int i = 0; i < 16; ++i) integers[i] = static_cast<float>(3 * i - 20);
  const W4a8Table grid = w4a8_table(integers);
  for (int twice = -60; twice <= 70; ++twice) {
    const float v = static_cast<float>(twice) * 0.5f;
    EXPECT_EQ(w4a8_index(grid, v), nearest_index(integers, v)) << v;
  }
}

TEST(W4a8, SumFoldsHalves) {
  oracle::Random random(51);
  for (int round = 0; round < 1000; ++round) {
    float p[16];
    float q[16];
    for (int i = 0; i < 16; ++i) p[i] = q[i] = random.normal();
    const auto add = [](float a, float b) { return a + b; };
    float s8[8];
    for (int i = 0; i < 8; ++i) s8[i] = add(q[i], q[i + 8]);
    const float want =
        add(add(add(s8[0], s8[4]), add(s8[2], s8[6])), add(add(s8[1], s8[5]), add(s8[3], s8[7])));
    EXPECT_EQ(w4a8_sum(p), want);
  }
}

TEST(W4a8, FitIsTwoRoundsOfLeastSquares) {
  const W4a8Table t = default_table();
  oracle::Random random(52);
  for (int round = 0; round < 5000; ++round) {
    float x[16];
    float amax = 0;
    for (float& v : x) {
      v = random.normal();
      amax = std::fmax(amax, std::fabs(v));
    }
    double scale = amax;
    int assigned[16];
    for (int pass = 0; pass < 3; ++pass) {
      double num = 0;
      double den = 0;
      for (int i = 0; i < 16; ++i) {
        assigned[i] = w4a8_index(t, oracle::f32_div(x[i], static_cast<float>(scale)));
        num += static_cast<double>(x[i]) * t.level[assigned[i]];
        den += static_cast<double>(t.level[assigned[i]]) * t.level[assigned[i]];
      }
      if (pass < 2) scale = num / den;
    }
    const W4a8Fit fit = w4a8_fit_group(x, t);
    ASSERT_NEAR(fit.scale / scale, 1.0, 1e-5);
    double peak = 0;
    for (const int a : assigned) peak = std::fmax(peak, std::fabs(t.level[a] * scale));
    ASSERT_NEAR(f32_from_bits(fit.peak) / peak, 1.0, 1e-5);
  }
}

struct Row {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> s_rel;
  float channel;
};

Row quantize(const std::vector<float>& x, const W4a8Table& t) {
  const auto k = static_cast<int64_t>(x.size());
  Row row{std::vector<uint8_t>(x.size()), std::vector<uint8_t>(x.size() / 16), 0.0f};
  std::vector<float> fitted(x.size() / 16);
  row.channel =
      w4a8_quantize_row(x.data(), k, t, row.codes.data(), row.s_rel.data(), fitted.data());
  return row;
}

float decode(const Row& row, size_t i, const W4a8Table& t) {
  return w4a8_dequantize(row.codes[i], t, row.s_rel[i / 16], row.channel);
}

TEST(W4a8, EveryCodeIsTheNearestDecodedValue) {
  const W4a8Table t = default_table();
  oracle::Random random(53);
  double error = 0;
  double norm = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> x(512);
    for (float& v : x) v = random.normal() * 0.02f;
    const Row row = quantize(x, t);
    for (size_t i = 0; i < x.size(); ++i) {
      const double target = oracle::f32_div(x[i], row.channel);
      const double s_rel = oracle::kE4m3.value(row.s_rel[i / 16]);
      double best = 1e30;
      double mine = 0;
      for (int c = 0; c < 16; ++c) {
        const double level = std::nearbyint(oracle::f32_mul(t.level[c], static_cast<float>(s_rel)));
        best = std::fmin(best, std::fabs(target - level));
        if (c == row.codes[i]) mine = std::fabs(target - level);
      }
      ASSERT_EQ(mine, best);
      const double d = decode(row, i, t) - x[i];
      error += d * d;
      norm += static_cast<double>(x[i]) * x[i];
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 0.075);  // a normal variable gives 0.073
  EXPECT_GT(std::sqrt(error / norm), 0.06);   // below the 4-bit limit something is wrong
}

TEST(W4a8, ZeroRowsAndZeroGroupsDecodeToZero) {
  const W4a8Table t = default_table();
  const Row zero = quantize(std::vector<float>(64, 0.0f), t);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(decode(zero, i, t), 0.0f);
  std::vector<float> x(64, 0.0f);
  for (size_t i = 16; i < 64; ++i) x[i] = i % 2 == 0 ? 0.5f : -0.3f;
  const Row row = quantize(x, t);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(decode(row, i, t), 0.0f);
  for (size_t i = 16; i < 64; ++i) EXPECT_NEAR(decode(row, i, t), x[i], 0.03f);
}

TEST(W4a8, NanAndInfMakeTheRowNan) {
  const W4a8Table t = default_table();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(48, 0.25f);
    x[20] = bad;
    const Row row = quantize(x, t);
    EXPECT_EQ(bits_from_f32(row.channel), 0x7FC00000u);
    for (const uint8_t s : row.s_rel) EXPECT_EQ(s, 0x7F);
    for (const uint8_t c : row.codes) EXPECT_EQ(c, 0);
    for (size_t i = 0; i < 48; ++i) EXPECT_TRUE(std::isnan(decode(row, i, t)));
  }
}

TEST(W4a8, GridFollowsEveryScaleCode) {
  const W4a8Table t = default_table();
  for (uint32_t s = 0; s < 127; ++s) {
    const W4a8Table grid = w4a8_grid(t, static_cast<uint8_t>(s));
    for (int i = 0; i < 16; ++i) {
      const float product = oracle::f32_mul(t.level[i], static_cast<float>(oracle::kE4m3.value(s)));
      const double r = std::nearbyint(product);
      EXPECT_EQ(grid.level[i], r < -127 ? -127.0 : r > 127 ? 127.0 : r);
      if (i > 0) {
        EXPECT_LE(grid.level[i - 1], grid.level[i]);
      }
    }
  }
}

// What dequantize_w4a8 on CUDA multiplies instead of f32 levels: an f16 product added to 1536 and
// rounded once, where f16 has integers only.
TEST(W4a8, LevelsAsF16GiveTheSameIntegers) {
  const W4a8Table t = default_table();
  for (uint32_t code = 0; code < 256; ++code) {
    const float rel = f32_from_e4m3(static_cast<uint8_t>(code));
    if (!(std::fabs(rel) <= 128)) continue;
    for (const float level : t.level) {
      const double product = static_cast<double>(f32_from_f16(f16_from_f32(level))) * rel;
      EXPECT_EQ(static_cast<int32_t>(std::nearbyint(1536 + product)) - 1536,
                w4a8_decode_int8(level, rel))
          << level << " " << rel;
    }
  }
}

// quantize_w4a8 on CUDA looks levels up by tenths: between (k - 1/2) / 10 and (k + 1/2) / 10 lies
// one midpoint at most, and none near an end.
TEST(W4a8, TenthsHaveOneMidpointAtMost) {
  const W4a8Table t = default_table();
  std::set<int> seen;
  for (const float mid : t.mid) {
    const double tenths = 10.0 * mid;
    EXPECT_TRUE(seen.insert(static_cast<int>(std::nearbyint(tenths))).second) << mid;
    EXPECT_LT(std::fabs(tenths - std::nearbyint(tenths)), 0.48) << mid;
  }
}

}  // namespace
}  // namespace pestle::formats
