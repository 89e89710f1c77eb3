// Slabs of a weight: rows that are decoded into the workspace together, then multiplied by a GEMM of
// x's dtype. Pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/gemm/select/gemm_tiles.h"

namespace pestle::ops {

// Of a contract with symbols N and K, 32 MiB at most: a slab in 16 bits and its rows' factors; a byte
// for each row of the weight.
#define PESTLE_MOST_SLAB_BYTES "32505856"
#define PESTLE_SLAB_BYTES "min(N*(2*K + 4), " PESTLE_MOST_SLAB_BYTES ") + N + 1280"
inline constexpr int64_t kMostSlabBytes = 32505856;         // 31 MiB
inline constexpr int64_t kMostSlabRows = int64_t{1} << 19;  // of the weight
inline constexpr int64_t kSlabUnit =
    64;  // rows of a slab: a multiple, so that slices of out are aligned
inline constexpr int64_t kLeastSlab = 256;  // rows that fit, at least

// Rows that fit.
inline int64_t most_slab_rows(int64_t n, int64_t k) {
  const int64_t fit = kMostSlabBytes / (2 * k + 4);
  return n <= fit ? n : fit / kSlabUnit * kSlabUnit;
}

// What a slab takes: columns of the tiles that a multiprocessor makes one after the other, in
// hundredths (choose_tile_plan's), times steps of k; and what decoding and two launches add, some 4
// us, beside the tiles' own time (0.8 us a step of a tile of 256 columns).
inline int64_t slab_cost(int64_t m, int64_t rows, int64_t k, int multiprocessors) {
  const TilePlan tiles = choose_tile_plan(m, rows, 1, multiprocessors, false);
  const int64_t steps = (k + 63) / 64;
  return tiles.waves * tiles.n * (tiles.n == 128 ? 104 : 100) * steps + 5 * 256 * 100;
}
inline int64_t slabs_cost(int64_t m, int64_t n, int64_t k, int64_t rows, int multiprocessors) {
  const int64_t whole = n / rows, rest = n % rows;
  return whole * slab_cost(m, rows, k, multiprocessors) +
         (rest > 0 ? slab_cost(m, rest, k, multiprocessors) : 0);
}

// Rows of the weight that each slab but the last has: of those that fit the ones whose tiles leave
// least of their last waves idle.
inline int64_t slab_rows(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  const int64_t most = most_slab_rows(n, k);
  if (most >= n) return n;
  int64_t best = most, least = slabs_cost(m, n, k, most, multiprocessors);
  for (int64_t rows = most; rows >= std::max(most / 2, kSlabUnit); rows -= kSlabUnit) {
    if (rows % 256 != 0 && rows % 192 != 0) continue;
    const int64_t cost = slabs_cost(m, n, k, rows, multiprocessors);
    if (cost >= least) continue;
    least = cost;
    best = rows;
  }
  return best;
}

}  // namespace pestle::ops
