// SIMD conversions against the scalar definitions, on every instruction set of this CPU.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/convert_test.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/convert-inl.h"
#include "backends/cpu/simd/fp8-inl.h"
#include "backends/cpu/simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::testing::HWY_NAMESPACE {
namespace simd = pestle::cpu::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;

// count: a multiple of 4 * 16.
template <class T>
void load_all(const void* in, float* out, size_t count) {
  for (size_t i = 0; i < count; i += simd::kN) {
    hn::StoreU(T::load(static_cast<const uint8_t*>(in) + i * T::kBytes), simd::DF(), out + i);
  }
}
void load_bf16(const void* in, float* out, size_t count) { load_all<simd::Bf16>(in, out, count); }
void load_f16(const void* in, float* out, size_t count) { load_all<simd::F16>(in, out, count); }

template <class T>
void store_all(const float* in, void* out, size_t count) {
  auto* to = static_cast<uint8_t*>(out);
  for (size_t i = 0; i < count; i += 4 * simd::kN) {
    simd::VF v[4];
    for (size_t j = 0; j < 4; ++j) v[j] = simd::F32::load(in + i + j * simd::kN);
    simd::store4<false, T>(v[0], v[1], v[2], v[3], to + i * T::kBytes);
    T::store(v[1], to + (i + simd::kN) * T::kBytes);  // the single-vector form must agree
    simd::store_n<T>(v[2], to + (i + 2 * simd::kN) * T::kBytes, simd::kN - 1);
  }
}
void store_bf16(const float* in, void* out, size_t count) { store_all<simd::Bf16>(in, out, count); }
void store_f16(const float* in, void* out, size_t count) { store_all<simd::F16>(in, out, count); }

template <class F>
void to_fp8(const float* in, const uint16_t* u, uint8_t* out, size_t count) {
  for (size_t i = 0; i < count; i += simd::kBlock) {
    simd::VU code[4];
    for (size_t j = 0; j < 4; ++j) {
      const simd::VF v = simd::F32::load(in + i + j * simd::kN);
      if (u == nullptr) {
        code[j] = simd::fp8_codes<F>(v);
        continue;
      }
      const auto bits = hn::LoadU(simd::D16(), u + i + j * simd::kN);
      code[j] = simd::fp8_codes_stochastic<F>(v, hn::PromoteTo(simd::DU(), bits));
    }
    simd::put_u8<false>(code[0], code[1], code[2], code[3], out + i);
  }
}
void to_e4m3(const float* in, const uint16_t* u, uint8_t* out, size_t count) {
  to_fp8<formats::E4m3>(in, u, out, count);
}
void to_e5m2(const float* in, const uint16_t* u, uint8_t* out, size_t count) {
  to_fp8<formats::E5m2>(in, u, out, count);
}
void from_e4m3(const void* in, float* out, size_t count) {
  for (size_t i = 0; i < count; i += simd::kN) {
    simd::F32::store(simd::load_fp8<formats::E4m3>(static_cast<const uint8_t*>(in) + i), out + i);
  }
}
void from_e5m2(const void* in, float* out, size_t count) {
  for (size_t i = 0; i < count; i += simd::kN) {
    simd::F32::store(simd::load_fp8<formats::E5m2>(static_cast<const uint8_t*>(in) + i), out + i);
  }
}

uint32_t amax_f32(const void* x, int64_t count) { return simd::amax_bits<simd::F32>(x, count); }
uint32_t amax_bf16(const void* x, int64_t count) { return simd::amax_bits<simd::Bf16>(x, count); }
uint32_t amax_f16(const void* x, int64_t count) { return simd::amax_bits<simd::F16>(x, count); }

}  // namespace pestle::testing::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "formats/fp8.h"
#include "formats/stochastic.h"
#include "tests/simd/simd_test_util.h"

namespace pestle::testing {
namespace {

HWY_EXPORT(load_bf16);
HWY_EXPORT(load_f16);
HWY_EXPORT(store_bf16);
HWY_EXPORT(store_f16);
HWY_EXPORT(to_e4m3);
HWY_EXPORT(to_e5m2);
HWY_EXPORT(from_e4m3);
HWY_EXPORT(from_e5m2);
HWY_EXPORT(amax_f32);
HWY_EXPORT(amax_bf16);
HWY_EXPORT(amax_f16);

constexpr size_t kAll16 = 65536;

void expect_same(float expected, float got, uint32_t input) {
  if (std::isnan(expected) && std::isnan(got)) return;
  ASSERT_EQ(formats::bits_from_f32(expected), formats::bits_from_f32(got)) << std::hex << input;
}

// Every f32 near a rounding boundary of every 16- and 8-bit float, and random ones.
std::vector<float> awkward_floats() {
  std::vector<float> all;
  for (uint32_t top = 0; top < 65536; ++top) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      all.push_back(formats::f32_from_bits(top << 16 | low));
    }
  }
  for (uint32_t h = 0; h < 0x7C00; ++h) {  // midpoints of neighbouring f16 and what is beside them
    const float a = formats::f32_from_f16(static_cast<uint16_t>(h));
    const float b = h == 0x7BFF ? 65536.0f : formats::f32_from_f16(static_cast<uint16_t>(h + 1));
    const uint32_t middle = formats::bits_from_f32((a + b) / 2);
    for (uint32_t bits : {middle - 1, middle, middle + 1}) {
      all.push_back(formats::f32_from_bits(bits));
      all.push_back(formats::f32_from_bits(bits | 0x80000000u));
    }
  }
  std::mt19937 random(5);
  for (int i = 0; i < 100000; ++i) all.push_back(formats::f32_from_bits(random()));
  all.resize((all.size() + 63) / 64 * 64, 0.0f);
  return all;
}

