// backends/cpu/simd/row_math against plain double loops, on every instruction set, at lengths
// around the vectors' and at odd addresses.
#include "backends/cpu/simd/row_math.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "formats/float_bits.h"
#include "tests/simd/simd_test_util.h"

namespace pestle::testing {
namespace {

constexpr int64_t kLengths[] = {0, 1, 3, 15, 16, 17, 31, 63, 64, 65, 130, 1000, 4096, 9001};

std::vector<float> random_row(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.5f, 2.0f);
  std::vector<float> row(static_cast<size_t>(n) + 1);
  for (float& v : row) v = normal(random);
  return row;
}

struct Pair {
  double value = 0;
  double magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::fabs(term);
  }
  void expect(double got, int64_t n) const {
    EXPECT_LE(std::fabs(got - value), 4 * std::sqrt(double(n)) * 0x1p-24 * magnitude) << n;
  }
};

double ulp(double v) { return std::ldexp(1.0, std::max(std::ilogb(v), -126) - 23); }

TEST(RowMath, Sums) {
  for_each_isa([] {
    for (int64_t n : kLengths) {
      const auto a = random_row(n, 1), b = random_row(n, 2);
      Pair sum, squares, differences, dot;
      const float mean = 0.375f;
      // From the second element on: not aligned to a vector.
      for (int64_t i = 1; i <= n; ++i) {
        const double x = a[static_cast<size_t>(i)], y = b[static_cast<size_t>(i)];
        sum.add(x);
        squares.add(x * x);
        differences.add((x - mean) * (x - mean));
        dot.add(x * y);
      }
      const float *x = a.data() + 1, *y = b.data() + 1;
      sum.expect(cpu::row_sum(x, n), n);
      squares.expect(cpu::row_sum_squares(x, n), n);
      differences.expect(cpu::row_sum_squared_differences(x, mean, n), n);
      dot.expect(cpu::row_dot(x, y, n), n);
    }
  });
}

TEST(RowMath, MaxKeepsNan) {
  for_each_isa([] {
    for (int64_t n : kLengths) {
      auto a = random_row(n, 3);
      float largest = -INFINITY;
      for (int64_t i = 0; i < n; ++i) largest = std::fmax(largest, a[static_cast<size_t>(i)]);
      EXPECT_EQ(cpu::row_max(a.data(), n), largest) << n;
      for (int64_t i = 0; i < n; i += std::max<int64_t>(1, n / 3)) {
        auto with_nan = a;
        with_nan[static_cast<size_t>(i)] = NAN;
        EXPECT_TRUE(std::isnan(cpu::row_max(with_nan.data(), n))) << n << " " << i;
      }
    }
  });
}

TEST(RowMath, ExpWithinTwoUlp) {
  for_each_isa([] {
    std::vector<float> x, got;
    for (float v = -104; v < 88.7f; v += 0.00813f) x.push_back(v);
    got.resize(x.size());
    const auto n = static_cast<int64_t>(x.size());
    cpu::row_exp(x.data(), 0, got.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(double{x[i]});
      EXPECT_LE(std::fabs(got[i] - want), 2 * ulp(want)) << x[i];
    }
    Pair expected;
    for (int64_t i = 0; i < 9001; ++i) expected.add(std::exp(double{x[static_cast<size_t>(i)]}));
    expected.expect(cpu::row_exp(x.data(), 0, got.data(), 9001), 9001);
    const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, 100.0f, -200.0f};
    float out[6];
    cpu::row_exp(odd, 0, out, 6);
    EXPECT_EQ(out[0], INFINITY);
    EXPECT_EQ(out[1], 0.0f);
    EXPECT_TRUE(std::isnan(out[2]));
    EXPECT_EQ(out[3], 1.0f);
    EXPECT_EQ(out[4], INFINITY);
    EXPECT_EQ(out[5], 0.0f);
    cpu::row_silu(odd, out, 6);
    EXPECT_EQ(out[0], INFINITY);
    EXPECT_TRUE(std::isnan(out[2]));
    EXPECT_EQ(out[4], 100.0f);
    cpu::row_exp_scaled(odd, 1, 0.5f, out, 6);
    EXPECT_NEAR(out[3], 0.5 * std::exp(-1.0), 1e-7);
  });
}

