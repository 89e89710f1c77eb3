// Slabs of decoded operands, on a machine of 132 multiprocessors.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "ops/gemm/weight_only/slabs.h"

namespace pestle::ops {
namespace {

int64_t rows_of(int64_t m, int64_t n, int64_t k) { return slab_rows(m, n, k, 132); }
// Columns of tiles that a multiprocessor makes, by slabs.
int64_t columns_of(int64_t m, int64_t n, int64_t rows) {
  int64_t columns = 0;
  for (int64_t first = 0; first < n; first += rows) {
    const TilePlan tiles = choose_tile_plan(m, std::min(rows, n - first), 1, 132, false);
    columns += tiles.waves * tiles.n;
  }
  return columns;
}

TEST(Slabs, OneWhereTheWeightFits) {
  EXPECT_EQ(rows_of(4608, 3072, 3072), 3072);
  EXPECT_EQ(rows_of(2048, 72, 64), 72);
  EXPECT_EQ(rows_of(2048, 8191, 1980), 8191);  // not a multiple of 64
}

TEST(Slabs, FitAndBeginAtMultiplesOf64) {
  for (int64_t k = 32; k <= 60000; k = k * 3 / 64 * 32 + 32) {
    for (int64_t n = 1; n < kMostSlabRows; n = n * 5 + 3) {
      const int64_t rows = rows_of(4608, n, k);
      EXPECT_GE(rows, std::min(n, kSlabUnit)) << n << " x " << k;
      EXPECT_LE(rows, n);
      EXPECT_LE(rows * (2 * k + 4), kMostSlabBytes) << n << " x " << k;
      EXPECT_TRUE(rows == n || rows % kSlabUnit == 0) << n << " x " << k;
    }
  }
}

TEST(Slabs, AllMemoryIsWithin32MiB) {
  EXPECT_LE(kMostSlabBytes + kMostSlabRows + 1280, int64_t{32} << 20);
  EXPECT_EQ(PESTLE_MOST_SLAB_BYTES, std::to_string(kMostSlabBytes));  // in contracts
  EXPECT_LE(kMostPairBytes + kMostSlabRows + 2560, int64_t{128} << 20);
  EXPECT_EQ(PESTLE_MOST_PAIR_BYTES, std::to_string(kMostPairBytes));
}

// Beside the tiles of the whole weight, of which each slab but the last would have a share.
TEST(Slabs, LeaveLittleOfTheirWavesIdle) {
  const int64_t shapes[][3] = {{32760, 5120, 5120},
                               {32760, 13824, 5120},
                               {32760, 5120, 13824},
                               {8192, 4096, 14336},
                               {4608, 9216, 3072}};
  for (const auto& [m, n, k] : shapes) {
    const int64_t rows = rows_of(m, n, k);
    EXPECT_LT(rows, n);
    EXPECT_LE(100 * columns_of(m, n, rows), 103 * columns_of(m, n, n)) << m << " " << n << " " << k;
  }
}

TEST(Slabs, AreWholeWavesWhereTheyCanBe) {
  EXPECT_EQ(columns_of(4608, 12288, rows_of(4608, 12288, 3072)), columns_of(4608, 12288, 12288));
  EXPECT_EQ(columns_of(2048, 12288, rows_of(2048, 12288, 3072)), columns_of(2048, 12288, 12288));
  // The largest slabs that fit would not be.
  EXPECT_GT(columns_of(4608, 12288, most_slab_rows(12288, 3072)), columns_of(4608, 12288, 12288));
}

SlabPair pair_of(int64_t m, int64_t n, int64_t k) { return slab_pair(m, n, k, 132); }

TEST(SlabPairs, AreWholeWhereTheyFit) {
  const SlabPair slabs = pair_of(1000, 1501, 4096);
  EXPECT_EQ(slabs.a, 1000);
  EXPECT_EQ(slabs.b, 1501);
}

TEST(SlabPairs, FitAndBeginWhereTilesDo) {
  for (int64_t k = 32; pair_rows_that_fit(k) >= kLeastPair; k = k * 3 / 64 * 32 + 32) {
    for (int64_t m = 512; m < kMostSlabRows; m = m * 5 + 3) {
      for (int64_t n = 512; m + n <= kMostSlabRows; n = n * 7 + 1) {
        const SlabPair slabs = pair_of(m, n, k);
        ASSERT_GT(slabs.a, 0) << m << " x " << n << " x " << k;
        ASSERT_GT(slabs.b, 0) << m << " x " << n << " x " << k;
        EXPECT_LE((slabs.a + slabs.b) * (2 * k + 4), kMostPairBytes)
            << m << " x " << n << " x " << k;
        EXPECT_TRUE(slabs.a == m || (slabs.a < m && slabs.a % kGemmTileM == 0)) << m << " x " << k;
        EXPECT_TRUE(slabs.b == n || (slabs.b < n && slabs.b % kSlabUnit == 0)) << n << " x " << k;
      }
    }
  }
}

// Beside the tiles of the whole product.
TEST(SlabPairs, LeaveLittleOfTheirWavesIdle) {
  const int64_t shapes[][3] = {{16384, 12288, 3072}, {8192, 8192, 8192}, {32760, 4096, 3072}};
  for (const auto& [m, n, k] : shapes) {
    const SlabPair slabs = pair_of(m, n, k);
    EXPECT_LT(slabs.a * slabs.b, m * n);
    EXPECT_LE(100 * pair_cost(m, n, k, slabs, 132), 116 * tiles_cost(m, n, k, 132))
        << m << " " << n << " " << k;
  }
}

// The larger operand's codes are decoded once for each slab of the smaller one, so by few of these.
TEST(SlabPairs, TheCheaperOrder) {
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{2048, 40960}, {40960, 2048}}) {
    const SlabPair slabs = pair_of(m, n, 3072);
    SlabPair other = slabs;
    other.a_outer = !slabs.a_outer;
    EXPECT_LE(pair_cost(m, n, 3072, slabs, 132), pair_cost(m, n, 3072, other, 132));
  }
}

}  // namespace
}  // namespace pestle::ops
