// Which tile a GEMM takes, on a machine of 132 multiprocessors.
#include <gtest/gtest.h>

#include <vector>

#include "ops/gemm/select/gemm_tiles.h"
#include "ops/gemm/select/gemv_parts.h"

namespace pestle::ops {
namespace {

TilePlan choose(int64_t m, int64_t n, int64_t batches = 1, bool halves = false) {
  return choose_tile_plan(m, n, batches, 132, halves);
}

TEST(GemmTiles, WideTilesWhereTheyFillTheWaves) {
  EXPECT_EQ(describe(choose(4096, 4096)), "128x256, 512 tiles in 4 waves");
  EXPECT_EQ(describe(choose(4608, 9216)), "128x256, 1296 tiles in 10 waves");
}

TEST(GemmTiles, NarrowTilesWhereWideOnesLeaveMostOfAWaveIdle) {
  // 9 tiles of 256 columns take as long as 17 of 128, of which all run at one time.
  EXPECT_EQ(choose(128, 2176).n, 128);
  EXPECT_EQ(choose(128, 2176).waves, 1);
}

TEST(GemmTiles, NeverMoreWavesTimesColumnsThanTheWidestTile) {
  for (int64_t m = 1; m < 9000; m += 517) {
    for (int64_t n = 8; n < 13000; n += 712) {
      const TilePlan tile = choose(m, n);
      const int64_t wide = (m + 127) / 128 * ((n + 255) / 256);
      EXPECT_LE(tile.waves * tile.n, (wide + 131) / 132 * 256) << m << " x " << n;
      EXPECT_GE(tile.tiles * 128 * tile.n, m * n) << m << " x " << n;
      EXPECT_GE(tile.waves * 132, tile.tiles) << m << " x " << n;
    }
  }
}

TEST(GemmTiles, SplitKWhereTilesLeaveMostOfAWaveIdle) {
  // 432 tiles of 256 columns: 36 beyond three waves.
  const TilePlan tile = choose_tile_plan(4608, 3072, 1, 132, false, 192);
  EXPECT_EQ(describe(tile), "128x256, 432 tiles in 4 waves, the last 36 by split-K of 3");
  EXPECT_EQ(tile.whole, 396);
  EXPECT_EQ(choose_tile_plan(64, 4096, 1, 132, false, 96).splits, 4);
  // Not where adding the sums would take longer than the idle time, nor where no wave is left.
  EXPECT_EQ(choose_tile_plan(64, 4096, 1, 132, false, 32).splits, 1);
  EXPECT_EQ(choose_tile_plan(128, 256 * 132, 1, 132, false, 192).splits, 1);
  EXPECT_EQ(choose_tile_plan(4096, 4096, 1, 132, false, 64).splits, 1);
}

TEST(GemmTiles, SplitsFitTheMachineAndTheirMemory) {
  for (const int multiprocessors : {1, 7, 78, 114, 132, 148}) {
    for (int64_t tiles = 1; tiles < 400; ++tiles) {
      for (const int64_t steps : {1, 7, 16, 33, 192}) {
        const TilePlan t = with_split_k(tile_plan_of(128, 128, 128 * tiles, 1, multiprocessors),
                                        steps, multiprocessors);
        const int64_t split = t.tiles - t.whole;
        EXPECT_LE(split * t.splits, multiprocessors);
        EXPECT_LE(split * (t.splits - 1), kMostParts);
        EXPECT_EQ(t.whole % multiprocessors, t.splits > 1 ? 0 : t.whole % multiprocessors);
        if (t.splits > 1) {
          EXPECT_GE(steps / kSplitUnit, t.splits);
          EXPECT_LT(steps_of(t, steps, multiprocessors), t.waves * steps);
        }
      }
    }
  }
}

TEST(GemmTiles, BatchesCountAsTiles) {
  EXPECT_EQ(choose(128, 256, 132).tiles, 132);
  EXPECT_EQ(choose(128, 256, 132).waves, 1);
}

TEST(GemmTiles, SumsBegunAnewTakeTilesOfWholeHalves) {
  for (int64_t n = 64; n < 13000; n += 64) EXPECT_EQ(choose(4096, n, 1, true).n % 128, 0) << n;
}

TEST(GemmTiles, GemvTakesAllColumnsInOneWaveWhereTheyFit) {
  EXPECT_EQ(describe(choose_gemv_tile(4096, 132)), "32 columns, 128 tiles");
  EXPECT_EQ(describe(choose_gemv_tile(14336, 132)), "112 columns, 128 tiles");
  EXPECT_EQ(choose_gemv_tile(1, 132).columns, 8);
  for (int64_t n = 1; n < 40000; n += 31) {
    const GemvTile t = choose_gemv_tile(n, 132);
    EXPECT_EQ(t.columns % 8, 0) << n;
    EXPECT_LE(t.columns, 128) << n;
    EXPECT_GE(int64_t{t.columns} * t.tiles, n) << n;
    EXPECT_LT(int64_t{t.columns} * (t.tiles - 1), n) << n;
    EXPECT_LE((t.tiles + 131) / 132, (n + 132 * 128 - 1) / (132 * 128)) << n;
  }
}

// Every row of every weight is in one tile, which lies within its weight.
void expect_parts_cover(const std::vector<int64_t>& widths, int columns) {
  const GemvParts parts = lay_out_parts(widths, columns);
  std::vector<int64_t> rows(widths.size());
  for (int tile = 0; tile < parts.tiles; ++tile) {
    const auto p = static_cast<size_t>(parts.part_of(tile));
    ASSERT_LT(p, widths.size());
    const int64_t first = int64_t{tile - parts.first[p]} * columns;
    ASSERT_EQ(first, rows[p]) << "tile " << tile;
    ASSERT_LT(first, widths[p]);
    rows[p] = std::min(first + columns, widths[p]);
  }
  EXPECT_EQ(rows, widths);
}

TEST(GemvParts, TilesOfSeveralWeightsCoverEachOfThem) {
  for (const int columns : {8, 16, 48, 128}) {
    expect_parts_cover({4096, 1024, 1024}, columns);
    expect_parts_cover({130, 33, 31}, columns);
    expect_parts_cover({1, 1, 1}, columns);
    expect_parts_cover({17, 8}, columns);
    expect_parts_cover({16, 0, 129}, columns);
    expect_parts_cover({0, 0, 5}, columns);
    expect_parts_cover({700}, columns);
  }
}

TEST(GemvParts, TilesOfSeveralWeightsAreAsFewAsTheMachineHasMultiprocessors) {
  EXPECT_EQ(describe(choose_gemv_tile(std::vector<int64_t>{4096, 1024, 1024}, 132)),
            "48 columns, 130 tiles");
  EXPECT_EQ(describe(choose_gemv_tile(std::vector<int64_t>{3072, 3072, 3072}, 132)),
            "72 columns, 129 tiles");
  // One column too many for a wave: two waves of narrower tiles.
  EXPECT_EQ(describe(choose_gemv_tile(std::vector<int64_t>{5632, 5632, 5632}, 132)),
            "128 columns, 132 tiles");
  EXPECT_EQ(describe(choose_gemv_tile(std::vector<int64_t>{5640, 5632, 5624}, 132)),
            "72 columns, 237 tiles");
  for (int64_t n = 1; n < 40000; n += 31) {
    const GemvTile alone = choose_gemv_tile(n, 132);
    EXPECT_EQ(describe(choose_gemv_tile(std::vector<int64_t>{n}, 132)), describe(alone));
  }
}

}  // namespace
}  // namespace pestle::ops
