#include "files/error_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/machine.h"
#include "formats/float_bits.h"

namespace pestle::files {
namespace {

struct Sample {
  std::vector<uint8_t> weights;  // one byte in front, so that nothing is aligned
  std::vector<float> decoded;
  std::vector<uint8_t> codes;
};

Sample make_sample(DType dtype, int64_t rows, int64_t k, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  Sample sample;
  sample.weights.push_back(0);
  for (int64_t i = 0; i < rows * k; ++i) {
    const float value = normal(random);
    const uint16_t bits =
        dtype == DType::kBF16 ? formats::bf16_from_f32(value) : formats::f16_from_f32(value);
    const auto* from = dtype == DType::kF32 ? reinterpret_cast<const uint8_t*>(&value)
                                            : reinterpret_cast<const uint8_t*>(&bits);
    sample.weights.insert(sample.weights.end(), from, from + dtype_bytes(dtype));
    sample.decoded.push_back(value * (random() % 2 == 0 ? 0.75f : 1.25f));
    sample.codes.push_back(static_cast<uint8_t>(random() % 4 == 0 ? 0x77 : random()));
  }
  return sample;
}

TensorView view_of(Sample& sample, DType dtype, int64_t rows, int64_t k) {
  const int64_t shape[] = {rows, k};
  return make_view(sample.weights.data() + 1, dtype, 2, shape);
}

class ErrorSumsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!set_isa(GetParam()).ok()) is_here_ = false;  // an instruction set of other machines
  }
  void TearDown() override { ASSERT_TRUE(set_isa("best").ok()); }
  bool is_here_ = true;
};

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 64, 300, 5000};

TEST_P(ErrorSumsTest, SumsEqualPlainLoops) {
  for (const DType dtype : kDTypes) {
    for (const int64_t k : kSizes) {
      if (!is_here_) continue;
      Sample sample = make_sample(dtype, 3, k, static_cast<unsigned>(k));
      const TensorView w = view_of(sample, dtype, 3, k);
      double signal = 0;
      double noise = 0;
      float worst = 0;
      uint32_t largest = 0;
      for (int64_t i = 0; i < 3 * k; ++i) {
        const float x = load_weight(w.data, dtype, i);
        const float e = x - sample.decoded[static_cast<size_t>(i)];
        signal += static_cast<double>(x) * x;
        noise += static_cast<double>(e) * e;
        worst = std::max(worst, std::fabs(e));
        largest = std::max(largest, formats::abs_bits(x));
      }
      const ErrorSums sums = error_sums(w, sample.decoded.data(), k);
      EXPECT_NEAR(sums.signal, signal, 1e-5 * signal);
      EXPECT_NEAR(sums.noise, noise, 1e-5 * noise);
      EXPECT_EQ(sums.max_error, worst);
      EXPECT_EQ(sums.elements, static_cast<uint64_t>(3 * k));
      EXPECT_EQ(largest_magnitude_bits(w), largest);
    }
  }
}

TEST_P(ErrorSumsTest, ClippedEqualsPlainLoops) {
  const TopCodes kinds[] = {{false, false, 0x7F, {0x77, 0x77, 0x77}},
                            {false, false, 0xFF, {0x7F, 0x81, 0x80}},
                            {true, true, 0x7, {7, 7, 7}},
                            {true, false, 0x7, {7, 7, 7}},
                            {true, true, 0xF, {7, 9, 8}}};
  for (const TopCodes& top : kinds) {
    for (const DType dtype : kDTypes) {
      for (const int64_t k : kSizes) {
        if (!is_here_) continue;
        Sample sample = make_sample(dtype, 3, k, static_cast<unsigned>(k) + 7);
        const TensorView w = view_of(sample, dtype, 3, k);
        const int64_t code_stride = top.nibbles ? (k + 1) / 2 : k;
        uint64_t expected = 0;
        for (int64_t r = 0; r < 3; ++r) {
          for (int64_t c = 0; c < k; ++c) {
            const uint8_t byte =
                sample.codes[static_cast<size_t>(r * code_stride + (top.nibbles ? c / 2 : c))];
            const bool high = (c % 2 == 0) != top.low_first;
            const uint8_t code = static_cast<uint8_t>(
                (top.nibbles ? (high ? byte >> 4 : byte & 0xF) : byte) & top.mask);
            const bool largest =
                code == top.values[0] || code == top.values[1] || code == top.values[2];
            expected += largest && std::fabs(load_weight(w.data, dtype, r * k + c)) >
                                       std::fabs(sample.decoded[static_cast<size_t>(r * k + c)]) *
                                           (1 + 0x1p-20f);
          }
        }
        const StoredCodes codes{sample.codes.data(), code_stride, top};
        EXPECT_EQ(error_sums(w, sample.decoded.data(), k, codes).clipped, expected);
        EXPECT_TRUE(expected > 0 || k < 300);
      }
    }
  }
}

TEST_P(ErrorSumsTest, NanAndInfinityAreTheLargest) {
  if (!is_here_) return;
  for (const uint16_t bits : {uint16_t{0x7F80}, uint16_t{0xFFC1}}) {
    std::vector<uint16_t> w(100, 0x3F80);
    w[77] = bits;
    const int64_t shape[] = {100};
    EXPECT_GE(largest_magnitude_bits(make_view(w.data(), DType::kBF16, 1, shape)), 0x7F800000u);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, ErrorSumsTest, testing::Values("scalar", "avx2", "avx512"));

}  // namespace
}  // namespace pestle::files
