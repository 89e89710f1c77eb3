// Slabs of a decoded weight, on a machine of 132 multiprocessors.
#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace pestle::ops
