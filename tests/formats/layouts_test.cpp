// Packings of 4-bit codes, the scale swizzle and the Hadamard rotation.
#include <gtest/gtest.h>

#include <cstring>

#include "formats/hadamard.h"
#include "formats/packing.h"
#include "formats/swizzle.h"
#include "tests/formats/oracle.h"

namespace pestle::formats {
namespace {

constexpr Int4Packing kAll[] = {Int4Packing::kPlain, Int4Packing::kPlainUnsigned,
                                Int4Packing::kKaio, Int4Packing::kGptq, Int4Packing::kAwq};

uint32_t word(const std::vector<uint8_t>& bytes, size_t index) {
  uint32_t w = 0;
  std::memcpy(&w, bytes.data() + 4 * index, 4);
  return w;
}

// An 8 x 16 matrix of signed codes q(n, k) = ((n + k) mod 16) - 8, packed plain.
std::vector<uint8_t> plain_matrix() {
  std::vector<uint8_t> plain(8 * 16 / 2);
  for (int n = 0; n < 8; ++n) {
    for (int k = 0; k < 16; k += 2) {
      const auto even = static_cast<uint8_t>(((n + k) % 16 - 8) & 15);
      const auto odd = static_cast<uint8_t>(((n + k + 1) % 16 - 8) & 15);
      plain[static_cast<size_t>(n * 8 + k / 2)] = static_cast<uint8_t>(even | (odd << 4));
    }
  }
  return plain;
}

std::vector<uint8_t> packed(Int4Packing p) {
  const std::vector<uint8_t> plain = plain_matrix();
  std::vector<uint8_t> out(plain.size(), 0xA5);
  repack_int4(Int4Packing::kPlain, plain.data(), p, out.data(), 8, 16);
  return out;
}

// Words written by hand from docs/formats/packing.md. Stored signed, q = -8 is 8; unsigned, 0.
TEST(Packing, BitTable) {
  const auto plain = packed(Int4Packing::kPlain);
  EXPECT_EQ(plain[0], 0x98);  // row 0: -8 low, -7 high
  EXPECT_EQ(plain[8], 0xA9);  // row 1 starts at -7
  const auto unsigned_plain = packed(Int4Packing::kPlainUnsigned);
  EXPECT_EQ(unsigned_plain[0], 0x10);
  EXPECT_EQ(unsigned_plain[8], 0x21);
  const auto kaio = packed(Int4Packing::kKaio);
  EXPECT_EQ(word(kaio, 0), 0xFEDCBA98u);  // row 0, k 0..7: -8..-1
  EXPECT_EQ(word(kaio, 1), 0x76543210u);  // row 0, k 8..15: 0..7
  EXPECT_EQ(word(kaio, 2), 0x0FEDCBA9u);  // row 1
  const auto gptq = packed(Int4Packing::kGptq);
  EXPECT_EQ(word(gptq, 0), 0x76543210u);  // k 0..7 of n = 0
  EXPECT_EQ(word(gptq, 1), 0x87654321u);  // k 0..7 of n = 1
  EXPECT_EQ(word(gptq, 8), 0xFEDCBA98u);  // k 8..15 of n = 0
  const auto awq = packed(Int4Packing::kAwq);
  EXPECT_EQ(word(awq, 0), 0x75316420u);   // n 0..7 of k = 0 in the order 0 2 4 6 1 3 5 7
  EXPECT_EQ(word(awq, 1), 0x86427531u);   // n 0..7 of k = 1
  EXPECT_EQ(word(awq, 15), 0x6420531Fu);  // n 0..7 of k = 15: codes 15 0 1 2 3 4 5 6
}

TEST(Packing, EveryPairConvertsAndReturns) {
  oracle::Random random(41);
  const int64_t sizes[][2] = {{8, 8}, {16, 40}, {24, 8}, {128, 64}};
  for (const auto& [rows, cols] : sizes) {
    std::vector<uint8_t> source(static_cast<size_t>(rows * cols / 2));
    for (uint8_t& b : source) b = random.u8();
    for (const Int4Packing from : kAll) {
      for (const Int4Packing to : kAll) {
        std::vector<uint8_t> there(source.size(), 0xEE);
        std::vector<uint8_t> back(source.size(), 0x11);
        repack_int4(from, source.data(), to, there.data(), rows, cols);
        repack_int4(to, there.data(), from, back.data(), rows, cols);
        ASSERT_EQ(back, source);
        for (int64_t n = 0; n < rows; ++n) {
          for (int64_t k = 0; k < cols; ++k) {
            int a = load_nibble(source.data(), packing_nibble(from, n, k, rows, cols));
            int b = load_nibble(there.data(), packing_nibble(to, n, k, rows, cols));
            a = packing_is_signed(from) ? (a ^ 8) : a;  // both as q + 8
            b = packing_is_signed(to) ? (b ^ 8) : b;
            ASSERT_EQ(a, b);
          }
        }
      }
    }
  }
}

TEST(Packing, EveryPlaceIsUsedOnce) {
  for (const Int4Packing p : kAll) {
    std::vector<int> hits(24 * 40);
    for (int64_t n = 0; n < 24; ++n) {
      for (int64_t k = 0; k < 40; ++k) ++hits.at(packing_nibble(p, n, k, 24, 40));
    }
    for (const int h : hits) EXPECT_EQ(h, 1);
    EXPECT_EQ(24 % packing_n_multiple(p), 0);
    EXPECT_EQ(40 % packing_k_multiple(p), 0);
  }
}

TEST(Packing, ZeroPoints) {
  std::vector<uint8_t> gptq(2 * 8 / 2);
  std::vector<uint8_t> awq(2 * 8 / 2);
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t n = 0; n < 8; ++n) {
      gptq_store_zero(gptq.data(), g, n, 8, static_cast<uint8_t>(n + 8 * g));
      awq_store_zero(awq.data(), g, n, 8, static_cast<uint8_t>(n + 8 * g));
    }
  }
  EXPECT_EQ(word(gptq, 0), 0x6543210Fu);  // stored less one; zero 0 wraps to 15
  EXPECT_EQ(word(gptq, 1), 0xEDCBA987u);
  EXPECT_EQ(word(awq, 0), 0x75316420u);
  EXPECT_EQ(word(awq, 1), 0xFDB9ECA8u);
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t n = 0; n < 8; ++n) {
      EXPECT_EQ(gptq_load_zero(gptq.data(), g, n, 8), n + 8 * g);
      EXPECT_EQ(awq_load_zero(awq.data(), g, n, 8), n + 8 * g);
    }
  }
}

