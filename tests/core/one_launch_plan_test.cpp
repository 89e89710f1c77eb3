// Tiles and parts of one_launch.cuh: all of x, k and the weight have a place, codes and sums lie where
// wgmma reads and leaves them, and the choice between one launch and two is the measured one.
#include "ops/gemm/sm90/one_launch_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace pestle::ops {
namespace {

OneLaunchShape shape(int64_t m, int64_t n, int64_t k, int x_bytes = 2) {
  return {m, n, k, x_bytes, 132};
}

TEST(OneLaunchPlan, EveryPlanCoversTheProductAndFits) {
  for (const int64_t m : {1, 17, 64, 65, 128, 200, 1000})
    for (const int64_t n : {1, 48, 3072, 14336})
      for (const int64_t k : {8, 160, 3072, 5120, 12288})
        for (const int rows : {64, 128})
          for (const int groups : {1, 2, 3})
            for (const int parts : {2, 4, 8}) {
              const OneLaunchPlan p = one_launch_plan(shape(m, n, k), rows, groups, parts);
              if (p.rows == 0) continue;
              SCOPED_TRACE(testing::Message() << m << " " << n << " " << k << " " << describe(p));
              EXPECT_GE(int64_t{p.m_tiles} * rows, m);
              EXPECT_LT(int64_t{p.m_tiles - 1} * rows, m);
              EXPECT_GE(int64_t{p.n_tiles} * p.tile_n(), n);
              EXPECT_GE(int64_t{p.parts} * p.part_k(), k);
              EXPECT_LE(p.shared_bytes(), kOneLaunchMostBytes);
              EXPECT_LE(p.stages, kOneLaunchMostStages);
              EXPECT_GE(p.stages, std::min(2, p.boxes * p.rounds()));
              // No sweep is without a tile, and together they have them all.
              EXPECT_LE(p.sweeps, p.n_tiles);
              EXPECT_GE(p.sweeps * p.rounds(), p.n_tiles);
              EXPECT_LT(p.sweeps * (p.rounds() - 1), p.n_tiles);
              // Boxes of the weight and of codes begin at whole swizzled blocks, sums at 16 bytes.
              EXPECT_EQ(p.stage_bytes() % 1024, 0);
              EXPECT_EQ(p.code_place() % 1024, 0);
              EXPECT_EQ(p.sum_place() % 16, 0);
              EXPECT_EQ(p.barrier_place() % 8, 0);
            }
}

TEST(OneLaunchPlan, FitsTheLayersOfItsRange) {
  for (const int64_t m : {17, 64, 128, 256})
    for (const int64_t k : {3072, 4096, 5120, 12288})
      for (const int x_bytes : {2, 4})
        EXPECT_NE(choose_one_launch(shape(m, 4096, k, x_bytes)).rows, 0) << m << " " << k;
  EXPECT_EQ(choose_one_launch(shape(64, 4096, 65536)).rows, 0);
}

// The copy engine and wgmma exchange bits 4 to 6 of an address for their XOR with bits 7 to 9.
TEST(OneLaunchPlan, CodesLieAsWgmmaReadsThem) {
  std::set<int> places;
  for (int row = 0; row < 128; ++row)
    for (int unit = 0; unit < 16; ++unit) {
      const int plain = row * 128 + unit * 8;
      EXPECT_EQ(one_launch_code_place(row, unit), plain ^ (plain >> 7 & 7) << 4);
      places.insert(one_launch_code_place(row, unit));
    }
  EXPECT_EQ(places.size(), size_t{128} * 16);
}

// A lane's four sums of a fragment: rows lane / 4 and eight below, columns 2 * (lane % 4) and the next.
TEST(OneLaunchPlan, SumsLieAsWgmmaLeavesThem) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(one_launch_sum_place(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2), lane * 4 + i);
}

// What one CTA gets of a part: each fragment has a place of its own, and no place is left over.
TEST(OneLaunchPlan, FragmentsShareTheirCtasMemory) {
  for (const int groups : {1, 2, 3})
    for (const int eights : {8, 16})
      for (const int parts : {2, 4, 8})
        for (int cta = 0; cta < parts; ++cta) {
          std::set<int> places;
          for (int warp = 0; warp < groups * 4; ++warp)
            for (int eight = cta; eight < eights; eight += parts)
              places.insert(one_launch_fragment(warp, eight, eights, parts));
          const int count = groups * 4 * eights / parts;
          EXPECT_EQ(static_cast<int>(places.size()), count);
          EXPECT_EQ(*places.begin(), 0);
          EXPECT_EQ(*places.rbegin(), count - 1);
        }
}

TEST(OneLaunchPlan, IsForRowsBetweenGemvAndManyTiles) {
  EXPECT_TRUE(prefers_one_launch(shape(17, 3072, 3072)));
  EXPECT_TRUE(prefers_one_launch(shape(64, 3072, 3072)));
  EXPECT_FALSE(prefers_one_launch(shape(16, 3072, 3072)));
  EXPECT_FALSE(prefers_one_launch(shape(4608, 3072, 3072)));
}

}  // namespace
}  // namespace pestle::ops
