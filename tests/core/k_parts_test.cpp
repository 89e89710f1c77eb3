// Tiles and parts of k of weight-only products, on a machine of 132 multiprocessors.
#include "ops/gemm/weight_only/k_parts.h"

#include <gtest/gtest.h>

#include <string>

namespace pestle::ops {
namespace {

constexpr TileTime kTiles[] = {{256, 0.74}, {192, 0.62}, {64, 0.53}};

KPlan plan(int64_t m, int64_t n, int64_t k) { return choose_k_plan(m, n, k, kTiles, 132); }
int64_t tiles_of(int64_t m, int64_t n, int rows) {
  return (m + rows - 1) / rows * ((n + kPartTileN - 1) / kPartTileN);
}

TEST(KParts, FewTilesShareKAmongTheMultiprocessors) {
  for (const int64_t m : {17, 32, 64}) {
    EXPECT_EQ(plan(m, 4096, 4096).parts, 4) << m;   // 32 tiles
    EXPECT_EQ(plan(m, 3072, 12288).parts, 5) << m;  // 24 tiles
  }
  EXPECT_GT(plan(128, 4096, 4096).parts, 1);
  EXPECT_GT(plan(256, 4096, 4096).parts, 1);
}

TEST(KParts, OneWhereTilesKeepAllBusy) {
  EXPECT_EQ(plan(64, 14336, 4096).parts, 1);  // 112 tiles
  EXPECT_EQ(plan(1024, 12288, 3072).parts, 1);
  const KPlan many = plan(4608, 12288, 3072);
  EXPECT_EQ(many.parts, 1);
  EXPECT_EQ(many.rows, 256);
}

TEST(KParts, OneWhereKIsShort) {
  for (const int64_t k : {32, 96, 256, 480}) EXPECT_EQ(plan(64, 128, k).parts, 1) << k;
}

TEST(KParts, CoverKInPartsThatFitTheWorkspace) {
  for (int64_t m = 17; m < 9000; m = m * 3 / 2) {
    for (int64_t n = 1; n < 40000; n = n * 3 + 5) {
      for (int64_t k = 32; k < 40000; k = k * 3 / 64 * 32 + 96) {
        const KPlan p = plan(m, n, k);
        EXPECT_GE(p.parts, 1);
        EXPECT_LE(p.parts, kMostKParts);
        if (p.parts == 1) continue;
        const int64_t steps = k_part_steps(k, p.parts);
        EXPECT_EQ(steps % 2, 0);
        EXPECT_GE(steps * p.parts * 64, k);
        EXPECT_LT(steps * (p.parts - 1) * 64, k);  // the last has some
        // What PESTLE_K_PARTS_BYTES asks for.
        EXPECT_GE(k, 512);
        EXPECT_LE(2 * k_part_bytes(m, n), kMostKPartBytes);
        EXPECT_LE(
            p.parts * k_part_bytes(m, n),
            std::min(4 * std::min<int64_t>(8, k / 256) * m * k_part_pitch(n), kMostKPartBytes));
        EXPECT_LE(2 * p.parts * tiles_of(m, n, p.rows), 16 * ((m + 63) / 64) * ((n + 127) / 128));
      }
    }
  }
}

TEST(KParts, AreFasterByTheModelThanOne) {
  for (const int64_t m : {32, 64, 128, 256, 512}) {
    const KPlan p = plan(m, 4096, 4096);
    for (const TileTime& tile : kTiles)
      EXPECT_LE(p.us, k_plan_time(m, 4096, 4096, tile, 1, 132)) << m << " " << tile.rows;
  }
}

TEST(KParts, ContractsSayTheSameMostBytes) {
  EXPECT_EQ(PESTLE_MOST_K_PART_BYTES, std::to_string(kMostKPartBytes));
}

}  // namespace
}  // namespace pestle::ops
