// Block-scaled ops: every implementation against the reference over the contract's cases (odd
// sizes, padding, special values, offset and strided views), and the rules as worked examples.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "core/call_text.h"
#include "core/dispatch.h"
#include "core/machine.h"
#include "formats/float_bits.h"
#include "formats/swizzle.h"

namespace pestle {
namespace {

// Bytes behind one tensor: `offset` misaligns it, the guards around it must survive.
struct Buffer {
  static constexpr size_t kGuard = 128;
  std::vector<uint8_t> bytes;
  size_t offset = 0;
  size_t size = 0;

  void allocate(size_t wanted, size_t misalign, uint8_t poison) {
    offset = kGuard + misalign;
    size = wanted;
    bytes.assign(offset + wanted + kGuard, poison);
  }
  uint8_t* data() { return bytes.data() + offset; }
  bool guards_intact(uint8_t poison) const {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if ((i < offset || i >= offset + size) && bytes[i] != poison) return false;
    }
    return true;
  }
};

float sample(Dist dist, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  const uint64_t pick = random();
  switch (dist) {
    case Dist::kZeros: return (pick & 7) == 0 ? -0.0f : 0.0f;
    case Dist::kOutliers: return normal(random) * ((pick & 63) == 0 ? 1000.0f : 1.0f);
    case Dist::kSubnormal: return normal(random) * 1e-39f;
    case Dist::kSpecial: {
      const float values[] = {INFINITY, -INFINITY, NAN, -NAN, 3e38f, -1e-45f, -0.0f, 1.0f};
      return (pick & 31) == 0 ? values[(pick >> 8) & 7] : normal(random);
    }
    default: return normal(random);
  }
}

void fill(TensorView& t, Dist dist, std::mt19937_64& random) {
  auto* bytes = t.as<uint8_t>();
  for (int64_t i = 0; i < numel(t); ++i) {
    const float x = sample(dist, random);
    switch (t.dtype) {
      case DType::kF32: std::memcpy(bytes + 4 * i, &x, 4); break;
      case DType::kBF16: {
        const uint16_t h = formats::bf16_from_f32(x);
        std::memcpy(bytes + 2 * i, &h, 2);
        break;
      }
      case DType::kF16: {
        const uint16_t h = formats::f16_from_f32(x);
        std::memcpy(bytes + 2 * i, &h, 2);
        break;
      }
      default: bytes[i] = static_cast<uint8_t>(random()); break;
    }
  }
}

// Global scales: ordinary for ordinary data, hostile for special data.
void fill_scalar(TensorView& t, Dist dist, std::mt19937_64& random) {
  const float hostile[] = {NAN, INFINITY, 0.0f, -0.01f, 1e-44f, 3e38f, -0.0f, 1e-38f};
  const float g = dist == Dist::kSpecial ? hostile[random() & 7] : 0.0013f;
  std::memcpy(t.data, &g, 4);
}

uint32_t bits_at(const TensorView& t, const uint8_t* bytes, int64_t i) {
  const int size = dtype_bytes(t.dtype);
  uint32_t bits = 0;
  std::memcpy(&bits, bytes + i * size, static_cast<size_t>(size));
  if (t.dtype == DType::kF32 && (bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC00000u;
  return bits;  // narrow outputs have one NaN
}

class BlockOps : public ::testing::TestWithParam<const char*> {};

void run_case(const Op& op, const Case& test, const Impl& impl, uint64_t seed) {
  SCOPED_TRACE(std::string(op.spec->name) + " " + test.text + " " + impl.id);
  auto parsed = call_from_text(op, test.text, DeviceType::kCpu);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  TextCall& call = parsed.value();
  std::mt19937_64 random(seed);
  const size_t count = op.spec->args.size();
  std::vector<Buffer> own(count);
  std::vector<Buffer> expected(count);
  for (size_t i = 0; i < count; ++i) {
    const Arg& arg = op.spec->args[i];
    if (arg.role == Role::kAttribute || !call.values[i].present) continue;
    TensorView& t = call.values[i].tensor;
    const auto size = static_cast<size_t>(size_bytes(t));
    // Any byte offset is allowed, so half of the runs use odd ones.
    own[i].allocate(size, seed % 2 ? (i * 7 + seed) % 64 : 0, 0xA5);
    t.data = own[i].data();
    if (arg.role == Role::kInput) {
      if (t.dtype == DType::kF32 && numel(t) == 1)
        fill_scalar(t, test.dist, random);
      else
        fill(t, test.dist, random);
      // Scales as quantisers write them, beside arbitrary bytes: those take the short ways.
      if (std::string_view(arg.name) == "scale" && test.dist == Dist::kNormal && seed % 4 < 2) {
        for (int64_t e = 0; e < numel(t); ++e) t.as<uint8_t>()[e] = 0x30 + random() % 0x40;
      }
    } else {
      expected[i].allocate(size, 0, 0x5A);
    }
  }
  const std::vector<Buffer> before = own;
  Status status = run(op, call.call, impl.id);
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < count; ++i) {
    if (op.spec->args[i].role == Role::kOutput && call.values[i].present) {
      ASSERT_TRUE(own[i].guards_intact(0xA5)) << op.spec->args[i].name << " overrun";
      call.values[i].tensor.data = expected[i].data();
    } else if (op.spec->args[i].role == Role::kInput && call.values[i].present) {
      ASSERT_EQ(before[i].bytes, own[i].bytes) << "input changed";
    }
  }
  status = run(op, call.call, "reference");
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < count; ++i) {
    if (op.spec->args[i].role != Role::kOutput || !call.values[i].present) continue;
    const TensorView& t = call.values[i].tensor;
    for (int64_t e = 0; e < numel(t); ++e) {
      ASSERT_EQ(bits_at(t, expected[i].data(), e), bits_at(t, own[i].data(), e))
          << op.spec->args[i].name << " element " << e << " of " << describe(t);
    }
  }
}

TEST_P(BlockOps, EveryImplementationGivesTheReferencesBits) {
  const Op* op = find_op(GetParam());
  ASSERT_NE(op, nullptr);
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    if (!set_isa(isa).ok()) continue;  // this CPU lacks it
    for (const Case& test : op->spec->cases) {
      if (!(test.tags & (kSmoke | kEdge))) continue;
      for (const Impl& impl : op->impls) {
        for (uint64_t seed = 1; seed <= 8; ++seed) {
          run_case(*op, test, impl, seed);
          if (HasFatalFailure()) FAIL() << isa << " seed " << seed;
        }
      }
    }
  }
  ASSERT_TRUE(set_isa("best").ok());
}

