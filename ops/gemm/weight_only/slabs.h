// Slabs of an operand: rows that are decoded into the workspace together, then multiplied by a GEMM of
// 16-bit matrices. Pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/gemm/select/gemm_tiles.h"

namespace pestle::ops {

// Of a contract with symbols N and K, 32 MiB at most: a slab in 16 bits and its rows' factors; a byte
// for each row of the weight.
#define PESTLE_MOST_SLAB_BYTES "32505856"
#define PESTLE_SLAB_BYTES "min(N*(2*K + 4), " PESTLE_MOST_SLAB_BYTES ") + N + 1280"
// Where both operands, M rows and N, are decoded, 128 MiB at most: with 32, 4608 x 12288 x 3072 takes
// 1.05 times as long on an H200, and 8192^3, of which few rows fit, 2.3 times.
#define PESTLE_MOST_PAIR_BYTES "133169152"
#define PESTLE_SLAB_PAIR_BYTES "min((M + N)*(2*K + 4), " PESTLE_MOST_PAIR_BYTES ") + M + N + 2560"
inline constexpr int64_t kMostSlabBytes = 32505856;         // 31 MiB
inline constexpr int64_t kMostPairBytes = 133169152;        // 127 MiB
inline constexpr int64_t kMostSlabRows = int64_t{1} << 19;  // of the weight
inline constexpr int64_t kSlabUnit =
    64;  // rows of a slab: a multiple, so that slices of out are aligned
inline constexpr int64_t kLeastSlab = 256;  // rows that fit, at least

// Rows that fit.
inline int64_t most_slab_rows(int64_t n, int64_t k) {
  const int64_t fit = kMostSlabBytes / (2 * k + 4);
  return n <= fit ? n : fit / kSlabUnit * kSlabUnit;
}

// What a GEMM takes: columns of the tiles that a multiprocessor makes one after the other, in
// hundredths (choose_tile_plan's), times steps of k: 0.8 us is a step of a tile of 256 columns.
inline constexpr int64_t kSlabStep = 256 * 100;
inline int64_t tiles_cost(int64_t m, int64_t rows, int64_t k, int multiprocessors) {
  const TilePlan tiles = choose_tile_plan(m, rows, 1, multiprocessors, false);
  const int64_t steps = (k + 63) / 64;
  return tiles.waves * tiles.n * (tiles.n == 128 ? 104 : 100) * steps;
}
// The same of a slab, with what decoding and two launches add, some 4 us.
inline int64_t slab_cost(int64_t m, int64_t rows, int64_t k, int multiprocessors) {
  return tiles_cost(m, rows, k, multiprocessors) + 5 * kSlabStep;
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

// ---- both operands ------------------------------------------------------------------------------

// Rows of the slabs of a and of b. Each slab of one, the outer, meets all slabs of the other.
struct SlabPair {
  int64_t a = 0, b = 0;
  bool a_outer = true;
};

// Rows of both that fit. Where fewer than kLeastPair do, most multiprocessors are idle: the kernels that
// decode in shared memory are no slower.
inline constexpr int64_t kLeastPair = 1792;
inline int64_t pair_rows_that_fit(int64_t k) { return kMostPairBytes / (2 * k + 4); }

// Reckoned from slab_cost's 4 us: a launch and what of its kernel overlaps with nothing, some 1 us; and
// 2.5 bytes an element that is decoded, at 6.5 TB/s.
inline int64_t decoding_cost(int64_t rows, int64_t k) {
  return rows == 0 ? 0 : 5 * kSlabStep / 4 + rows * k / 82;
}
inline int64_t pair_cost(int64_t m, int64_t n, int64_t k, const SlabPair& slabs,
                         int multiprocessors) {
  const int64_t whole[] = {m / slabs.a, n / slabs.b}, rest[] = {m % slabs.a, n % slabs.b};
  const auto gemms = [&](int64_t rows, int64_t columns, int64_t count) {
    if (rows == 0 || columns == 0 || count == 0) return int64_t{0};
    return count * (tiles_cost(rows, columns, k, multiprocessors) + 5 * kSlabStep / 4);
  };
  const int64_t all_a = whole[0] * decoding_cost(slabs.a, k) + decoding_cost(rest[0], k);
  const int64_t all_b = whole[1] * decoding_cost(slabs.b, k) + decoding_cost(rest[1], k);
  const int64_t times_a = slabs.a_outer ? 1 : whole[1] + (rest[1] > 0);
  const int64_t times_b = slabs.a_outer ? whole[0] + (rest[0] > 0) : 1;
  return times_a * all_a + times_b * all_b + gemms(slabs.a, slabs.b, whole[0] * whole[1]) +
         gemms(rest[0], slabs.b, whole[1]) + gemms(slabs.a, rest[1], whole[0]) +
         gemms(rest[0], rest[1], 1);
}

// Of slabs that fit together the cheapest: of a by so many tiles' rows, of b as many as fit, or fewer,
// so that tiles fill whole waves. Slabs of a but the last begin at multiples of 128, those of b at
// multiples of 64.
inline SlabPair slab_pair(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  const int64_t fit = pair_rows_that_fit(k);
  if (m + n <= fit) return {m, n, true};
  SlabPair best;
  int64_t least = 0;
  const auto consider = [&](int64_t a, int64_t b) {
    if (b < std::min(n, kSlabUnit)) return;
    for (const bool a_outer : {true, false}) {
      const SlabPair slabs{a, b, a_outer};
      const int64_t cost = pair_cost(m, n, k, slabs, multiprocessors);
      if (least != 0 && cost >= least) continue;
      least = cost;
      best = slabs;
    }
  };
  const int64_t most_a = std::min(m, fit - kSlabUnit);
  const int64_t unit = (most_a / 32 + kGemmTileM - 1) / kGemmTileM * kGemmTileM;
  for (int64_t rows = unit; rows < most_a + unit; rows += unit) {
    const int64_t a = std::min(rows, m);
    if (a > most_a) break;
    const int64_t most_b = fit - a >= n ? n : (fit - a) / kSlabUnit * kSlabUnit;
    consider(a, most_b);
    const int64_t tiles_m = (a + kGemmTileM - 1) / kGemmTileM;
    for (const int64_t width : {256, 192, 128}) {
      const int64_t waves = tiles_m * (most_b / width) / multiprocessors;
      if (waves > 0) consider(a, waves * multiprocessors / tiles_m * width);
    }
  }
  return best;
}

}  // namespace pestle::ops
