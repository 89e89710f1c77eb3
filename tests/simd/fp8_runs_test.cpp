// Runs of FP8 codes under one scale, against formats/fp8.h, on every instruction set of this CPU.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/fp8_runs_test.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/fp8_decode-inl.h"
#include "backends/cpu/simd/fp8_encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::testing::HWY_NAMESPACE {
namespace simd = pestle::cpu::HWY_NAMESPACE;

// dtype of x, then whether the codes are E5M2.
void encode(bool f16, bool e5m2, const uint16_t* x, uint8_t* q, int64_t count, float scale) {
  using formats::E4m3;
  using formats::E5m2;
  constexpr uint32_t kUnknown = simd::kUnknownAmax;
  if (f16 && e5m2) simd::encode_fp8<simd::F16, E5m2>(x, q, count, scale, kUnknown, {});
  if (f16 && !e5m2) simd::encode_fp8<simd::F16, E4m3>(x, q, count, scale, kUnknown, {});
  if (!f16 && e5m2) simd::encode_fp8<simd::Bf16, E5m2>(x, q, count, scale, kUnknown, {});
  if (!f16 && !e5m2) simd::encode_fp8<simd::Bf16, E4m3>(x, q, count, scale, kUnknown, {});
}

void decode(bool f16, bool e5m2, const uint8_t* q, uint16_t* out, int64_t count, float scale) {
  using formats::E4m3;
  using formats::E5m2;
  if (f16 && e5m2) simd::decode_fp8_one_scale<simd::F16, E5m2>(q, out, count, scale, {});
  if (f16 && !e5m2) simd::decode_fp8_one_scale<simd::F16, E4m3>(q, out, count, scale, {});
  if (!f16 && e5m2) simd::decode_fp8_one_scale<simd::Bf16, E5m2>(q, out, count, scale, {});
  if (!f16 && !e5m2) simd::decode_fp8_one_scale<simd::Bf16, E4m3>(q, out, count, scale, {});
}

bool product_suffices(float scale, uint32_t bits) {
  const auto divider = simd::Divider::by<simd::F16>(scale);
  return divider.fast() && divider.product_rounds_like_quotient(bits);
}

}  // namespace pestle::testing::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <initializer_list>
#include <random>
#include <vector>

#include "formats/fp8.h"
#include "tests/simd/simd_test_util.h"

