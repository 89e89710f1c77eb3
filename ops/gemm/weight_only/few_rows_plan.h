// Tiles of few_rows.cuh, and the parts of k that the CTAs of a cluster share. Pure functions of the
// shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pestle::ops {

inline constexpr int kFewRowsMost = 128;  // rows of x
inline constexpr int kFewRowsStages = 4;
inline constexpr int kFewRowsOfWarp = 32;    // of the weight
inline constexpr int kFewRowsChunk = 128;    // of k, of a warp and stage
inline constexpr int kFewRowsMostParts = 8;  // CTAs of a cluster

struct FewRowsShape {
  int64_t m, n, k;
  int bits;                     // of a code
  double scale_bytes;           // of a row and chunk, in shared memory
  int (*scale_row)(int64_t k);  // bytes of a row's scales of so much of k there
  int64_t most_shared;
  int most_threads;  // of a CTA
  int multiprocessors;
  bool clusters;
};

struct FewRowsPlan {
  int eights = 0;                           // of rows of x, of a tile: 1, 2, 4 or 8
  int n_warps = 0, k_warps = 1, parts = 1;  // warps along n and along k; CTAs along k
  int chunks = 0;                           // of a part
  int scale_row = 0;
  double us = 0;

  int warps() const { return n_warps * k_warps; }
  int tile_n() const { return n_warps * kFewRowsOfWarp; }
  int64_t part_k() const { return int64_t{chunks} * k_warps * kFewRowsChunk; }
  int64_t stage_bytes(int bits) const {
    return int64_t{k_warps} * eights * 8 * kFewRowsChunk * 2 +
           int64_t{warps()} * kFewRowsOfWarp * kFewRowsChunk * bits / 8;
  }
  // A warp's sums, as they go to the CTA that adds them.
  int64_t sum_bytes() const {
    const int fragments = n_warps * (kFewRowsOfWarp / 16) * eights;
    return int64_t{parts} * k_warps * ((fragments + parts - 1) / parts) * 512;
  }
  int64_t flag_bytes() const { return (int64_t{parts} * warps() * 4 + 15) / 16 * 16; }
  int64_t ring_bytes(int bits) const {
    return std::max(kFewRowsStages * stage_bytes(bits), sum_bytes());
  }
  int64_t shared_bytes(int bits) const {
    return ring_bytes(bits) + int64_t{tile_n()} * scale_row + flag_bytes();
  }
};

inline int few_rows_eights(int64_t m) { return m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8; }

// us of the product (H200): what its memory, its tensor cores and issue slots, and the way from parts
// to sums take.
inline double few_rows_time(const FewRowsShape& s, const FewRowsPlan& p) {
  const int64_t m_tiles = (s.m + p.eights * 8 - 1) / (p.eights * 8);
  const int64_t tiles = m_tiles * ((s.n + p.tile_n() - 1) / p.tile_n());
  const int64_t ctas = tiles * p.parts;
  const int64_t waves = (ctas + s.multiprocessors - 1) / s.multiprocessors;
  const double units = static_cast<double>(p.part_k()) / 32 * p.n_warps;  // of 32 by 32 weights
  // Warps that the busiest of four schedulers has.
  const double uneven = static_cast<double>((p.warps() + 3) / 4 * 4) / p.warps();
  const double tensor = units * 4 * p.eights * 1.6, issue = units * (64 + 6 * p.eights) / 4;
  const double cycles = std::max(tensor, issue) * uneven + 0.2 * std::min(tensor, issue);
  const double compute = cycles / 1750;
  const double chunk_bytes =
      static_cast<double>(p.stage_bytes(s.bits)) + p.warps() * kFewRowsOfWarp * s.scale_bytes;
  const double of_cta = chunk_bytes * p.chunks;
  const auto busy = static_cast<double>(std::min<int64_t>(ctas, s.multiprocessors));
  const double memory = std::max(of_cta / 40e3, of_cta * busy / 4.6e6);
  const double join = p.parts * p.k_warps == 1
                          ? 0
                          : (p.parts == 1 ? 0.4 : 1.2) + static_cast<double>(p.sum_bytes()) / 40e3;
  return 3.5 + static_cast<double>(waves) * (std::max(compute, memory) + 0.6 + join);
}

// What is left to reckon where warps and parts are given; eights 0: it does not fit.
inline FewRowsPlan few_rows_plan(const FewRowsShape& s, int n_warps, int k_warps, int parts) {
  FewRowsPlan p;
  p.eights = few_rows_eights(s.m);
  p.n_warps = n_warps, p.k_warps = k_warps, p.parts = parts;
  const int64_t of_chunks = int64_t{k_warps} * kFewRowsChunk * parts;
  p.chunks = static_cast<int>((s.k + of_chunks - 1) / of_chunks);
  p.scale_row = s.scale_row(p.part_k());
  const bool fits = p.warps() * 32 <= s.most_threads && p.shared_bytes(s.bits) <= s.most_shared &&
                    int64_t{parts - 1} * p.part_k() < s.k;  // no part of nothing
  if (!fits) return {};
  p.us = few_rows_time(s, p);
  return p;
}
inline FewRowsPlan choose_few_rows(const FewRowsShape& s) {
  constexpr int kNWarps[] = {8, 4, 12, 16, 6, 7, 5, 3, 2, 1};
  constexpr int kParts[] = {1, 2, 4, 8, 3, 6};
  FewRowsPlan best;
  for (const int parts : kParts) {
    if (parts > 1 && !s.clusters) break;
    for (const int n_warps : kNWarps)
      for (int k_warps = 1; k_warps * n_warps * 32 <= s.most_threads && k_warps <= 4;
           k_warps *= 2) {
        const FewRowsPlan p = few_rows_plan(s, n_warps, k_warps, parts);
        if (p.eights != 0 && (best.eights == 0 || p.us < best.us)) best = p;
      }
  }
  return best;
}

}  // namespace pestle::ops