TEST(Swizzle, ByHand) {
  EXPECT_EQ(swizzle_offset(0, 0, 8), 0);
  EXPECT_EQ(swizzle_offset(0, 3, 8), 3);
  EXPECT_EQ(swizzle_offset(1, 0, 8), 16);
  EXPECT_EQ(swizzle_offset(31, 0, 8), 496);
  EXPECT_EQ(swizzle_offset(32, 0, 8), 4);
  EXPECT_EQ(swizzle_offset(127, 3, 8), 511);
  EXPECT_EQ(swizzle_offset(0, 4, 8), 512);
  EXPECT_EQ(swizzle_offset(128, 0, 8), 1024);
  EXPECT_EQ(swizzle_offset(128, 0, 5), 1024);  // columns pad to a multiple of 4
  EXPECT_EQ(swizzle_size(1, 1), 512);
  EXPECT_EQ(swizzle_size(129, 5), 2048);
  // Beyond 2^32 entries.
  EXPECT_EQ(swizzle_offset(int64_t{1} << 31, 0, 16), (int64_t{1} << 31) * 16);
}

TEST(Swizzle, IsABijectionOntoThePaddedTiles) {
  const int64_t sizes[][2] = {{1, 1}, {127, 3}, {128, 4}, {130, 9}, {300, 17}};
  for (const auto& [rows, cols] : sizes) {
    const int64_t padded_rows = swizzle_padded_rows(rows);
    const int64_t padded_cols = swizzle_padded_cols(cols);
    std::vector<int> hits(static_cast<size_t>(swizzle_size(rows, cols)));
    for (int64_t r = 0; r < padded_rows; ++r) {
      for (int64_t c = 0; c < padded_cols; ++c) {
        const int64_t offset = swizzle_offset(r, c, cols);
        ++hits.at(static_cast<size_t>(offset));
        const SwizzleCoord at = swizzle_coord(offset, cols);
        ASSERT_EQ(at.row, r);
        ASSERT_EQ(at.col, c);
      }
    }
    for (const int h : hits) ASSERT_EQ(h, 1);
  }
}