namespace pestle::testing {
namespace {

HWY_EXPORT(encode);
HWY_EXPORT(decode);
HWY_EXPORT(product_suffices);

constexpr int64_t kAll = 65536;  // patterns of 16 bits

std::vector<uint16_t> every_pattern() {
  std::vector<uint16_t> all(kAll);
  for (int64_t i = 0; i < kAll; ++i) all[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
  return all;
}

float value_of(uint16_t bits, bool f16) {
  return f16 ? formats::f32_from_f16(bits) : formats::f32_from_bf16(bits);
}

// Scales that put some x next to a boundary between codes, over many exponents, and odd ones.
std::vector<float> awkward_scales() {
  std::vector<float> scales = {1.0f, 0x1p-61f, 0x1p61f, 0x1p-126f, 1e-40f, 3e38f, INFINITY, NAN};
  std::mt19937 random(5);
  for (int i = 0; i < 150; ++i) {
    const float x = 1.0f + static_cast<float>(random() % 1024) * 0x1p-10f;
    const float boundary = 1.0f + static_cast<float>(random() % 16) * 0x1p-4f;
    const float near = x / boundary;
    const int step = static_cast<int>(random() % 5) - 2;
    const uint32_t bits = formats::bits_from_f32(near) + static_cast<uint32_t>(step);
    const int exponent = static_cast<int>(random() % 121) - 60;
    scales.push_back(std::ldexp(formats::f32_from_bits(bits), i % 2 == 0 ? 0 : exponent));
  }
  return scales;
}

template <class F>
void expect_codes(const std::vector<uint16_t>& x, bool f16, float scale) {
  constexpr bool kE5m2 = F::kMan == 2;
  std::vector<uint8_t> whole(kAll), pieces(kAll);
  HWY_DYNAMIC_DISPATCH(encode)(f16, kE5m2, x.data(), whole.data(), kAll, scale);
  for (int64_t i = 0; i < kAll; i += 1000) {
    const int64_t count = std::min<int64_t>(1000, kAll - i);
    HWY_DYNAMIC_DISPATCH(encode)(f16, kE5m2, x.data() + i, pieces.data() + i, count, scale);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const uint8_t expected = formats::fp8_quantize<F>(value_of(x[i], f16), scale);
    ASSERT_EQ(whole[i], expected) << "x " << value_of(x[i], f16) << " scale " << scale;
    ASSERT_EQ(pieces[i], expected) << "x " << value_of(x[i], f16) << " scale " << scale;
  }
}

TEST(Fp8Runs, EncodesEveryPatternByAwkwardScales) {
  const std::vector<uint16_t> x = every_pattern();
  const std::vector<float> scales = awkward_scales();
  for_each_isa([&] {
    for (size_t i = 0; i < scales.size(); ++i) {
      expect_codes<formats::E4m3>(x, false, scales[i]);
      expect_codes<formats::E5m2>(x, i % 2 == 0, scales[i]);
      if (i % 2 == 0) expect_codes<formats::E4m3>(x, true, scales[i]);
      if (HasFatalFailure()) return;
    }
  });
}

// Every significand of x by many scales: where the product is said to suffice, it rounds to the
// code of the quotient, at the exponents of all kinds of codes.
template <class Code>
void expect_products_suffice(uint32_t bits, std::initializer_list<float> powers, Code&& code) {
  std::mt19937 random(9);
  const uint32_t boundaries = 1u << (bits - 1);
  int64_t sufficed = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto above = static_cast<float>(random() % boundaries);
    const float boundary = 1.0f + above / static_cast<float>(boundaries);
    const float anchor = 1.0f + static_cast<float>(random() % 1024) * 0x1p-10f;
    const uint32_t near = formats::bits_from_f32(anchor / boundary) + random() % 3 - 1;
    const float scale = formats::f32_from_bits(near);
    if (!HWY_DYNAMIC_DISPATCH(product_suffices)(scale, bits)) {
      ++refused;
      continue;
    }
    ++sufficed;
    const float reciprocal = 1.0f / scale;
    for (int m = 0; m < 1024; ++m) {
      const float x = 1.0f + static_cast<float>(m) * 0x1p-10f;
      for (float power : powers) {
        ASSERT_EQ(code(x * power * reciprocal), code(x * power / scale)) << x << " by " << scale;
      }
    }
  }
  EXPECT_EQ(sufficed > 0, best_isa() != Isa::kScalar);
  EXPECT_GT(refused, 0);
}

TEST(Fp8Runs, ProductsRoundLikeQuotientsWhereSaid) {
  expect_products_suffice(5, {1.0f, 0x1p-7f, 0x1p-8f, 0x1p-9f, 0x1p-10f},
                          formats::code_from_f32<formats::E4m3>);
}

TEST(Int8Runs, ProductsRoundLikeQuotientsWhereSaid) {
  expect_products_suffice(8, {0.5f, 1.0f, 2.0f, 8.0f, 32.0f},
                          [](float v) { return std::nearbyintf(v); });
}

template <class F>
void expect_values(bool f16, float scale) {
  constexpr int64_t kCount = 1300;  // more than a table pays for, and a tail
  std::vector<uint8_t> q(kCount);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(i * 7);
  std::vector<uint16_t> out(kCount);
  HWY_DYNAMIC_DISPATCH(decode)(f16, F::kMan == 2, q.data(), out.data(), kCount, scale);
  for (size_t i = 0; i < q.size(); ++i) {
    const float value = formats::fp8_dequantize<F>(q[i], scale);
    const uint16_t expected = f16 ? formats::f16_from_f32(value) : formats::bf16_from_f32(value);
    ASSERT_EQ(out[i], expected) << "code " << int{q[i]} << " scale " << scale;
  }
}

TEST(Fp8Runs, DecodesEveryCodeByAwkwardScales) {
  std::vector<float> scales = awkward_scales();
  for (float s : {0.0f, -0.0f, -1.5f, -INFINITY, 0x1p127f, 1e-45f}) scales.push_back(s);
  for_each_isa([&] {
    for (float scale : scales) {
      for (bool f16 : {false, true}) {
        expect_values<formats::E4m3>(f16, scale);
        expect_values<formats::E5m2>(f16, scale);
      }
      if (HasFatalFailure()) return;
    }
  });
}

}  // namespace
}  // namespace pestle::testing
#endif  // HWY_ONCE
