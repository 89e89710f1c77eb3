// Tiles of one_launch.cuh, the parts of k that the CTAs of a cluster have, and whether two launches
// would be faster. Pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace pestle::ops {

inline constexpr int kOneLaunchBox = 128;        // of k: bytes of a row of swizzled shared memory
inline constexpr int kOneLaunchBlock = 64;       // rows of the weight, of a warpgroup
inline constexpr int kOneLaunchMostGroups = 3;   // warpgroups
inline constexpr int kOneLaunchMostParts = 8;    // CTAs of a cluster
inline constexpr int kOneLaunchMostStages = 24;  // of the ring
inline constexpr int kOneLaunchMostBytes = 227 << 10;
inline constexpr int kOneLaunchBarrierBytes = 512;

// ---- where things lie, in bytes ------------------------------------------------------------------
#ifdef __CUDACC__
#define PESTLE_ONE_LAUNCH_HD __host__ __device__
#else
#define PESTLE_ONE_LAUNCH_HD
#endif

// Codes of eight neighbours, the `unit`-th of a row's 128, in a box of rows of 128 bytes whose pieces of
// 16 bytes are swizzled as wgmma reads them.
PESTLE_ONE_LAUNCH_HD constexpr int one_launch_code_place(int row, int unit) {
  return row * kOneLaunchBox + ((unit / 2) ^ (row % 8)) * 16 + unit % 2 * 8;
}
// Sums go in fragments of 16 rows of the weight x 8 rows of x: 32 lanes of 16 bytes, as wgmma leaves
// them. Those of eight rows of x go to one CTA: `eight` modulo the parts.
PESTLE_ONE_LAUNCH_HD constexpr int one_launch_fragment(int warp, int eight, int eights, int parts) {
  return warp * (eights / parts) + eight / parts;
}
// Which f32 of a fragment is of row n (0 to 15) of the weight and row m (0 to 7) of x.
PESTLE_ONE_LAUNCH_HD constexpr int one_launch_sum_place(int n, int m) {
  return (n % 8 * 4 + m / 2) * 4 + n / 8 * 2 + m % 2;
}
#undef PESTLE_ONE_LAUNCH_HD

// ---- the plan --------------------------------------------------------------------------------------
struct OneLaunchShape {
  int64_t m, n, k;
  int x_bytes;  // of an element of x
  int multiprocessors;
  int most_shared = kOneLaunchMostBytes;
};

struct OneLaunchPlan {
  int rows = 0;    // of x, of a tile: 64 or 128; 0: nothing fits
  int groups = 0;  // warpgroups, each 64 rows of the weight
  int parts = 0;   // CTAs of a cluster
  int boxes = 0;   // of a part of k
  int stages = 0;
  int m_tiles = 0, n_tiles = 0;
  int sweeps = 0;  // clusters that share the tiles along n
  double us = 0;

  int tile_n() const { return groups * kOneLaunchBlock; }
  int clusters() const { return m_tiles * sweeps; }
  int rounds() const { return (n_tiles + sweeps - 1) / sweeps; }
  int part_k() const { return boxes * kOneLaunchBox; }
  int stage_bytes() const { return tile_n() * kOneLaunchBox; }
  int64_t code_place() const { return int64_t{stages} * stage_bytes(); }
  int64_t sum_place() const { return code_place() + int64_t{boxes} * rows * kOneLaunchBox; }
  int64_t sum_bytes() const { return int64_t{tile_n()} * rows * 4; }
  int64_t largest_place() const { return sum_place() + sum_bytes(); }
  int64_t scale_place() const { return largest_place() + int64_t{parts} * rows * 4; }
  int64_t barrier_place() const { return scale_place() + rows * 4; }
  int64_t shared_bytes() const { return barrier_place() + kOneLaunchBarrierBytes; }
};

inline int64_t one_launch_pieces(int64_t of, int64_t piece) { return (of + piece - 1) / piece; }

// Clusters that run at a time. They lie within a GPC, of which some have fewer multiprocessors.
inline int one_launch_at_a_time(const OneLaunchShape& s, int parts) {
  const int usable = parts <= 2 ? s.multiprocessors : s.multiprocessors - s.multiprocessors % 8;
  return std::max(1, usable / parts);
}

