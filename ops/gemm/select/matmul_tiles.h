// Which tile a matrix product takes: pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace pestle::ops {

inline constexpr int kMatmulTileM = 128;

struct MatmulTile {
  int n = 256;  // columns; 128 rows
  int64_t tiles = 0;
  int64_t rounds = 0;  // of tiles over the multiprocessors
  // Of the tiles behind the last whole round each is made in slices of k, one a multiprocessor.
  int64_t whole = 0;  // tiles that one multiprocessor makes
  int slices = 1;
};

inline MatmulTile matmul_tile_of(int columns, int64_t m, int64_t n, int64_t batches,
                                 int multiprocessors) {
  const int64_t tiles =
      (m + kMatmulTileM - 1) / kMatmulTileM * ((n + columns - 1) / columns) * batches;
  return {columns, tiles, (tiles + multiprocessors - 1) / multiprocessors, tiles};
}

// ---- slices of k: where tiles leave much of the last round idle ---------------------------------

// Sums begun anew (halves) fill the registers of wider tiles.
inline bool takes_slices(int columns, bool halves) { return !halves || columns == 128; }

inline constexpr int kMostSlices = 8;
inline constexpr int64_t kMostParts = 132;  // slices beside the last ones of their tiles
inline constexpr int kSliceUnit = 4;        // steps of k (of 128 bytes) that slices are made of

// The steps of k that a round of slices takes beyond what each multiplies, some 8 to 12 us: blocks
// that all begin at once and meet, sums to the L2, and of each slice more back again. Measured on
// an H200 in codes and bf16, 8 to 224 steps (ops/gemm/matmul/matmul.md).
inline int64_t steps_to_join(int columns, int slices) {
  return 14 + (14 + 3 * (slices - 1)) * 128 / columns;
}

inline int64_t steps_of_slice(int64_t steps, int slices) {
  const int64_t units = (steps + kSliceUnit - 1) / kSliceUnit;
  return (units + slices - 1) / slices * kSliceUnit;
}

// Steps that one multiprocessor goes through.
inline int64_t steps_of(const MatmulTile& t, int64_t steps, int multiprocessors) {
  if (t.slices == 1) return t.rounds * steps;
  return t.whole / multiprocessors * steps + steps_of_slice(steps, t.slices) +
         steps_to_join(t.n, t.slices);
}

// The same tiles with as many slices as are fastest; 1 where none are.
inline MatmulTile with_slices(const MatmulTile& tile, int64_t steps, int multiprocessors) {
  MatmulTile best = tile;
  const int64_t rest = tile.tiles % multiprocessors;
  if (rest == 0) return best;
  const int64_t most = std::min<int64_t>(
      {kMostSlices, std::min<int64_t>(multiprocessors, kMostParts) / rest, steps / kSliceUnit});
  for (int slices = 2; slices <= most; ++slices) {
    MatmulTile sliced = tile;
    sliced.whole = tile.tiles - rest;
    sliced.slices = slices;
    if (steps_of(sliced, steps, multiprocessors) < steps_of(best, steps, multiprocessors))
      best = sliced;
  }
  return best;
}

// The tile that wastes least: steps of k that a multiprocessor goes through, times a tile's
// columns, with what narrow tiles lose by reading more of a for each product. `halves`: tiles must
// be multiples of 128. `steps`: of k; 0: no slices.
inline MatmulTile choose_matmul_tile(int64_t m, int64_t n, int64_t batches, int multiprocessors,
                                     bool halves, int64_t steps = 0) {
  struct Candidate {
    int tile_n;
    int64_t weight;  // of a column, in hundredths
  };
  constexpr Candidate kCandidates[] = {{256, 100}, {192, 100}, {128, 104}};
  MatmulTile best;
  int64_t least = 0;
  for (const Candidate& c : kCandidates) {
    if (halves && c.tile_n % 128 != 0) continue;
    MatmulTile tile = matmul_tile_of(c.tile_n, m, n, batches, multiprocessors);
    if (steps > 0 && takes_slices(c.tile_n, halves))
      tile = with_slices(tile, steps, multiprocessors);
    const int64_t cost =
        steps_of(tile, std::max<int64_t>(steps, 1), multiprocessors) * c.tile_n * c.weight;
    if (least != 0 && cost >= least) continue;
    least = cost;
    best = tile;
  }
  return best;
}

inline std::string describe(const MatmulTile& t) {
  const std::string tiles = "128x" + std::to_string(t.n) + ", " + std::to_string(t.tiles) +
                            " tiles in " + std::to_string(t.rounds) + " rounds";
  if (t.slices == 1) return tiles;
  return tiles + ", the last " + std::to_string(t.tiles - t.whole) + " in " +
         std::to_string(t.slices) + " slices of k";
}

// Products with few rows: neighbouring columns of out that a multiprocessor takes at a time.
struct FewRowsTile {
  int columns = 8;  // a multiple of 8, at most 128
  int tiles = 0;
};

// As many columns as leave the fewest rounds, and no multiprocessor without.
inline FewRowsTile choose_few_rows_tile(int64_t n, int multiprocessors) {
  constexpr int64_t kMost = 16;  // eights
  const int64_t eights = (n + 7) / 8;
  const int64_t rounds = (eights + kMost * multiprocessors - 1) / (kMost * multiprocessors);
  const int64_t each = (eights + rounds * multiprocessors - 1) / (rounds * multiprocessors);
  FewRowsTile t;
  t.columns = static_cast<int>(each * 8);
  t.tiles = static_cast<int>((eights + each - 1) / each);
  return t;
}

inline std::string describe(const FewRowsTile& t) {
  return std::to_string(t.columns) + " columns, " + std::to_string(t.tiles) + " tiles";
}

}  // namespace pestle::ops
