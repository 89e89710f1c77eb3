// Tiles of many_rows_hopper.cuh, and the parts of k that the CTAs of a cluster share where tiles are
// fewer than multiprocessors. Pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace pestle::ops {

inline constexpr int64_t kMostKParts = 8;
// Rows of x of a tile whose sums fit beside the ring; those of more go where x was.
inline constexpr int kPartsBesideRing = 128;
inline constexpr int64_t kLeastPartSteps = 4;  // of 64 of k

// Steps of each part but the last, which may have fewer: consumers take two together, which are whole
// groups too.
inline int64_t k_part_steps(int64_t k, int64_t parts) {
  const int64_t pairs = (k + 127) / 128;
  return 2 * ((pairs + parts - 1) / parts);
}

// Rows of x and of the weight of a tile, and us that 64 of k take (H200).
struct TileTime {
  int rows, columns;
  double step;
};
// Of formats whose scales multiply codes, which a large tile decodes fewer times.
inline constexpr TileTime kScaledTiles[] = {{256, 128, 0.76}, {192, 128, 0.65}, {128, 128, 0.53},
                                            {64, 256, 0.73},  {64, 192, 0.53},  {64, 128, 0.42},
                                            {32, 256, 0.57},  {32, 192, 0.43},  {32, 128, 0.34},
                                            {16, 256, 0.52},  {16, 192, 0.4},   {16, 128, 0.31}};
// Clusters of so many CTAs that run at once, each CTA with a multiprocessor to itself.
struct ClusterRoom {
  std::array<int64_t, kMostKParts + 1> clusters{};

  int64_t of(int64_t parts) const { return clusters[static_cast<size_t>(parts)]; }
};
struct KPlan {
  int rows = 0, columns = 0, parts = 1;
  int64_t at_once = 0;  // clusters
  double us = 0;
};

// us of the product. A tile takes 3.4 beside its steps; that parts are put together as in
// few_rows_plan.h, and 1 more where all wait for the ring.
inline double k_parts_time(int64_t m, int64_t n, int64_t k, const TileTime& tile, int64_t parts,
                           int64_t at_once) {
  const int64_t tiles = (m + tile.rows - 1) / tile.rows * ((n + tile.columns - 1) / tile.columns);
  const int64_t waves = (tiles + at_once - 1) / at_once;
  const double one = static_cast<double>(k_part_steps(k, parts)) * tile.step + 3.4;
  const double join = parts == 1 ? 0
                                 : (tile.rows <= kPartsBesideRing ? 1 : 2) +
                                       0.12 * static_cast<double>(parts) +
                                       static_cast<double>(tile.rows * tile.columns * 4) / 60e3;
  return static_cast<double>(waves) * (one + join);
}
// Fragments of 16 rows of the weight by 8 rows of x, and places for them where a tile's are shared: each
// part has as many places. Beside the ring there is room for any number of parts.
constexpr int most_exchanged(int fragments, bool beside_ring) {
  int most = fragments;
  for (int parts = 2; beside_ring && parts <= kMostKParts; ++parts)
    most = std::max(most, (fragments + parts - 1) / parts * parts);
  return most;
}
// Can k be shared so? Each part has steps of its own.
inline bool k_parts_fit(int64_t k, int64_t parts, int rows) {
  if (parts == 1) return true;
  if (rows > kPartsBesideRing && (parts & (parts - 1)) != 0) return false;
  return parts <= k / (64 * kLeastPartSteps) && (parts - 1) * k_part_steps(k, parts) * 64 < k;
}
inline KPlan choose_k_plan(int64_t m, int64_t n, int64_t k, std::span<const TileTime> tiles,
                           const ClusterRoom& room) {
  KPlan best;
  for (const TileTime& tile : tiles)
    for (int64_t parts = 1; parts <= kMostKParts; ++parts) {
      const int64_t at_once = room.of(parts);
      if (at_once == 0 || !k_parts_fit(k, parts, tile.rows)) continue;
      const double us = k_parts_time(m, n, k, tile, parts, at_once);
      if (best.rows == 0 || us < best.us)
        best = {tile.rows, tile.columns, static_cast<int>(parts), at_once, us};
    }
  return best;
}

}  // namespace pestle::ops
