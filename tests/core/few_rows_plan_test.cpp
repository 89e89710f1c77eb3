// Tiles and parts of few_rows.cuh: all of k and every row of the weight have a place, in what there is.
#include "ops/gemm/weight_only/few_rows_plan.h"

#include <gtest/gtest.h>

namespace pestle::ops {
namespace {

int scales_of_16(int64_t k) { return static_cast<int>((k + 127) / 128 * 8 + 127) / 128 * 128 + 16; }

FewRowsShape shape(int64_t m, int64_t n, int64_t k, int64_t shared, bool clusters) {
  FewRowsShape s;
  s.m = m, s.n = n, s.k = k;
  s.bits = 4;
  s.scale_row = scales_of_16;
  s.most_shared = shared;
  s.most_threads = few_rows_eights(m) == 8 ? 256 : 512;
  s.multiprocessors = 132;
  s.clusters = clusters;
  return s;
}

TEST(FewRowsPlan, EveryPartHasColumnsAndFits) {
  for (const int64_t m : {1, 9, 17, 64, 128})
    for (const int64_t n : {1, 48, 4096, 14336})
      for (const int64_t k : {32, 160, 4096, 12288, 16416})
        for (const int64_t shared : {99 << 10, 227 << 10})
          for (const bool clusters : {false, true}) {
            const FewRowsShape of = shape(m, n, k, shared, clusters);
            const FewRowsPlan p = choose_few_rows(of);
            SCOPED_TRACE(testing::Message() << m << " " << n << " " << k << " " << shared);
            // What a warp alone can do is not refused, and with Hopper's memory nothing is.
            const bool refused = p.eights == 0;
            ASSERT_FALSE(refused && few_rows_plan(of, 1, 1, 1).eights != 0);
            ASSERT_FALSE(refused && shared == 227 << 10);
            if (p.eights == 0) continue;
            EXPECT_GE(p.eights * 8, std::min<int64_t>(m, 64));
            EXPECT_GE(p.parts * p.part_k(4), k);
            EXPECT_LT((p.parts - 1) * p.part_k(4), k);
            EXPECT_TRUE(p.x_slots == p.chunks || p.x_slots == kFewRowsSlots);
            EXPECT_LE(p.x_slots, p.chunks);
            EXPECT_LE(p.parts, clusters ? kFewRowsMostParts : 1);
            EXPECT_LE(p.warps() * 32, few_rows_eights(m) == 8 ? 256 : 512);
            EXPECT_LE(p.shared_bytes(4), shared);
            if (!p.beside) continue;  // sums take the place of x and codes
            EXPECT_GT(p.parts, 1);
            EXPECT_GE(p.sum_place(4), p.x_bytes(4) + p.code_bytes());
            EXPECT_GE(p.scale_place(4), p.sum_place(4) + p.sum_bytes());
          }
}

TEST(FewRowsPlan, KeepsXOfFewRowsInSharedMemory) {
  const FewRowsPlan few = choose_few_rows(shape(16, 14336, 4096, 227 << 10, true));
  EXPECT_EQ(few.x_slots, few.chunks);
  const FewRowsPlan many = choose_few_rows(shape(64, 14336, 4096, 227 << 10, true));
  EXPECT_LT(many.x_slots, many.chunks);
}

TEST(FewRowsPlan, SharesKWhereTilesAreFew) {
  const FewRowsPlan p = choose_few_rows(shape(16, 4096, 4096, 227 << 10, true));
  EXPECT_GT(p.parts, 1);
  EXPECT_LE(4096 / p.tile_n() * p.parts, 132);
}

}  // namespace
}  // namespace pestle::ops
