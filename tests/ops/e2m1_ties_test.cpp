// ops/quant/block/e2m1_ties.h on the host: every bf16 and f16 significand against the rule's
// quotient, for global scales of every kind.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "formats/e2m1.h"
#include "ops/quant/block/e2m1_ties.h"

namespace pestle::ops {
namespace {

using formats::f32_from_bits;

// Codes of a magnitude as e2m1_word makes them: an f16 whose smallest normal number stands for 1,
// cut off; its upper byte counts halves of codes.
uint32_t code_of_product(float p, bool promote) {
  uint32_t bits = 0;
  if (p < 1)
    bits = static_cast<uint32_t>(p * 1024);
  else {
    const int e = std::ilogb(p);
    bits =
        1024 * static_cast<uint32_t>(e + 1) + static_cast<uint32_t>((std::ldexp(p, -e) - 1) * 1024);
  }
  if (promote) bits += bits >> 9 & 1;
  return ((bits >> 8) + 1) >> 1;
}

template <int kLost>
E2m1Moves moves_of(float g, bool offered) {
  uint32_t near = 0, up = 0, promotes = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const E2m1Tie tie = e2m1_tie<kLost>(static_cast<float>(8 + lane / 4) * g, 2 * (lane % 4) + 1);
    near |= static_cast<uint32_t>(tie.near) << lane;
    up |= static_cast<uint32_t>(tie.up) << lane;
    promotes |= static_cast<uint32_t>(tie.promotes) << lane;
  }
  return E2m1Moves::of(near, up, promotes, offered);
}

struct Counts {
  int64_t wrong = 0, undecided = 0, blocks = 0;
};

// `error`: ulps that the reciprocal may be off.
template <int kLost>
void try_scale(float g, bool offered, int error, Counts& counts) {
  const E2m1Moves moves = moves_of<kLost>(g, offered);
  for (int significand = 8; significand < 16; ++significand) {
    const float s = static_cast<float>(significand) / 8;
    const float factor = s * g;
    const uint32_t place = E2m1Moves::place(s);
    ++counts.blocks;
    if (moves.at(place) == E2m1Moves::kUndecided) {
      ++counts.undecided;
      continue;
    }
    for (int off = -error; off <= error; ++off) {
      const float by = E2m1Moves::moved(1.0f / factor, moves.at(place) + off);
      const int exponent = std::ilogb(factor);
      for (int e = exponent - 4; e <= exponent + 3; ++e) {
        for (uint32_t bits = 0; bits < (1u << (23 - kLost)); ++bits) {
          const float x = std::ldexp(f32_from_bits(0x3F800000u | bits << kLost), e);
          if (x * by >= 6.75f) continue;
          const uint32_t expected = formats::e2m1_from_f32(x / factor);
          counts.wrong += code_of_product(x * by, moves.promotes(place)) != expected;
        }
      }
    }
  }
}

TEST(E2m1Ties, GlobalScaleOfAnAmax) {
  Counts counts;
  for (uint32_t bits = 0; bits < 128; ++bits) {
    const float amax = f32_from_bits(0x3F800000u | bits << 16);
    try_scale<16>(amax / 2688.0f, true, 1, counts);
    try_scale<16>(1.0f / (2688.0f / amax), true, 1, counts);  // as some callers compute it
  }
  EXPECT_EQ(counts.wrong, 0);
  EXPECT_LE(counts.undecided * 100, counts.blocks) << counts.undecided << " of " << counts.blocks;
}

TEST(E2m1Ties, PowersOfTwoAndFewBits) {
  Counts counts;
  for (int bits = 1; bits < 128; ++bits)
    try_scale<16>(std::ldexp(float(bits), -9), true, 0, counts);
  EXPECT_EQ(counts.wrong, 0);
  Counts powers;
  for (int e = -20; e <= 4; ++e) try_scale<16>(std::ldexp(1.0f, e), true, 0, powers);
  EXPECT_EQ(powers.wrong, 0);
  EXPECT_EQ(powers.undecided, 0);
}

TEST(E2m1Ties, AnyScale) {
  std::mt19937 random(7);
  Counts counts;
  for (int i = 0; i < 1500; ++i) {
    try_scale<16>(f32_from_bits(0x3A000000u | (random() & 0x7FFFFF)), true, 1, counts);
  }
  // Near ties on purpose: some ulps beside numbers with few bits.
  for (int i = 0; i < 1500; ++i) {
    const uint32_t few = (random() & 0xFF) << 15;
    try_scale<16>(f32_from_bits(0x3A000000u + few + random() % 65 - 32), true, 0, counts);
  }
  EXPECT_EQ(counts.wrong, 0);
}

TEST(E2m1Ties, F16) {
  std::mt19937 random(8);
  Counts counts;
  for (int i = 0; i < 60; ++i) {
    const float amax = f32_from_bits(0x3F800000u | (random() & 0x3FF) << 13);
    try_scale<13>(amax / 2688.0f, true, 0, counts);
    try_scale<13>(f32_from_bits(0x3A000000u | (random() & 0x7FFFFF)), true, 1, counts);
    try_scale<13>(std::ldexp(static_cast<float>(1 + random() % 64), -12), true, 0, counts);
  }
  EXPECT_EQ(counts.wrong, 0);
}

}  // namespace
}  // namespace pestle::ops