// Entry (i, j) of H_n: a product over the base-4 digits of H_4, divided by sqrt(n).
double hadamard_entry(int64_t n, int64_t i, int64_t j) {
  double h = 1;
  for (int64_t m = n; m > 1; m /= 4, i /= 4, j /= 4) {
    h *= (i % 4 + j % 4 == 3 ? -1.0 : 1.0) * 0.5;
  }
  return h;
}

TEST(Hadamard, UnitVectorsGiveTheDenseMatrix) {
  for (const int64_t n : {4, 16, 64, 256, 1024}) {
    std::vector<float> v(static_cast<size_t>(n));
    for (int64_t j = 0; j < n; ++j) {
      std::fill(v.begin(), v.end(), 0.0f);
      v[static_cast<size_t>(j)] = 1.0f;
      hadamard_rotate(v.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(v[static_cast<size_t>(i)], hadamard_entry(n, i, j)) << n << " " << i << " " << j;
      }
    }
  }
}

TEST(Hadamard, RowsAreOrthonormalAndSymmetric) {
  for (const int64_t n : {4, 16, 64, 256}) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < n; ++k) dot += hadamard_entry(n, i, k) * hadamard_entry(n, j, k);
        ASSERT_EQ(dot, i == j ? 1.0 : 0.0);
        ASSERT_EQ(hadamard_entry(n, i, j), hadamard_entry(n, j, i));
      }
    }
  }
}

TEST(Hadamard, RandomVectorsAreNearTheDenseProduct) {
  oracle::Random random(43);
  for (const int64_t n : {4, 16, 64, 256, 1024}) {
    std::vector<float> x(static_cast<size_t>(n));
    double norm = 0;
    for (float& v : x) {
      v = random.normal();
      norm += static_cast<double>(v) * v;
    }
    std::vector<float> y = x;
    hadamard_rotate(y.data(), n);
    // Three rounded sums a stage, each within half an ulp of a value no larger than the norm.
    const double bound = std::sqrt(norm) * 0x1p-24 * 3 * std::log2(static_cast<double>(n));
    for (int64_t i = 0; i < n; ++i) {
      double want = 0;
      for (int64_t j = 0; j < n; ++j) want += hadamard_entry(n, i, j) * x[static_cast<size_t>(j)];
      ASSERT_NEAR(y[static_cast<size_t>(i)], want, bound);
    }
    hadamard_rotate(y.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(y[static_cast<size_t>(i)], x[static_cast<size_t>(i)], 2 * bound);
    }
  }
}

// The order of the sums is part of the rule. Random values make any other order differ somewhere:
// every output of every stage from the four inputs whose index differs in one base-4 digit, lowest
// digit first, added left to right, the input that is subtracted in its own place but never first.
TEST(Hadamard, OrderOfSums) {
  oracle::Random random(47);
  for (const size_t n : {4, 16, 64, 256, 1024}) {
    std::vector<float> x(n);
    for (float& v : x) v = random.normal();
    std::vector<float> want = x;
    for (size_t digit = 1; digit < n; digit *= 4) {
      std::vector<float> next(n);
      for (size_t i = 0; i < n; ++i) {
        const size_t own = i / digit % 4;
        const size_t base = i - own * digit;
        const float a = want[base];
        const float b = want[base + digit];
        const float c = want[base + 2 * digit];
        const float d = want[base + 3 * digit];
        float sum = own == 3 ? b - a : own == 2 ? a - b : a + b;
        sum = own == 1 ? sum - c : sum + c;
        next[i] = own == 0 ? sum - d : sum + d;
      }
      want = next;
    }
    hadamard_rotate(x.data(), static_cast<int64_t>(n));
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(x[i], want[i] * static_cast<float>(1.0 / std::sqrt(n))) << n << " " << i;
    }
  }
}

TEST(Hadamard, Sizes) {
  for (int64_t n = 0; n <= 5000; ++n) {
    const bool ok = n == 4 || n == 16 || n == 64 || n == 256 || n == 1024;
    EXPECT_EQ(hadamard_size_ok(n), ok) << n;
    if (ok) {
      EXPECT_EQ(hadamard_norm(n) * hadamard_norm(n) * static_cast<float>(n), 1.0f);
    }
  }
}

}  // namespace
}  // namespace pestle::formats
