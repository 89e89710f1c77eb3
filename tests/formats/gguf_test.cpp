// GGUF blocks against llama.cpp's Python package: hashes of its f32 values for the same bytes,
// plus one value a format worked out by hand.
#include <gtest/gtest.h>

#include "formats/gguf.h"
#include "tests/formats/oracle.h"

namespace pestle::formats {
namespace {

// The bytes both sides start from: the top bytes of a linear congruential generator, with the top
// exponent bit of every f16 field cleared so that all values are finite.
std::vector<uint8_t> pattern(int64_t block_bytes, std::initializer_list<int64_t> halves) {
  std::vector<uint8_t> bytes(static_cast<size_t>(64 * block_bytes));
  uint64_t state = 12345;
  for (uint8_t& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<uint8_t>(state >> 56);
  }
  for (int64_t block = 0; block < 64; ++block) {
    for (const int64_t h : halves) bytes[static_cast<size_t>(block * block_bytes + h + 1)] &= 0xBF;
  }
  return bytes;
}

using DequantizeBlock = void (*)(const uint8_t*, float*);

uint64_t hash_of(DequantizeBlock dequantize, int64_t bytes, int64_t elements,
                 std::initializer_list<int64_t> halves) {
  const std::vector<uint8_t> blocks = pattern(bytes, halves);
  std::vector<float> out(static_cast<size_t>(64 * elements));
  for (int64_t b = 0; b < 64; ++b) dequantize(blocks.data() + b * bytes, out.data() + b * elements);
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the little-endian bytes
  for (const float v : out) {
    for (int i = 0; i < 4; ++i) {
      hash = (hash ^ ((oracle::bits(v) >> (8 * i)) & 0xFF)) * 0x100000001b3u;
    }
  }
  return hash;
}

// gguf 0.19.0, gguf.quants.dequantize on the same bytes.
TEST(Gguf, EqualsThePythonPackageBitForBit) {
  EXPECT_EQ(hash_of(q8_0_dequantize_block, kQ8_0Bytes, kQ8_0Block, {0}), 0x39dc77890a07f36fu);
  EXPECT_EQ(hash_of(q4_0_dequantize_block, kQ4_0Bytes, kQ4_0Block, {0}), 0xf4340a9a02ffdae2u);
  EXPECT_EQ(hash_of(q4_k_dequantize_block, kQ4_KBytes, kQ4_KBlock, {0, 2}), 0x2794d9bf6daa280du);
  EXPECT_EQ(hash_of(q6_k_dequantize_block, kQ6_KBytes, kQ6_KBlock, {208}), 0x46f56940c0e69f9du);
}

TEST(Gguf, ByHand) {
  float out[256];
  std::vector<uint8_t> block(210, 0);
  block[1] = 0x38;  // d = 0.5
  block[2] = 0xFF;
  q8_0_dequantize_block(block.data(), out);
  EXPECT_EQ(out[0], -0.5f);
  q4_0_dequantize_block(block.data(), out);
  EXPECT_EQ(out[0], 3.5f);
  EXPECT_EQ(out[16], 3.5f);
  EXPECT_EQ(out[1], -4.0f);

  std::fill(block.begin(), block.end(), 0);
  block[1] = 0x38;            // d = 0.5
  block[3] = 0x3C;            // dmin = 1
  block[4 + 3] = 0xC0 | 5;    // scale 3 is 5; scale 7's high bits are 3
  block[4 + 8 + 3] = 0x21;    // scale 7 = 0x31, min 7's low bits are 2
  block[16 + 32] = 0xA0;      // sub-block 3, element 0: 10
  block[16 + 96 + 1] = 0x70;  // sub-block 7, element 1: 7
  q4_k_dequantize_block(block.data(), out);
  EXPECT_EQ(out[96], 25.0f);
  EXPECT_EQ(out[7 * 32 + 1], 0.5f * 49.0f * 7.0f - 2.0f);
  EXPECT_EQ(out[7 * 32 + 2], -2.0f);

  std::fill(block.begin(), block.end(), 0);
  block[209] = 0x38;
  for (int i = 0; i < 16; ++i) block[192 + i] = static_cast<uint8_t>(-2);
  block[64 + 5] = 0x40;        // element 128 + 64 + 5: low nibble 4
  block[128 + 32 + 5] = 0x20;  // its pair: 2
  q6_k_dequantize_block(block.data(), out);
  EXPECT_EQ(out[197], (0.5f * -2.0f) * (4 + 32 - 32));
  EXPECT_EQ(out[0], 32.0f);
}

}  // namespace
}  // namespace pestle::formats
