// Which tile a matrix product takes: pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <cstdint>
#include <string>

namespace pestle::ops {

inline constexpr int kMatmulTileM = 128;

struct MatmulTile {
  int n = 256;  // columns; 128 rows
  int64_t tiles = 0;
  int64_t rounds = 0;  // of tiles over the multiprocessors
};

inline MatmulTile matmul_tile_of(int columns, int64_t m, int64_t n, int64_t batches,
                                 int multiprocessors) {
  const int64_t tiles =
      (m + kMatmulTileM - 1) / kMatmulTileM * ((n + columns - 1) / columns) * batches;
  return {columns, tiles, (tiles + multiprocessors - 1) / multiprocessors};
}

// The tile that wastes least: rounds of tiles over the GPU, times a tile's columns, with what
// narrow tiles lose by reading more of a for each product. `halves`: tiles must be multiples of
// 128.
inline MatmulTile choose_matmul_tile(int64_t m, int64_t n, int64_t batches, int multiprocessors,
                                     bool halves) {
  struct Candidate {
    int tile_n;
    int64_t weight;  // of a column, in hundredths
  };
  constexpr Candidate kCandidates[] = {{256, 100}, {192, 100}, {128, 104}};
  MatmulTile best;
  int64_t least = 0;
  for (const Candidate& c : kCandidates) {
    if (halves && c.tile_n % 128 != 0) continue;
    const MatmulTile tile = matmul_tile_of(c.tile_n, m, n, batches, multiprocessors);
    const int64_t cost = tile.rounds * c.tile_n * c.weight;
    if (least != 0 && cost >= least) continue;
    least = cost;
    best = tile;
  }
  return best;
}

inline std::string describe(const MatmulTile& t) {
  return "128x" + std::to_string(t.n) + ", " + std::to_string(t.tiles) + " tiles in " +
         std::to_string(t.rounds) + " rounds";
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