// us, fitted to an H200.
inline double one_launch_time(const OneLaunchShape& s, const OneLaunchPlan& p) {
  const auto rows = static_cast<double>(std::min<int64_t>(s.m, p.rows));
  const int at_a_time = one_launch_at_a_time(s, p.parts);
  const double waves = static_cast<double>(one_launch_pieces(p.clusters(), at_a_time));
  const double per_us = 42e3;  // bytes that an SM gets from the L2 while all ask
  const double x = rows * p.part_k() * s.x_bytes / per_us;
  const double units = rows * p.part_k() / 8 / 32;  // of a warp
  const double encode = units * 65 / 4 / 1755;
  const double begin = 1.2 + x + encode;
  const double steps = static_cast<double>(p.boxes) * p.rounds();
  const double cold = static_cast<double>(s.n) * static_cast<double>(s.k) / 3.6e6;
  const double weight = std::max(steps * p.stage_bytes() / per_us, cold);
  const double ahead = std::min(1.0, p.stages / steps);
  const double products = steps * p.groups * 4 * p.rows / 64 * 32 / 1755 * 1.3;
  const double left = std::max({weight * (1 - ahead), weight + 0.8 - begin, 0.0});
  const double join = 1.1 + p.tile_n() * rows * 4 * 2 / 60e3;
  return 2.2 + waves * (begin + std::max(left, products) + p.rounds() * join);
}

// The rest of a plan; rows 0: it does not fit.
inline OneLaunchPlan one_launch_plan(const OneLaunchShape& s, int rows, int groups, int parts) {
  OneLaunchPlan p;
  p.rows = rows, p.groups = groups, p.parts = parts;
  p.boxes = static_cast<int>(one_launch_pieces(one_launch_pieces(s.k, kOneLaunchBox), parts));
  if (int64_t{parts - 1} * p.part_k() >= s.k && parts > 2) return {};  // a part of nothing
  p.m_tiles = static_cast<int>(one_launch_pieces(s.m, rows));
  p.n_tiles = static_cast<int>(one_launch_pieces(s.n, p.tile_n()));
  // As many sweeps as run at a time, and no more than as many rounds need.
  const int most = std::max(1, one_launch_at_a_time(s, parts) / p.m_tiles);
  p.sweeps = std::min(p.n_tiles, most);
  p.sweeps = (p.n_tiles + p.rounds() - 1) / p.rounds();
  const int64_t room = s.most_shared - p.shared_bytes();  // of a ring that has no stages yet
  const int64_t steps = int64_t{p.boxes} * p.rounds();
  p.stages =
      static_cast<int>(std::min<int64_t>({room / p.stage_bytes(), steps, kOneLaunchMostStages}));
  if (room < 0 || p.stages < std::min<int64_t>(2, steps)) return {};
  p.us = one_launch_time(s, p);
  return p;
}
inline OneLaunchPlan choose_one_launch(const OneLaunchShape& s) {
  OneLaunchPlan best;
  for (const int rows : {64, 128}) {
    if (rows == 128 && s.m <= 64) continue;
    for (int groups = 1; groups <= kOneLaunchMostGroups; ++groups)
      for (const int parts : {2, 4, kOneLaunchMostParts}) {
        const OneLaunchPlan p = one_launch_plan(s, rows, groups, parts);
        if (p.rows != 0 && (best.rows == 0 || p.us < best.us)) best = p;
      }
  }
  return best;
}

// us of a quantiser's launch and a GEMM's after it, fitted to an H200 at 17 to 256 rows.
inline double two_launches_time(const OneLaunchShape& s) {
  const double cold = static_cast<double>(s.n) * static_cast<double>(s.k) / 3.6e6;
  const double along_k = 6.0 + static_cast<double>(std::min<int64_t>(s.k, 8192)) * 0.002;
  const double rows = static_cast<double>(one_launch_pieces(s.m, 128)) * 0.4;
  return std::max(along_k + cold / 8, 7.5 + cold) + rows;
}

// GEMV has up to 16 rows.
inline bool prefers_one_launch(const OneLaunchShape& s) {
  if (s.m <= 16 || s.m > 512) return false;
  const OneLaunchPlan p = choose_one_launch(s);
  return p.rows != 0 && p.us < two_launches_time(s);
}

inline std::string describe(const OneLaunchPlan& p) {
  return std::to_string(p.rows) + " rows of x in codes, " + std::to_string(p.tile_n()) +
         " columns, clusters of " + std::to_string(p.parts) + ", " + std::to_string(p.clusters()) +
         " of them";
}

}  // namespace pestle::ops
