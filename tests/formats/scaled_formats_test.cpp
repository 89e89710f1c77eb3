// FP8, NVFP4, MX, INT8 and INT4 with their scales, against the rules of docs/formats in double.
#include <gtest/gtest.h>

#include <array>

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "tests/formats/oracle.h"

namespace pestle::formats {
namespace {

const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// Finite values of all sizes, with zeros of both signs and subnormals among them.
float any_finite(oracle::Random& random) {
  const uint32_t kind = random.u32() % 16;
  if (kind == 0) return random.u32() % 2 == 0 ? 0.0f : -0.0f;
  uint32_t b = random.u32();
  if ((b & 0x7F800000u) == 0x7F800000u) b ^= 0x40000000u;
  if (kind < 12) b = (b & 0x807FFFFFu) | ((120u + random.u32() % 14) << 23);
  return oracle::from_bits(b);
}

TEST(Fp8, ScaleIsAmaxOverMaxWithFloor) {
  for (uint32_t b = 0; b < 0x7F80u; ++b) {
    const float amax = oracle::bf16_value(static_cast<uint16_t>(b));
    EXPECT_EQ(fp8_scale<E4m3>(oracle::bits(amax)),
              std::fmax(oracle::f32_div(amax, 448.0f), 0x1p-126f));
    EXPECT_EQ(fp8_scale<E5m2>(oracle::bits(amax)),
              std::fmax(oracle::f32_div(amax, 57344.0f), 0x1p-126f));
  }
  EXPECT_EQ(fp8_scale<E4m3>(0), 0x1p-126f);
  EXPECT_EQ(fp8_scale<E4m3>(oracle::bits(kInf)), kInf);
  EXPECT_EQ(oracle::bits(fp8_scale<E4m3>(0x7F800001u)), 0x7FC00000u);
}

TEST(Fp8, QuantizeDividesThenRounds) {
  oracle::Random random(5);
  for (int i = 0; i < 300000; ++i) {
    const float x = any_finite(random);
    const float s = std::fabs(any_finite(random));
    const float v = oracle::f32_div(x, s);
    ASSERT_EQ(fp8_quantize<E4m3>(x, s), oracle::code(oracle::kE4m3, 7, 0x7F, v)) << x << " " << s;
    ASSERT_EQ(fp8_quantize<E5m2>(x, s), oracle::code(oracle::kE5m2, 7, 0x7F, v)) << x << " " << s;
  }
  EXPECT_EQ(fp8_quantize<E4m3>(0.0f, 0.0f), 0x7F);
  EXPECT_EQ(fp8_quantize<E4m3>(1.0f, 0.0f), 0x7E);
  EXPECT_EQ(fp8_quantize<E4m3>(-1.0f, kInf), 0x80);
  EXPECT_EQ(fp8_quantize<E4m3>(1.0f, kNan), 0x7F);
  EXPECT_EQ(fp8_dequantize<E4m3>(0xFE, 0.5f), -224.0f);
}

TEST(Fp8, TheLargestElementReachesTheLargestCode) {
  oracle::Random random(6);
  for (int i = 0; i < 100000; ++i) {
    const float x = any_finite(random);
    if (std::fabs(x) < 0x1p-100f) continue;
    const float s = fp8_scale<E4m3>(abs_bits(x));
    EXPECT_EQ(fp8_quantize<E4m3>(x, s) & 0x7F, 0x7E) << x;
  }
}

uint8_t nvfp4_scale_by_rule(float amax, float g) {
  if (amax == 0 || g == 0) return 0;
  const float t = oracle::f32_div(oracle::f32_div(amax, 6.0f), g);
  return oracle::code(oracle::kE4m3, 7, 0x7F, t > 448 ? 448.0f : t);
}

void check_nvfp4_block(const std::array<float, 16>& x, float g) {
  float amax = 0;
  for (const float v : x) amax = std::fmax(amax, std::fabs(v));
  std::array<uint8_t, 16> codes{};
  const uint8_t s = nvfp4_quantize_block(x.data(), g, codes.data());
  ASSERT_EQ(s, nvfp4_scale_by_rule(amax, g)) << amax << " " << g;
  const float factor = oracle::f32_mul(static_cast<float>(oracle::kE4m3.value(s)), g);
  std::array<float, 16> out{};
  nvfp4_dequantize_block(codes.data(), s, g, out.data());
  for (int i = 0; i < 16; ++i) {
    const uint8_t want =
        factor == 0 ? 0 : oracle::code(oracle::kE2m1, 3, 7, oracle::f32_div(x[i], factor));
    ASSERT_EQ(codes[i], want) << x[i] << " factor " << factor;
    const double sign = (want & 8) != 0 ? -1 : 1;
    const auto value = static_cast<float>(sign * oracle::kE2m1.value(want & 7));
    ASSERT_EQ(oracle::bits(out[i]), oracle::bits(oracle::f32_mul(value, factor)));
  }
}

TEST(Nvfp4, RandomBlocks) {
  oracle::Random random(7);
  for (int i = 0; i < 40000; ++i) {
    std::array<float, 16> x{};
    float amax = 0;
    for (float& v : x) {
      v = i % 2 == 0 ? random.normal() : any_finite(random);
      amax = std::fmax(amax, std::fabs(v));
    }
    const float tensor_amax = amax * (1.0f + 40.0f * random.uniform());
    const float finite = std::fmin(tensor_amax, std::numeric_limits<float>::max());
    check_nvfp4_block(x, nvfp4_global_scale(oracle::bits(finite)));
    check_nvfp4_block(x, std::fabs(any_finite(random)));
  }
}

TEST(Nvfp4, EverySixteenBitInputInItsOwnBlock) {
  for (uint32_t b = 0; b < 65536; ++b) {
    for (const float v : {oracle::bf16_value(static_cast<uint16_t>(b)),
                          oracle::f16_value(static_cast<uint16_t>(b))}) {
      if (!std::isfinite(v)) continue;
      std::array<float, 16> x{};
      for (int i = 0; i < 16; ++i) x[i] = v * (1.0f - 0.0625f * static_cast<float>(i));
      check_nvfp4_block(x, 1.0f / 2688.0f);
    }
  }
}

TEST(Nvfp4, EveryScaleCodeAndEveryTie) {
  for (uint32_t s = 0; s < 127; ++s) {
    const auto code = static_cast<uint8_t>(s);
    const float factor = nvfp4_factor(code, 0x1p-5f);
    for (uint32_t c = 0; c < 7 && factor != 0; ++c) {
      const double tie = (oracle::kE2m1.value(c) + oracle::kE2m1.value(c + 1)) / 2;
      const float x = static_cast<float>(tie) * factor;
      EXPECT_EQ(nvfp4_quantize(x, factor), c + (c & 1));
      EXPECT_EQ(nvfp4_quantize(std::nextafterf(x, 0.0f), factor), c);
      EXPECT_EQ(nvfp4_quantize(-std::nextafterf(x, kInf), factor), (c + 1) | 8);
    }
  }
}

TEST(Nvfp4, ZerosNanInfAndUnderflow) {
  std::array<float, 16> x{};
  x[3] = -0.0f;
  std::array<uint8_t, 16> codes{};
  codes.fill(99);
  EXPECT_EQ(nvfp4_quantize_block(x.data(), 1.0f, codes.data()), 0);
  for (const uint8_t c : codes) EXPECT_EQ(c, 0);

  x.fill(-1.0f);
  EXPECT_EQ(nvfp4_quantize_block(x.data(), 0.0f, codes.data()), 0);
  for (const uint8_t c : codes) EXPECT_EQ(c, 0);

  x[5] = -0.0f;  // keeps its sign beside other values
  x[6] = kNan;
  EXPECT_EQ(nvfp4_quantize_block(x.data(), 1.0f, codes.data()), 0x7F);
  for (const uint8_t c : codes) EXPECT_EQ(c, 7);
  EXPECT_TRUE(std::isnan(nvfp4_dequantize(codes[0], nvfp4_factor(0x7F, 1.0f))));
  x[6] = 0.0f;
  nvfp4_quantize_block(x.data(), 1.0f, codes.data());
  EXPECT_EQ(codes[5], 8);

  x[6] = kInf;
  EXPECT_EQ(nvfp4_quantize_block(x.data(), 1.0f, codes.data()), 0x7E);
  EXPECT_EQ(codes[6], 7);
  EXPECT_EQ(codes[0], 8);  // -1 / 448 rounds to -0

  x.fill(-0x1p-20f);  // scale code underflows to 0, so the factor does
  EXPECT_EQ(nvfp4_quantize_block(x.data(), 1.0f, codes.data()), 0);
  for (const uint8_t c : codes) EXPECT_EQ(c, 0);

  // A global scale of Inf makes every scale code 0, and with it the codes; NaN makes both NaN.
  x.fill(0.0f);
  EXPECT_EQ(nvfp4_quantize_block(x.data(), kInf, codes.data()), 0);
  for (const uint8_t c : codes) EXPECT_EQ(c, 0);
  x.fill(1.0f);
  EXPECT_EQ(nvfp4_quantize_block(x.data(), kInf, codes.data()), 0);
  for (const uint8_t c : codes) EXPECT_EQ(c, 0);
  EXPECT_EQ(nvfp4_quantize_block(x.data(), kNan, codes.data()), 0x7F);
  for (const uint8_t c : codes) EXPECT_EQ(c, 7);

  EXPECT_EQ(nvfp4_global_scale(0), 0.0f);
  EXPECT_EQ(nvfp4_global_scale(oracle::bits(2688.0f)), 1.0f);
  EXPECT_EQ(oracle::bits(nvfp4_global_scale(0x7F800001u)), 0x7FC00000u);
}

TEST(Nvfp4, NibbleOrders) {
  EXPECT_EQ(pack_nibbles(0x1, 0x2, true), 0x12);
  EXPECT_EQ(pack_nibbles(0x1, 0x2, false), 0x21);
  for (uint32_t b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    for (const bool hi_first : {false, true}) {
      const uint8_t even = nibble_of(byte, false, hi_first);
      const uint8_t odd = nibble_of(byte, true, hi_first);
      EXPECT_EQ(pack_nibbles(even, odd, hi_first), byte);
      EXPECT_EQ(pack_nibbles(even, odd, !hi_first), swap_nibbles(byte));
    }
  }
}

// The smallest e in 0..254 with amax <= max * 2^(e-127), by trying them.
int mx_scale_by_rule(double amax, double max) {
  int e = 0;
  while (e < 254 && amax > std::ldexp(max, e - 127)) ++e;
  return e;
}

template <class F>
void check_mx_scales(double max) {
  for (uint32_t b = 0; b < 0x7F80u; ++b) {
    const float amax = oracle::bf16_value(static_cast<uint16_t>(b));
    ASSERT_EQ(mx_scale<F>(oracle::bits(amax)), mx_scale_by_rule(amax, max)) << amax;
  }
  for (int e = 0; e < 255; ++e) {
    const double limit = std::ldexp(max, e - 127);
    if (limit > static_cast<double>(std::numeric_limits<float>::max())) break;
    const auto at = static_cast<float>(limit);
    ASSERT_EQ(static_cast<double>(at), limit);
    EXPECT_EQ(mx_scale<F>(oracle::bits(at)), e);
    EXPECT_EQ(mx_scale<F>(oracle::bits(std::nextafterf(at, kInf))), e + 1);
    EXPECT_EQ(mx_scale<F>(oracle::bits(std::nextafterf(at, 0.0f))), e);
  }
  EXPECT_EQ(mx_scale<F>(0), 0);
  EXPECT_EQ(mx_scale<F>(1), 0);
  EXPECT_EQ(mx_scale<F>(oracle::bits(kInf)), 255 - F::kMaxExponent);
  EXPECT_EQ(mx_scale<F>(0x7F800001u), 255);
}

TEST(Mx, EveryScale) {
  check_mx_scales<E4m3>(448.0);
  check_mx_scales<E5m2>(57344.0);
  check_mx_scales<E2m1>(6.0);
}

template <class F>
void check_mx_blocks(const oracle::SmallFloat& f, uint64_t seed) {
  oracle::Random random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::array<float, 32> x{};
    double amax = 0;
    // All exponents in turn, those whose scale code is 0 or the largest included.
    const float size = std::ldexp(1.0f, round % 277 - 149);
    for (float& v : x) {
      v = random.normal() * 0.15f * size;
      amax = std::fmax(amax, std::fabs(static_cast<double>(v)));
    }
    std::array<uint8_t, 32> codes{};
    std::array<float, 32> out{};
    const uint8_t e = mx_quantize_block<F>(x.data(), codes.data());
    mx_dequantize_block<F>(codes.data(), e, out.data());
    ASSERT_EQ(e, mx_scale_by_rule(amax, f.value(f.max_code)));
    for (int i = 0; i < 32; ++i) {
      const double scaled = std::ldexp(std::fabs(static_cast<double>(x[i])), 127 - e);
      const bool negative = std::signbit(x[i]) && amax != 0;
      const uint32_t magnitude = f.nearest(scaled);
      ASSERT_EQ(codes[i], magnitude | (negative ? 1u << F::kSignShift : 0u)) << x[i];
      const double value = std::ldexp(f.value(magnitude), e - 127);
      ASSERT_EQ(out[i], static_cast<float>(negative ? -value : value));
    }
  }
}

TEST(Mx, RandomBlocksOfEverySize) {
  check_mx_blocks<E4m3>(oracle::kE4m3, 11);
  check_mx_blocks<E5m2>(oracle::kE5m2, 12);
  check_mx_blocks<E2m1>(oracle::kE2m1, 13);
}

template <class F>
void check_mx_inputs(const oracle::SmallFloat& f) {
  for (const int e : {0, 1, 60, 127, 200, 253, 254}) {
    const float inverse = e8m0_inverse(static_cast<uint8_t>(e));
    for (const float x : oracle::hard_inputs(f, 0x1p-3f)) {
      if (!std::isfinite(x)) continue;
      const double scaled = std::ldexp(std::fabs(static_cast<double>(x)), 127 - e);
      const uint32_t want = f.nearest(scaled) | (std::signbit(x) ? 1u << F::kSignShift : 0u);
      ASSERT_EQ(mx_quantize<F>(x, inverse), want) << x << " e " << e;
    }
  }
}

TEST(Mx, EverySixteenBitInputUnderEdgeScales) {
  check_mx_inputs<E4m3>(oracle::kE4m3);
  check_mx_inputs<E5m2>(oracle::kE5m2);
  check_mx_inputs<E2m1>(oracle::kE2m1);
}

template <class F>
void check_mx_specials(uint8_t nan_code, uint8_t max_code) {
  std::array<float, 32> x{};
  x.fill(-0.0f);
  std::array<uint8_t, 32> codes{};
  codes.fill(99);
  EXPECT_EQ(mx_quantize_block<F>(x.data(), codes.data()), 0);
  for (const uint8_t c : codes) EXPECT_EQ(c, 0);

  x.fill(1.0f);
  x[31] = -kNan;
  EXPECT_EQ(mx_quantize_block<F>(x.data(), codes.data()), 255);
  for (const uint8_t c : codes) EXPECT_EQ(c, nan_code);
  EXPECT_TRUE(std::isnan(mx_dequantize<F>(codes[0], 255)));
  EXPECT_TRUE(std::isnan(mx_dequantize<F>(0, 255)));

  x[31] = kInf;
  EXPECT_EQ(mx_quantize_block<F>(x.data(), codes.data()), 255 - F::kMaxExponent);
  EXPECT_EQ(codes[31], max_code);
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(mx_dequantize<F>(1, 0), static_cast<float>(std::ldexp(f32_from_code<F>(1), -127)));
}

TEST(Mx, ZerosNanInf) {
  check_mx_specials<E4m3>(0x7F, 0x7E);
  check_mx_specials<E5m2>(0x7F, 0x7B);
  check_mx_specials<E2m1>(0x7, 0x7);
}

int clamped(double v, int lo, int hi) {
  const double r = std::nearbyint(v);
  return static_cast<int>(r < lo ? lo : r > hi ? hi : r);
}

TEST(Int8, RandomAndEverySixteenBitInput) {
  for (const float s : {1.0f, 0.0123f, 3e-30f, 1e30f}) {
    for (uint32_t b = 0; b < 65536; ++b) {
      for (const float x : {oracle::bf16_value(static_cast<uint16_t>(b)),
                            oracle::f16_value(static_cast<uint16_t>(b))}) {
        const int want = std::isnan(x) ? 0 : clamped(oracle::f32_div(x, s), -128, 127);
        ASSERT_EQ(int8_quantize(x, s), want) << x;
        ASSERT_EQ(int4_quantize(x, s), std::isnan(x) ? 0 : clamped(oracle::f32_div(x, s), -8, 7));
      }
    }
  }
}

TEST(Int8, ScalesAndDecode) {
  for (uint32_t b = 0; b < 0x7F80u; ++b) {
    const float amax = oracle::bf16_value(static_cast<uint16_t>(b));
    EXPECT_EQ(int8_scale(oracle::bits(amax)), std::fmax(oracle::f32_div(amax, 127.0f), 1e-30f));
    EXPECT_EQ(int4_scale(oracle::bits(amax)), std::fmax(oracle::f32_div(amax, 7.0f), 1e-30f));
  }
  EXPECT_EQ(oracle::bits(int8_scale(0x7F800001u)), 0x7FC00000u);
  EXPECT_EQ(oracle::bits(int4_scale(0x7FFFFFFFu)), 0x7FC00000u);
  EXPECT_EQ(int8_quantize(kInf, 1.0f), 127);
  EXPECT_EQ(int8_quantize(-kInf, 1.0f), -128);
  EXPECT_EQ(int8_quantize(1.0f, kNan), 0);
  for (int q = -128; q < 128; ++q) {
    EXPECT_EQ(int8_dequantize(static_cast<int8_t>(q), 0.1f),
              oracle::f32_mul(static_cast<float>(q), 0.1f));
  }
}

TEST(Int4, NibblesAreTwosComplement) {
  for (int q = -8; q < 8; ++q) {
    const uint8_t nibble = nibble_from_int4(static_cast<int8_t>(q));
    EXPECT_EQ(nibble, (q + 16) % 16);
    EXPECT_EQ(int4_from_nibble(nibble), q);
    EXPECT_EQ(int4_dequantize(static_cast<int8_t>(q), 0.3f),
              oracle::f32_mul(static_cast<float>(q), 0.3f));
  }
}

TEST(Int4, FloatZeroPointsRoundTwice) {
  for (int q = 0; q < 16; ++q) {
    const float product = oracle::f32_mul(static_cast<float>(q - 8), 0.1f);
    const auto want = static_cast<float>(static_cast<double>(product) + 0.37f);
    EXPECT_EQ(awq_w4a16_dequantize(static_cast<uint8_t>(q), 0.1f, 0.37f), want) << q;
  }
}

TEST(Int4, AsymmetricGroups) {
  oracle::Random random(17);
  for (int round = 0; round < 20000; ++round) {
    std::array<float, 32> x{};
    float lo = 0;
    float hi = 0;
    const float shift = static_cast<float>(round % 9 - 4);
    for (float& v : x) {
      v = random.normal() + shift;
      lo = std::fmin(lo, v);
      hi = std::fmax(hi, v);
    }
    const float range = static_cast<float>(static_cast<double>(hi) - static_cast<double>(lo));
    const float scale = std::fmax(oracle::f32_div(range, 15.0f), 1e-30f);
    const int zero = clamped(oracle::f32_div(-lo, scale), 0, 15);
    const Int4Zero group = int4_asym_scale(x.data(), 32);
    ASSERT_EQ(group.scale, scale);
    ASSERT_EQ(group.zero, zero);
    for (const float v : x) {
      const uint8_t q = int4_asym_quantize(v, group);
      ASSERT_EQ(q, clamped(std::nearbyint(oracle::f32_div(v, scale)) + zero, 0, 15));
      ASSERT_EQ(int4_asym_dequantize(q, group),
                oracle::f32_mul(static_cast<float>(q - zero), scale));
    }
  }
}

TEST(Int4, AsymmetricSpecials) {
  std::array<float, 32> x{};
  Int4Zero group = int4_asym_scale(x.data(), 32);
  EXPECT_EQ(group.scale, 1e-30f);
  EXPECT_EQ(group.zero, 0);
  EXPECT_EQ(int4_asym_quantize(0.0f, group), 0);
  x.fill(-3.0f);
  group = int4_asym_scale(x.data(), 32);
  EXPECT_EQ(group.zero, 15);
  EXPECT_EQ(int4_asym_quantize(-3.0f, group), 0);
  x[7] = kNan;
  group = int4_asym_scale(x.data(), 32);
  EXPECT_EQ(oracle::bits(group.scale), 0x7FC00000u);
  EXPECT_EQ(group.zero, 0);
  EXPECT_EQ(int4_asym_quantize(5.0f, group), 0);
  x[7] = -kInf;
  group = int4_asym_scale(x.data(), 32);
  EXPECT_EQ(group.scale, kInf);
  EXPECT_EQ(group.zero, 0);  // -lo / scale is NaN
  EXPECT_EQ(int4_asym_quantize(-3.0f, group), 0);
}

}  // namespace
}  // namespace pestle::formats
