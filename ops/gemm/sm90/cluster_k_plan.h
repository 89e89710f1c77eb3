// Tiles of cluster_k.cuh, the parts of k that the CTAs of a cluster have, and whether tiles of a whole k
// would be faster. Pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace pestle::ops {

inline constexpr int kClusterBox = 128;        // of k: bytes of a row of swizzled shared memory
inline constexpr int kClusterBlock = 64;       // rows of the weight, of a warpgroup
inline constexpr int kClusterMostGroups = 3;   // warpgroups
inline constexpr int kClusterMostParts = 8;    // CTAs of a cluster
inline constexpr int kClusterMostStages = 24;  // of the ring
inline constexpr int kClusterMostBytes = 227 << 10;
inline constexpr int kClusterBarrierBytes = 512;
inline constexpr int kClusterMostRows = 256;  // of a, for which others are not asked

// ---- where sums lie ----------------------------------------------------------------------------
#ifdef __CUDACC__
#define PESTLE_CLUSTER_HD __host__ __device__
#else
#define PESTLE_CLUSTER_HD
#endif

// Sums go in fragments of 16 rows of the weight x 8 rows of a: 32 lanes of 16 bytes, as wgmma leaves
// them. Those of eight rows of a go to one CTA: `eight` modulo the parts.
PESTLE_CLUSTER_HD constexpr int cluster_fragment(int warp, int eight, int eights, int parts) {
  return warp * (eights / parts) + eight / parts;
}
// Which sum of a fragment is of row n (0 to 15) of the weight and row m (0 to 7) of a.
PESTLE_CLUSTER_HD constexpr int cluster_sum_place(int n, int m) {
  return (n % 8 * 4 + m / 2) * 4 + n / 8 * 2 + m % 2;
}
#undef PESTLE_CLUSTER_HD

// ---- the plan ------------------------------------------------------------------------------------
struct ClusterShape {
  int64_t m, n, k;
  int multiprocessors;
  int most_shared = kClusterMostBytes;
};

struct ClusterPlan {
  int rows = 0;    // of a, of a tile: 64 or 128; 0: nothing fits
  int groups = 0;  // warpgroups, each 64 rows of the weight
  int parts = 0;   // CTAs of a cluster
  int boxes = 0;   // of a part of k
  int stages = 0;
  int m_tiles = 0, n_tiles = 0;
  int sweeps = 0;  // clusters that share the tiles along n
  double us = 0;

  int tile_n() const { return groups * kClusterBlock; }
  int clusters() const { return m_tiles * sweeps; }
  int rounds() const { return (n_tiles + sweeps - 1) / sweeps; }
  int part_k() const { return boxes * kClusterBox; }
  int stage_bytes() const { return (tile_n() + rows) * kClusterBox; }
  int64_t sum_place() const { return int64_t{stages} * stage_bytes(); }
  int64_t sum_bytes() const { return int64_t{tile_n()} * rows * 4; }
  int64_t barrier_place() const { return sum_place() + sum_bytes(); }
  int64_t shared_bytes() const { return barrier_place() + kClusterBarrierBytes; }
};

inline int64_t cluster_pieces(int64_t of, int64_t piece) { return (of + piece - 1) / piece; }

// us of the weight from memory.
inline double cold_us(const ClusterShape& s) {
  return static_cast<double>(s.n) * static_cast<double>(s.k) / 3.6e6;
}
// Clusters that run at a time. They lie within a GPC, whose multiprocessors are pairs; those of more than
// two leave some idle: 30 of 4 and 15 of 8 run on an H200.
inline int clusters_at_a_time(int multiprocessors, int parts) {
  return std::max(1, parts <= 2 ? multiprocessors / parts : multiprocessors * 10 / 11 / parts);
}

