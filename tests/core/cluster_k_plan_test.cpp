// Tiles and parts of cluster_k.cuh: all of a, k and the weight have a place, sums lie where wgmma leaves
// them, and the kernel is for the rows that it is faster at.
#include "ops/gemm/sm90/cluster_k_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace pestle::ops {
namespace {

ClusterShape shape(int64_t m, int64_t n, int64_t k) { return {m, n, k, 132}; }

TEST(ClusterPlan, EveryPlanCoversTheProductAndFits) {
  for (const int64_t m : {1, 17, 64, 65, 128, 200, 1000})
    for (const int64_t n : {1, 48, 3072, 14336})
      for (const int64_t k : {160, 288, 3072, 5120, 12288})
        for (const int rows : {64, 128})
          for (const int groups : {1, 2, 3})
            for (const int parts : {2, 4, 8}) {
              const ClusterPlan p = cluster_plan(shape(m, n, k), rows, groups, parts);
              SCOPED_TRACE(testing::Message() << m << " " << n << " " << k << " " << describe(p));
              ASSERT_FALSE(p.rows == 0 && parts == 2);  // two CTAs share any k of two boxes
              if (p.rows == 0) continue;
              EXPECT_GE(int64_t{p.m_tiles} * rows, m);
              EXPECT_LT(int64_t{p.m_tiles - 1} * rows, m);
              EXPECT_GE(int64_t{p.n_tiles} * p.tile_n(), n);
              EXPECT_GE(int64_t{p.parts} * p.part_k(), k);
              EXPECT_LT(int64_t{p.parts - 1} * p.part_k(), k);
              EXPECT_LE(p.shared_bytes(), kClusterMostBytes);
              EXPECT_LE(p.stages, kClusterMostStages);
              EXPECT_GE(p.stages, std::min(2, p.boxes * p.rounds()));
              // No sweep is without a tile, and together they have them all.
              EXPECT_LE(p.sweeps, p.n_tiles);
              EXPECT_GE(p.sweeps * p.rounds(), p.n_tiles);
              EXPECT_LT(p.sweeps * (p.rounds() - 1), p.n_tiles);
              // Boxes begin at whole swizzled blocks, sums at 16 bytes.
              EXPECT_EQ(p.stage_bytes() % 1024, 0);
              EXPECT_EQ(p.sum_place() % 16, 0);
              EXPECT_EQ(p.barrier_place() % 8, 0);
            }
}

// A lane's four sums of a fragment: rows lane / 4 and eight below, columns 2 * (lane % 4) and the next.
TEST(ClusterPlan, SumsLieAsWgmmaLeavesThem) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(cluster_sum_place(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2), lane * 4 + i);
}

// What one CTA gets of a part: each fragment has a place of its own, and no place is left over.
TEST(ClusterPlan, FragmentsShareTheirCtasMemory) {
  for (const int groups : {1, 2, 3})
    for (const int eights : {8, 16})
      for (const int parts : {2, 4, 8})
        for (int cta = 0; cta < parts; ++cta) {
          std::set<int> places;
          for (int warp = 0; warp < groups * 4; ++warp)
            for (int eight = cta; eight < eights; eight += parts)
              places.insert(cluster_fragment(warp, eight, eights, parts));
          const int count = groups * 4 * eights / parts;
          EXPECT_EQ(static_cast<int>(places.size()), count);
          EXPECT_EQ(*places.begin(), 0);
          EXPECT_EQ(*places.rbegin(), count - 1);
        }
}

TEST(ClusterPlan, RunsAtATimeWhatAnH200Does) {
  EXPECT_EQ(clusters_at_a_time(132, 1), 132);
  EXPECT_EQ(clusters_at_a_time(132, 2), 66);
  EXPECT_EQ(clusters_at_a_time(132, 4), 30);
  EXPECT_EQ(clusters_at_a_time(132, 8), 15);
}

TEST(ClusterPlan, SharesNoSingleBox) {
  EXPECT_EQ(choose_cluster(shape(64, 4096, 128)).rows, 0);
  EXPECT_FALSE(prefers_cluster(shape(64, 4096, 128)));
  EXPECT_NE(choose_cluster(shape(64, 4096, 144)).rows, 0);
}

// Measured on an H200: M, N, K, us.
TEST(ClusterPlan, TimesAreNearTheMeasuredOnes) {
  const struct {
    int64_t m, n, k;
    double clusters, whole_tiles;
  } kMeasured[] = {{64, 3072, 3072, 8.6, 13.0},
                   {128, 3072, 3072, 10.4, 13.5},
                   {64, 4096, 4096, 11.0, 15.7},
                   {192, 4096, 4096, 15.4, 17.6}};
  for (const auto& t : kMeasured) {
    SCOPED_TRACE(testing::Message() << t.m << " " << t.n << " " << t.k);
    const ClusterShape s = shape(t.m, t.n, t.k);
    EXPECT_NEAR(choose_cluster(s).us, t.clusters, t.clusters * 0.1);
    EXPECT_NEAR(whole_tiles_time(s), t.whole_tiles, t.whole_tiles * 0.1);
    EXPECT_TRUE(prefers_cluster(s));
  }
}
TEST(ClusterPlan, WholeTilesTakeWhatWasMeasured) {
  const struct {
    int64_t m, n, k;
    double us;
  } kMeasured[] = {{17, 3072, 3072, 12.6}, {128, 4096, 4096, 16.3}, {17, 5120, 5120, 18.9},
                   {64, 5120, 5120, 18.7}, {17, 9216, 3072, 20.3},  {64, 3072, 12288, 25.9}};
  for (const auto& t : kMeasured)
    EXPECT_NEAR(whole_tiles_time(shape(t.m, t.n, t.k)), t.us, t.us * 0.1) << t.m << " " << t.n;
}

TEST(ClusterPlan, IsNotForWhatOthersAreFasterAt) {
  EXPECT_FALSE(prefers_cluster(shape(16, 3072, 3072)));
  EXPECT_FALSE(prefers_cluster(shape(256, 4096, 4096)));
  EXPECT_FALSE(prefers_cluster(shape(192, 5120, 5120)));
  EXPECT_FALSE(prefers_cluster(shape(128, 9216, 3072)));  // 20.1 us for 15.1
  EXPECT_FALSE(prefers_cluster(shape(96, 14336, 4096)));  // 27.4 for 22.3
  EXPECT_TRUE(prefers_cluster(shape(96, 3072, 12288)));   // 17.9 for 24.7
  EXPECT_FALSE(prefers_cluster(shape(4608, 3072, 3072)));
}

}  // namespace
}  // namespace pestle::ops
