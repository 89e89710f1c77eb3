// Tiles and parts of k of weight-only products, on a machine of 132 multiprocessors.
#include "ops/gemm/weight_only/k_parts.h"

#include <gtest/gtest.h>

#include <bit>

namespace pestle::ops {
namespace {

constexpr ClusterRoom kRoom{{0, 132, 66, 39, 30, 22, 17, 15, 15}};  // an H200's

KPlan plan(int64_t m, int64_t n, int64_t k) { return choose_k_plan(m, n, k, kScaledTiles, kRoom); }

TEST(KParts, FewTilesShareKAmongTheMultiprocessors) {
  for (const int64_t m : {16, 32, 64}) {
    EXPECT_EQ(plan(m, 4096, 4096).rows, m);         // as few as there are
    EXPECT_EQ(plan(m, 4096, 4096).parts, 5) << m;   // 22 tiles of 192 rows of the weight
    EXPECT_GE(plan(m, 3072, 12288).parts, 6) << m;  // 16 or 12 tiles
  }
  EXPECT_EQ(plan(128, 4096, 4096).parts, 3);  // 32 tiles of 128: 30 have 4 parts at once
  EXPECT_GT(plan(256, 4096, 4096).parts, 1);
  EXPECT_GT(plan(512, 3072, 12288).parts, 1);  // beyond kPartsBesideRing
}

TEST(KParts, OneWhereTilesKeepAllBusy) {
  EXPECT_EQ(plan(64, 28672, 4096).parts, 1);  // 112 tiles
  EXPECT_EQ(plan(1024, 12288, 3072).parts, 1);
  const KPlan many = plan(4608, 12288, 3072);
  EXPECT_EQ(many.parts, 1);
  EXPECT_EQ(many.rows, 256);
}

TEST(KParts, OneWhereKIsShort) {
  for (const int64_t k : {32, 96, 256, 480}) EXPECT_EQ(plan(64, 128, k).parts, 1) << k;
}

TEST(KParts, OneWhereThereAreNoClusters) {
  EXPECT_EQ(choose_k_plan(64, 4096, 4096, kScaledTiles, {{0, 132}}).parts, 1);
  EXPECT_EQ(choose_k_plan(64, 4096, 4096, kScaledTiles, {{0, 132, 66}}).parts, 2);
}

TEST(KParts, CoverKInClustersThatRun) {
  for (int64_t m = 5; m < 9000; m = m * 3 / 2) {
    for (int64_t n = 1; n < 40000; n = n * 3 + 5) {
      for (int64_t k = 32; k < 40000; k = k * 3 / 64 * 32 + 96) {
        const KPlan p = plan(m, n, k);
        // Beyond, sums lie where x was, half in each of two stages.
        EXPECT_TRUE(p.rows <= kPartsBesideRing ||
                    std::has_single_bit(static_cast<uint64_t>(p.parts)))
            << p.parts;
        EXPECT_EQ(p.at_once, kRoom.of(p.parts));
        if (p.parts == 1) continue;
        const int64_t steps = k_part_steps(k, p.parts);
        EXPECT_EQ(steps % 2, 0);
        EXPECT_GE(steps * p.parts * 64, k);
        EXPECT_LT(steps * (p.parts - 1) * 64, k);  // the last has some
      }
    }
  }
}

TEST(KParts, FragmentsHavePlaces) {
  EXPECT_EQ(most_exchanged(32, true), 36);  // 6 parts of 6
  EXPECT_EQ(most_exchanged(128, false), 128);
  for (const int fragments : {32, 64})
    for (int parts = 1; parts <= kMostKParts; ++parts)
      EXPECT_LE((fragments + parts - 1) / parts * parts, most_exchanged(fragments, true)) << parts;
}

TEST(KParts, AreFasterByTheModelThanOne) {
  for (const int64_t m : {32, 64, 128, 256, 512}) {
    const KPlan p = plan(m, 4096, 4096);
    for (const TileTime& tile : kScaledTiles)
      EXPECT_LE(p.us, k_parts_time(m, 4096, 4096, tile, 1, 132)) << m << " " << tile.rows;
  }
}

}  // namespace
}  // namespace pestle::ops