INSTANTIATE_TEST_SUITE_P(All, BlockOps,
                         ::testing::Values("quantize_nvfp4", "dequantize_nvfp4", "quantize_mxfp8",
                                           "dequantize_mxfp8", "quantize_mxfp4", "dequantize_mxfp4",
                                           "swizzle_scales", "unswizzle_scales", "swap_nibbles"),
                         [](const auto& info) { return std::string(info.param); });

// A call built from text whose tensors live in vectors owned here.
struct Filled {
  TextCall text;
  std::vector<std::vector<uint8_t>> bytes;
  const Op* op;

  Filled(const char* name, const char* arguments) : op(find_op(name)) {
    auto parsed = call_from_text(*op, arguments, DeviceType::kCpu);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    text = std::move(parsed.value());
    bytes.resize(text.values.size());
    for (size_t i = 0; i < text.values.size(); ++i) {
      if (op->spec->args[i].role == Role::kAttribute || !text.values[i].present) continue;
      bytes[i].assign(static_cast<size_t>(size_bytes(text.values[i].tensor)) + 1, 0xEE);
      text.values[i].tensor.data = bytes[i].data();
    }
  }
  size_t index(const char* arg) const { return static_cast<size_t>(find_arg(*op->spec, arg)); }
  TensorView& tensor(const char* arg) { return text.values[index(arg)].tensor; }
  std::vector<uint8_t>& operator[](const char* arg) { return bytes[index(arg)]; }
};

TEST(BlockRules, Nvfp4WorkedExample) {
  const Op* op = find_op("quantize_nvfp4");
  for (const Impl& impl : op->impls) {
    Filled call("quantize_nvfp4", "M=1 K=16 x=f32 global_scale=f32 global_scale_out=none");
    // amax 12 and g = 1: the block's scale is 2, so ties and steps lie at twice E2M1's.
    const float x[16] = {12, -12, 0.5f,   0.51f, 1.5f,  2.5f, 3.5f, 5,
                         7,  10,  -10.1f, 0,     -0.0f, 8,    6,    4};
    std::memcpy(call["x"].data(), x, sizeof(x));
    const float g = 1;
    std::memcpy(call["global_scale"].data(), &g, 4);
    ASSERT_TRUE(run(*op, call.text.call, impl.id).ok());
    const uint8_t codes[16] = {7, 15, 0, 1, 2, 2, 4, 4, 6, 6, 15, 0, 8, 6, 5, 4};
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(call["q"][static_cast<size_t>(i)], codes[2 * i] << 4 | codes[2 * i + 1]) << i;
    }
    EXPECT_EQ(call["scale_out"][0], 0x40);  // E4M3 of 2
    for (size_t i = 1; i < 512; ++i) EXPECT_EQ(call["scale_out"][i], 0) << "padding " << i;
  }
}