TEST(ConvertSimd, LoadsAll16BitFloats) {
  std::vector<uint16_t> in(kAll16);
  std::iota(in.begin(), in.end(), uint16_t{0});
  for_each_isa([&] {
    std::vector<float> bf16(kAll16), f16(kAll16);
    HWY_DYNAMIC_DISPATCH(load_bf16)(in.data(), bf16.data(), kAll16);
    HWY_DYNAMIC_DISPATCH(load_f16)(in.data(), f16.data(), kAll16);
    for (size_t i = 0; i < kAll16; ++i) {
      expect_same(formats::f32_from_bf16(in[i]), bf16[i], in[i]);
      expect_same(formats::f32_from_f16(in[i]), f16[i], in[i]);
    }
  });
}

TEST(ConvertSimd, StoresRoundAsTheScalarCode) {
  const std::vector<float> in = awkward_floats();
  for_each_isa([&] {
    std::vector<uint16_t> bf16(in.size()), f16(in.size());
    HWY_DYNAMIC_DISPATCH(store_bf16)(in.data(), bf16.data(), in.size());
    HWY_DYNAMIC_DISPATCH(store_f16)(in.data(), f16.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(formats::bf16_from_f32(in[i]), bf16[i]) << std::hexfloat << in[i];
      ASSERT_EQ(formats::f16_from_f32(in[i]), f16[i]) << std::hexfloat << in[i];
    }
  });
}

TEST(Fp8Simd, EncodesAsTheScalarCode) {
  const std::vector<float> in = awkward_floats();
  std::vector<uint16_t> u(in.size());
  std::mt19937 random(6);
  for (uint16_t& bits : u) bits = static_cast<uint16_t>(random() % 5 == 0 ? 0xFFFF : random());
  for_each_isa([&] {
    std::vector<uint8_t> out(in.size());
    HWY_DYNAMIC_DISPATCH(to_e4m3)(in.data(), nullptr, out.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(formats::e4m3_from_f32(in[i]), out[i]) << std::hexfloat << in[i];
    }
    HWY_DYNAMIC_DISPATCH(to_e5m2)(in.data(), nullptr, out.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(formats::e5m2_from_f32(in[i]), out[i]) << std::hexfloat << in[i];
    }
    HWY_DYNAMIC_DISPATCH(to_e4m3)(in.data(), u.data(), out.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(formats::code_stochastic<formats::E4m3>(in[i], u[i]), out[i])
          << std::hexfloat << in[i] << " u " << u[i];
    }
    HWY_DYNAMIC_DISPATCH(to_e5m2)(in.data(), u.data(), out.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(formats::code_stochastic<formats::E5m2>(in[i], u[i]), out[i])
          << std::hexfloat << in[i] << " u " << u[i];
    }
  });
}

TEST(Fp8Simd, DecodesEveryCode) {
  std::vector<uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), uint8_t{0});
  for_each_isa([&] {
    std::vector<float> out(256);
    HWY_DYNAMIC_DISPATCH(from_e4m3)(codes.data(), out.data(), 256);
    for (uint32_t c = 0; c < 256; ++c) {
      ASSERT_EQ(formats::bits_from_f32(formats::f32_from_e4m3(static_cast<uint8_t>(c))),
                formats::bits_from_f32(out[c]))
          << c;
    }
    HWY_DYNAMIC_DISPATCH(from_e5m2)(codes.data(), out.data(), 256);
    for (uint32_t c = 0; c < 256; ++c) {
      ASSERT_EQ(formats::bits_from_f32(formats::f32_from_e5m2(static_cast<uint8_t>(c))),
                formats::bits_from_f32(out[c]))
          << c;
    }
  });
}

// The largest is put at every position of runs of every length, so that no tail is missed.
TEST(ReduceSimd, AmaxFindsTheLargestWhereverItIs) {
  for_each_isa([&] {
    for (int64_t count = 0; count < 300; count += count < 70 ? 1 : 37) {
      for (int64_t where = 0; where < count; ++where) {
        std::vector<float> f(static_cast<size_t>(count), 1.0f);
        std::vector<uint16_t> b(f.size(), 0x3F80), h(f.size(), 0x3C00);
        f[static_cast<size_t>(where)] = -3.0f;
        b[static_cast<size_t>(where)] = 0xC040;
        h[static_cast<size_t>(where)] = 0xC200;
        ASSERT_EQ(HWY_DYNAMIC_DISPATCH(amax_f32)(f.data(), count), formats::abs_bits(3.0f));
        ASSERT_EQ(HWY_DYNAMIC_DISPATCH(amax_bf16)(b.data(), count), formats::abs_bits(3.0f));
        ASSERT_EQ(HWY_DYNAMIC_DISPATCH(amax_f16)(h.data(), count), formats::abs_bits(3.0f));
      }
    }
    const float nan[3] = {1.0f, std::nanf(""), INFINITY};
    EXPECT_GT(HWY_DYNAMIC_DISPATCH(amax_f32)(nan, 3), formats::kF32Inf);
    const uint16_t f16_nan[3] = {0x3C00, 0xFC01, 0x7C00};
    EXPECT_GT(HWY_DYNAMIC_DISPATCH(amax_f16)(f16_nan, 3), formats::kF32Inf);
    EXPECT_EQ(HWY_DYNAMIC_DISPATCH(amax_f32)(nan, 0), 0u);
  });
}

}  // namespace
}  // namespace pestle::testing
#endif  // HWY_ONCE
