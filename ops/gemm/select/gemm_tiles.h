// Which tile a GEMM takes: pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace pestle::ops {

inline constexpr int kGemmTileM = 128;

struct TilePlan {
  int n = 256;  // columns; 128 rows
  int64_t tiles = 0;
  int64_t waves = 0;  // of tiles over the multiprocessors
  // Split-K: each tile behind the last whole wave is made by `splits` multiprocessors.
  int64_t whole = 0;  // tiles that one multiprocessor makes
  int splits = 1;
};

inline TilePlan tile_plan_of(int columns, int64_t m, int64_t n, int64_t batches,
                             int multiprocessors) {
  const int64_t tiles = (m + kGemmTileM - 1) / kGemmTileM * ((n + columns - 1) / columns) * batches;
  return {columns, tiles, (tiles + multiprocessors - 1) / multiprocessors, tiles};
}

// ---- split-K: where tiles leave much of the last wave idle --------------------------------------

// Sums begun anew (halves) fill the registers of wider tiles.
inline bool takes_split_k(int columns, bool halves) { return !halves || columns == 128; }

inline constexpr int kMostSplitsOfK = 8;
inline constexpr int64_t kMostParts = 132;  // of k, without the last ones of their tiles
inline constexpr int kSplitUnit = 4;        // steps of k (of 128 bytes) that splits are made of

// The steps of k that a wave of splits takes beyond what each multiplies, some 8 to 12 us: CTAs
// that all begin at once and meet, sums to the L2, and of each split more back again. Measured on
// an H200 in codes and bf16, 8 to 224 steps (ops/gemm/matmul/matmul.md).
inline int64_t steps_to_reduce(int columns, int splits) {
  return 14 + (14 + 3 * (splits - 1)) * 128 / columns;
}

inline int64_t steps_of_split(int64_t steps, int splits) {
  const int64_t units = (steps + kSplitUnit - 1) / kSplitUnit;
  return (units + splits - 1) / splits * kSplitUnit;
}

// Steps that one multiprocessor goes through.
inline int64_t steps_of(const TilePlan& t, int64_t steps, int multiprocessors) {
  if (t.splits == 1) return t.waves * steps;
  return t.whole / multiprocessors * steps + steps_of_split(steps, t.splits) +
         steps_to_reduce(t.n, t.splits);
}

// The same tiles with as many splits as are fastest; 1 where none are.
inline TilePlan with_split_k(const TilePlan& tile, int64_t steps, int multiprocessors) {
  TilePlan best = tile;
  const int64_t rest = tile.tiles % multiprocessors;
  if (rest == 0) return best;
  const int64_t most = std::min<int64_t>(
      {kMostSplitsOfK, std::min<int64_t>(multiprocessors, kMostParts) / rest, steps / kSplitUnit});
  for (int splits = 2; splits <= most; ++splits) {
    TilePlan split = tile;
    split.whole = tile.tiles - rest;
    split.splits = splits;
    if (steps_of(split, steps, multiprocessors) < steps_of(best, steps, multiprocessors))
      best = split;
  }
  return best;
}

// Steps of k that a multiprocessor goes through, times a tile's columns, in hundredths, with what
// narrow tiles lose by reading more of a for each product.
inline int64_t cost_of(const TilePlan& tile, int64_t steps, int multiprocessors) {
  const int64_t column = tile.n == 128 ? 104 : 100;
  return steps_of(tile, std::max<int64_t>(steps, 1), multiprocessors) * tile.n * column;
}

// The tile that costs least. `halves`: tiles must be multiples of 128. `steps`: of k; 0: no
// split-K.
inline TilePlan choose_tile_plan(int64_t m, int64_t n, int64_t batches, int multiprocessors,
                                 bool halves, int64_t steps = 0) {
  TilePlan best;
  int64_t least = 0;
  for (const int columns : {256, 192, 128}) {
    if (halves && columns % 128 != 0) continue;
    TilePlan tile = tile_plan_of(columns, m, n, batches, multiprocessors);
    if (steps > 0 && takes_split_k(columns, halves))
      tile = with_split_k(tile, steps, multiprocessors);
    const int64_t cost = cost_of(tile, steps, multiprocessors);
    if (least != 0 && cost >= least) continue;
    least = cost;
    best = tile;
  }
  return best;
}

inline std::string describe(const TilePlan& t) {
  const std::string tiles = "128x" + std::to_string(t.n) + ", " + std::to_string(t.tiles) +
                            " tiles in " + std::to_string(t.waves) + " waves";
  if (t.splits == 1) return tiles;
  return tiles + ", the last " + std::to_string(t.tiles - t.whole) + " by split-K of " +
         std::to_string(t.splits);
}

// GEMV: neighbouring columns of out that a multiprocessor takes at a time.
struct GemvTile {
  int columns = 8;  // a multiple of 8, at most 128
  int tiles = 0;
};

// As many columns as leave the fewest waves, and no multiprocessor without.
inline GemvTile choose_gemv_tile(int64_t n, int multiprocessors) {
  constexpr int64_t kMost = 16;  // eights
  const int64_t eights = (n + 7) / 8;
  const int64_t waves = (eights + kMost * multiprocessors - 1) / (kMost * multiprocessors);
  const int64_t each = (eights + waves * multiprocessors - 1) / (waves * multiprocessors);
  GemvTile t;
  t.columns = static_cast<int>(each * 8);
  t.tiles = static_cast<int>((eights + each - 1) / each);
  return t;
}

inline std::string describe(const GemvTile& t) {
  return std::to_string(t.columns) + " columns, " + std::to_string(t.tiles) + " tiles";
}

}  // namespace pestle::ops