TEST(BlockRules, MxScaleRoundsUpAndReadsItsEdges) {
  const Op* op = find_op("quantize_mxfp8");
  for (const Impl& impl : op->impls) {
    Filled call("quantize_mxfp8", "M=3 K=32 x=f32 scale_layout=plain");
    std::vector<float> x(96, 0.0f);
    x[0] = 448.0f;                           // fits: scale 1
    x[32] = std::nextafter(448.0f, 500.0f);  // does not: scale 2
    x[64] = NAN;
    std::memcpy(call["x"].data(), x.data(), 384);
    ASSERT_TRUE(run(*op, call.text.call, impl.id).ok());
    EXPECT_EQ(call["scale_out"][0], 127);
    EXPECT_EQ(call["q"][0], 0x7E);
    EXPECT_EQ(call["scale_out"][1], 128);
    EXPECT_EQ(call["q"][32], 0x76);  // 224
    EXPECT_EQ(call["scale_out"][2], 255);
    for (size_t i = 64; i < 96; ++i) EXPECT_EQ(call["q"][i], 0x7F);
  }
  const Op* back = find_op("dequantize_mxfp8");
  for (const Impl& impl : back->impls) {
    Filled call("dequantize_mxfp8", "M=2 K=32 out=f32 scale_layout=plain");
    std::fill(call["q"].begin(), call["q"].end(), uint8_t{0x38});  // 1
    call["scale"][0] = 0;
    call["scale"][1] = 255;
    ASSERT_TRUE(run(*back, call.text.call, impl.id).ok());
    float out[64];
    std::memcpy(out, call["out"].data(), sizeof(out));
    EXPECT_EQ(out[0], std::ldexp(1.0f, -127));  // an f32 subnormal, not 0
    EXPECT_TRUE(std::isnan(out[32]));
  }
}

TEST(BlockRules, SwizzleFollowsTheFormatsMap) {
  const Op* op = find_op("swizzle_scales");
  for (const Impl& impl : op->impls) {
    Filled call("swizzle_scales", "M=200 C=7 scale=u8");
    for (size_t i = 0; i < 1400; ++i) call["scale"][i] = static_cast<uint8_t>(1 + i % 251);
    ASSERT_TRUE(run(*op, call.text.call, impl.id).ok());
    for (int64_t offset = 0; offset < 256 * 8; ++offset) {
      const formats::SwizzleCoord c = formats::swizzle_coord(offset, 7);
      const int expected = c.row < 200 && c.col < 7 ? 1 + (c.row * 7 + c.col) % 251 : 0;
      EXPECT_EQ(call["out"][static_cast<size_t>(offset)], expected) << offset;
    }
  }
}

TEST(BlockRules, RowsOfAWiderMatrixAndInPlaceSwap) {
  const Op* op = find_op("swap_nibbles");
  for (const Impl& impl : op->impls) {
    Filled call("swap_nibbles", "M=4 K=5");
    std::vector<uint8_t> wide(4 * 9, 0x12);
    for (const char* arg : {"q", "out"}) {
      call.tensor(arg).data = wide.data() + 2;
      call.tensor(arg).strides[0] = 9;
    }
    ASSERT_TRUE(run(*op, call.text.call, impl.id).ok());
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_EQ(wide[i], i % 9 >= 2 && i % 9 < 7 ? 0x21 : 0x12) << i;
    }
  }
}

TEST(BlockRules, ErrorsNameTheRule) {
  const Op* op = find_op("quantize_nvfp4");
  const auto odd = call_from_text(*op, "M=4 K=24", DeviceType::kCpu);
  ASSERT_FALSE(odd.ok());
  EXPECT_NE(odd.status().message().find("multiple of 16"), std::string::npos)
      << odd.status().message();
}

}  // namespace
}  // namespace pestle