// us with the launch that makes a's codes, fitted to 55 plans on an H200 at 17 to 256 rows, 9 % off at
// most, less 1.2 since barriers count sums. What CTAs read passes through one L2; a ring that goes round
// waits for what comes late.
inline double cluster_time(const ClusterShape& s, const ClusterPlan& p) {
  const auto rows = static_cast<double>(std::min<int64_t>(s.m, p.rows));
  const int64_t waves =
      cluster_pieces(p.clusters(), clusters_at_a_time(s.multiprocessors, p.parts));
  const double steps = static_cast<double>(p.boxes) * p.rounds();
  const double read = steps * p.clusters() * p.parts * kClusterBox / 5.5e6;  // us, of one row
  const double sums = p.tile_n() * rows * 4 / 25e3 * (p.parts - 1) / p.parts;
  return 3.8 + 0.21 * cold_us(s) + (0.78 * rows + 0.115 * p.tile_n()) * read +
         static_cast<double>(waves) * p.rounds() * (1.18 + 0.95 * sums) + 1.75 * steps / p.stages;
}

// The rest of a plan; rows 0: it does not fit.
inline ClusterPlan cluster_plan(const ClusterShape& s, int rows, int groups, int parts) {
  ClusterPlan p;
  p.rows = rows, p.groups = groups, p.parts = parts;
  p.boxes = static_cast<int>(cluster_pieces(cluster_pieces(s.k, kClusterBox), parts));
  if (int64_t{parts - 1} * p.part_k() >= s.k) return {};  // a part of nothing
  p.m_tiles = static_cast<int>(cluster_pieces(s.m, rows));
  p.n_tiles = static_cast<int>(cluster_pieces(s.n, p.tile_n()));
  // As many sweeps as run at a time, and no more than as many rounds need.
  const int most = std::max(1, clusters_at_a_time(s.multiprocessors, parts) / p.m_tiles);
  p.sweeps = std::min(p.n_tiles, most);
  p.sweeps = (p.n_tiles + p.rounds() - 1) / p.rounds();
  const int64_t room = s.most_shared - p.shared_bytes();  // of a ring that has no stages yet
  const int64_t steps = int64_t{p.boxes} * p.rounds();
  p.stages =
      static_cast<int>(std::min<int64_t>({room / p.stage_bytes(), steps, kClusterMostStages}));
  if (room < 0 || p.stages < std::min<int64_t>(2, steps)) return {};
  p.us = cluster_time(s, p);
  return p;
}
// rows 0: k is one box, which no cluster shares.
inline ClusterPlan choose_cluster(const ClusterShape& s) {
  ClusterPlan best;
  for (const int rows : {64, 128}) {
    if (rows == 128 && s.m <= 64) continue;
    for (int groups = 1; groups <= kClusterMostGroups; ++groups)
      for (int parts = 2; parts <= kClusterMostParts; parts *= 2) {
        const ClusterPlan p = cluster_plan(s, rows, groups, parts);
        if (p.rows != 0 && (best.rows == 0 || p.us < best.us)) best = p;
      }
  }
  return best;
}

// us of the same with tiles of a whole k, fitted to an H200's int8 at 17 to 256 rows; of fp8 no less.
// Those of 128 rows go faster through k than those of 64, the more so the more of them share the L2.
inline double whole_tiles_time(const ClusterShape& s) {
  if (s.m <= 64) return 8.9 + 1.4 * cold_us(s);
  const int64_t tiles = cluster_pieces(s.m, 128) * cluster_pieces(s.n, 128);
  const auto steps = static_cast<double>(cluster_pieces(s.k, kClusterBox));
  return 9 + steps * (0.11 + 0.003 * static_cast<double>(tiles));
}

// GEMV has up to 16 rows. With tiles of whole k along m, too, a twentieth faster by the model.
inline bool prefers_cluster(const ClusterShape& s) {
  if (s.m <= 16 || s.m > kClusterMostRows) return false;
  const ClusterPlan p = choose_cluster(s);
  return p.rows != 0 && p.us * (s.m > 128 ? 1.05 : 1) < whole_tiles_time(s);
}

inline std::string describe(const ClusterPlan& p) {
  return std::to_string(p.rows) + "x" + std::to_string(p.tile_n()) + ", " +
         std::to_string(p.clusters()) + " clusters of " + std::to_string(p.parts);
}

}  // namespace pestle::ops