TEST(RowMath, ElementByElement) {
  for_each_isa([] {
    for (int64_t n : kLengths) {
      const auto a = random_row(n, 4), b = random_row(n, 5), c = random_row(n, 6);
      std::vector<float> out(static_cast<size_t>(n) + 1, 7.0f);
      const auto check = [&](const char* what, auto&& one) {
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(i);
          ASSERT_EQ(out[at], one(a[at], b[at], c[at])) << what << " " << n << " " << i;
        }
        ASSERT_EQ(out[static_cast<size_t>(n)], 7.0f) << what << " wrote past the end of " << n;
      };
      cpu::row_scale(a.data(), 3.1f, out.data(), n);
      check("scale", [](float u, float, float) { return u * 3.1f; });
      cpu::row_normalize(a.data(), 0.7f, 3.1f, out.data(), n);
      check("normalize", [](float u, float, float) { return (u - 0.7f) * 3.1f; });
      cpu::row_affine(a.data(), 3.1f, 0.7f, out.data(), n);
      check("affine", [](float u, float, float) { return u * 3.1f + 0.7f; });
      cpu::row_add(a.data(), b.data(), out.data(), n);
      check("add", [](float u, float v, float) { return u + v; });
      cpu::row_subtract(a.data(), b.data(), out.data(), n);
      check("subtract", [](float u, float v, float) { return u - v; });
      cpu::row_multiply(a.data(), b.data(), out.data(), n);
      check("multiply", [](float u, float v, float) { return u * v; });
      cpu::row_multiply_add(a.data(), b.data(), c.data(), out.data(), n);
      check("multiply_add", [](float u, float v, float w) { return u * v + w; });
      cpu::row_add_scaled(a.data(), b.data(), 3.1f, out.data(), n);
      check("add_scaled", [](float u, float v, float) { return u + v * 3.1f; });
      cpu::row_add_constant(a.data(), 3.1f, out.data(), n);
      check("add_constant", [](float u, float, float) { return u + 3.1f; });
      cpu::row_sigmoid(a.data(), out.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_NEAR(out[at], 1 / (1 + std::exp(-double{a[at]})), 4e-7) << n;
      }
    }
  });
}

double phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double tanh_part(double x) {
  return 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(RowMath, ActivationsAndTheirSlopes) {
  constexpr int64_t kCount = 4001;
  std::vector<float> x(kCount), y(kCount), slope(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    x[static_cast<size_t>(i)] = static_cast<float>(i - 2000) * 0.0131f;
  }
  for_each_isa([&] {
    for (Activation act : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
      const auto factor = [&](double v) {
        return act == Activation::kSilu   ? 1 / (1 + std::exp(-v))
               : act == Activation::kGelu ? phi(v)
                                          : tanh_part(v);
      };
      cpu::row_activation(act, x.data(), y.data(), kCount);
      cpu::row_activation_slope(act, x.data(), slope.data(), kCount);
      for (size_t i = 0; i < x.size(); ++i) {
        const double v = x[i];
        EXPECT_NEAR(y[i], v * factor(v), 4 * 0x1p-24 * (1 + std::fabs(v))) << v;
        const double h = 1e-5;
        const double want = ((v + h) * factor(v + h) - (v - h) * factor(v - h)) / (2 * h);
        EXPECT_NEAR(slope[i], want, 2e-6) << v;
      }
    }
    const float odd[] = {NAN, INFINITY, -INFINITY};
    float out[3];
    for (Activation act : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
      cpu::row_activation(act, odd, out, 3);
      EXPECT_TRUE(std::isnan(out[0]) && out[1] == INFINITY && std::isnan(out[2]));
      cpu::row_activation_slope(act, odd, out, 3);
      EXPECT_TRUE(std::isnan(out[0]) && out[1] == 1 && out[2] == 0);
    }
  });
}

TEST(RowMath, LoadsAndStoresEveryDtype) {
  for_each_isa([] {
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (int64_t n : kLengths) {
        const auto a = random_row(n, 8);
        const auto size = static_cast<size_t>(n);
        std::vector<float> want(size), got(size), rounded(a.begin(), a.begin() + n);
        for (size_t i = 0; i < size; ++i) {
          want[i] = dtype == DType::kBF16  ? formats::f32_from_bf16(formats::bf16_from_f32(a[i]))
                    : dtype == DType::kF16 ? formats::f32_from_f16(formats::f16_from_f32(a[i]))
                                           : a[i];
        }
        std::vector<char> bytes(size * 4 + 1);
        cpu::row_store(a.data(), bytes.data() + 1, dtype, n);
        cpu::row_load(bytes.data() + 1, dtype, got.data(), n);
        cpu::row_round(rounded.data(), dtype, n);
        ASSERT_EQ(want, got);
        ASSERT_EQ(want, rounded);
      }
    }
  });
}

}  // namespace
}  // namespace pestle::testing
