// Tiles of many_rows_hopper.cuh, and the parts of k that its blocks share where tiles are fewer than
// multiprocessors. Pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace pestle::ops {

// Of a contract with symbols M, N and K: the parts' sums in f32, rows of a multiple of 8, and a byte for
// each part, tile and half of its columns. 32 MiB at most.
#define PESTLE_MOST_K_PART_BYTES "32505856"
#define PESTLE_K_PARTS_BYTES                                        \
  "if(K >= 512 && 8*M*round_up(N,8) <= " PESTLE_MOST_K_PART_BYTES   \
  ", min(4*min(8,K/256)*M*round_up(N,8), " PESTLE_MOST_K_PART_BYTES \
  ") + 16*cdiv(M,64)*cdiv(N,128) + 512, 0)"
inline constexpr int64_t kMostKPartBytes = 32505856;  // 31 MiB
inline constexpr int64_t kMostKParts = 8;
inline constexpr int64_t kLeastPartSteps = 4;  // of 64 of k
inline constexpr int64_t kPartTileN = 128;

inline int64_t k_part_pitch(int64_t n) { return (n + 7) / 8 * 8; }
inline int64_t k_part_bytes(int64_t m, int64_t n) { return 4 * m * k_part_pitch(n); }

// Steps of each part but the last, which may have fewer: consumers take two together, which are whole
// groups too.
inline int64_t k_part_steps(int64_t k, int64_t parts) {
  const int64_t pairs = (k + 127) / 128;
  return 2 * ((pairs + parts - 1) / parts);
}

// Rows of x of a tile, and us that 64 of k take (H200).
struct TileTime {
  int rows;
  double step;
};
struct KPlan {
  int rows = 0, parts = 1;
  double us = 0;
};

inline int64_t blocks_of_part(int64_t parts, int64_t multiprocessors) {
  return std::max(multiprocessors / parts, int64_t{1});
}

// us of the product. A tile takes 5.5 beside its steps; parts are written and read at some 2.5 TB/s by
// a kernel that takes 6 more.
inline double k_plan_time(int64_t m, int64_t n, int64_t k, const TileTime& tile, int64_t parts,
                          int64_t multiprocessors) {
  const int64_t tiles = (m + tile.rows - 1) / tile.rows * ((n + kPartTileN - 1) / kPartTileN);
  const int64_t blocks = blocks_of_part(parts, multiprocessors);
  const int64_t waves = (tiles + blocks - 1) / blocks;
  const double one = static_cast<double>(k_part_steps(k, parts)) * tile.step + 5.5;
  const double together =
      parts == 1 ? 0 : 6 + static_cast<double>(2 * parts * k_part_bytes(m, n)) / 2.5e6;
  return static_cast<double>(waves) * one + together;
}
// Can k be shared so? Each part has steps of its own, and the workspace holds all sums.
inline bool k_parts_fit(int64_t m, int64_t n, int64_t k, int64_t parts) {
  if (parts == 1) return true;
  const int64_t steps = k_part_steps(k, parts);
  return parts <= k / (64 * kLeastPartSteps) && (parts - 1) * steps * 64 < k &&
         parts * k_part_bytes(m, n) <= kMostKPartBytes;
}
inline KPlan choose_k_plan(int64_t m, int64_t n, int64_t k, std::span<const TileTime> tiles,
                           int64_t multiprocessors) {
  KPlan best;
  for (const TileTime& tile : tiles)
    for (int64_t parts = 1; parts <= kMostKParts; ++parts) {
      if (!k_parts_fit(m, n, k, parts)) continue;
      const double us = k_plan_time(m, n, k, tile, parts, multiprocessors);
      if (best.rows == 0 || us < best.us) best = {tile.rows, static_cast<int>(parts), us};
    }
  return best;
}

}  // namespace pestle::ops
