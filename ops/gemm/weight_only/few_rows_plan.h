// Tiles of few_rows.cuh, and the parts of k that the CTAs of a cluster share. Pure functions of the
// shape and the machine, tested on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pestle::ops {

inline constexpr int kFewRowsDepth = 4;      // steps of codes in shared memory
inline constexpr int kFewRowsSteps = 2;      // of a chunk, each of 64 bytes of a row of the weight
inline constexpr int kFewRowsSlots = 3;      // chunks of x there, where not all of a part
inline constexpr int kFewRowsOfWarp = 32;    // of the weight
inline constexpr int kFewRowsMostParts = 8;  // CTAs of a cluster

// Of k.
constexpr int few_rows_chunk(int bits) { return kFewRowsSteps * 512 / bits; }
// Bytes of a warp's chunk of x.
constexpr int64_t few_rows_x_slice(int eights, int bits) {
  return int64_t{few_rows_chunk(bits)} / 32 * (eights * 8 * 64 + 64);
}

struct FewRowsShape {
  int64_t m, n, k;
  int bits;                     // of a code
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
  int x_slots = 1;                          // of them, those whose x lies in shared memory
  int scale_row = 0;
  bool beside = false;  // sums of parts of k lie beside x and codes, not in their place
  double us = 0;

  int warps() const { return n_warps * k_warps; }
  int tile_n() const { return n_warps * kFewRowsOfWarp; }
  int64_t part_k(int bits) const { return int64_t{chunks} * k_warps * few_rows_chunk(bits); }
  int64_t x_bytes(int bits) const {
    return int64_t{x_slots} * k_warps * few_rows_x_slice(eights, bits);
  }
  int64_t code_bytes() const { return int64_t{warps()} * kFewRowsDepth * kFewRowsOfWarp * 64; }
  // A warp's sums, as they go to the CTA that adds them.
  int64_t sum_bytes() const {
    const int fragments = n_warps * (kFewRowsOfWarp / 16) * eights;
    return int64_t{parts} * k_warps * ((fragments + parts - 1) / parts) * 512;
  }
  int64_t flag_bytes() const { return (int64_t{parts} * warps() * 4 + 15) / 16 * 16; }
  int64_t sum_place(int bits) const { return beside ? x_bytes(bits) + code_bytes() : 0; }
  int64_t scale_place(int bits) const {
    return std::max(x_bytes(bits) + code_bytes(), sum_place(bits) + sum_bytes());
  }
  int64_t flag_place(int bits) const { return scale_place(bits) + int64_t{tile_n()} * scale_row; }
  // At the end, of 16.
  int64_t barrier_place(int bits) const { return flag_place(bits) + flag_bytes(); }
  int64_t shared_bytes(int bits) const { return barrier_place(bits) + 16; }
};

inline int64_t few_rows_tiles(int64_t of, int tile) { return (of + tile - 1) / tile; }
inline int few_rows_eights(int64_t m) { return m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8; }

// CTAs that run at a time. Clusters lie within a GPC, whose multiprocessors are pairs: those of more than
// two leave some idle.
inline int64_t few_rows_at_a_time(const FewRowsShape& s, int parts, int64_t of_multiprocessor) {
  const int64_t usable = parts <= 2 ? s.multiprocessors : s.multiprocessors * 9 / 10;
  return std::max<int64_t>(1, usable * of_multiprocessor / parts) * parts;
}

inline int64_t few_rows_of_multiprocessor(const FewRowsShape& s, const FewRowsPlan& p) {
  return std::max<int64_t>(1, std::min<int64_t>(s.most_shared / (p.shared_bytes(s.bits) + 1024),
                                                s.most_threads / (p.warps() * 32)));
}
// Where they fit, and leave as many CTAs to a multiprocessor.
inline bool few_rows_sums_fit_beside(const FewRowsShape& s, const FewRowsPlan& p) {
  FewRowsPlan beside = p;
  beside.beside = true;
  return p.parts > 1 && beside.shared_bytes(s.bits) <= s.most_shared &&
         few_rows_of_multiprocessor(s, beside) == few_rows_of_multiprocessor(s, p);
}

// us of the product, fitted to an H200: a step of a warp alone takes as long as its instructions wait
// for each other, of several warps of a scheduler as long as it issues or as tensor cores multiply; what
// a warp copies of x comes on top.
inline double few_rows_time(const FewRowsShape& s, const FewRowsPlan& p) {
  const int64_t tiles = few_rows_tiles(s.m, p.eights * 8) * few_rows_tiles(s.n, p.tile_n());
  const int64_t ctas = tiles * p.parts;
  const int64_t fit = few_rows_of_multiprocessor(s, p);
  const int64_t wide = few_rows_at_a_time(s, p.parts, 1);
  const int64_t together = std::min<int64_t>(fit, (ctas + wide - 1) / wide);
  const int64_t room = few_rows_at_a_time(s, p.parts, together);
  const int64_t waves = (ctas + room - 1) / room;
  const double eights = p.eights, steps = 2.0 * p.chunks;
  const double of_x = 80 * eights / p.n_warps;
  const double issue = 340 + 28 * eights;
  const double tensor = 16 * 6.4 * eights * 4 / s.bits;
  const auto warps = static_cast<double>((p.warps() * together + 3) / 4);  // of a scheduler
  const double several = warps * (std::max(issue, tensor) + 0.35 * std::min(issue, tensor));
  const double compute = steps * (std::max(650 + tensor, several) + of_x) / 1900;
  const double weight = p.tile_n() * static_cast<double>(p.part_k(s.bits)) * s.bits / 8 * 1.1;
  const double x = eights * 16 * static_cast<double>(p.part_k(s.bits));
  const double memory = static_cast<double>(together) * (weight / 33e3 + x / 60e3);
  const double join =
      (p.parts > 1 ? 0.9 + 0.12 * p.parts : 0.3) + static_cast<double>(p.sum_bytes()) / 60e3;
  return 6 + static_cast<double>(waves) * (std::max(compute, memory) + join);
}

// What is left to reckon where warps and parts are given; eights 0: it does not fit.
inline FewRowsPlan few_rows_plan(const FewRowsShape& s, int n_warps, int k_warps, int parts) {
  FewRowsPlan p;
  p.eights = few_rows_eights(s.m);
  p.n_warps = n_warps, p.k_warps = k_warps, p.parts = parts;
  p.chunks = static_cast<int>(few_rows_tiles(s.k, k_warps * few_rows_chunk(s.bits) * parts));
  p.scale_row = s.scale_row(p.part_k(s.bits));
  p.x_slots = p.chunks;
  if (p.shared_bytes(s.bits) > s.most_shared) p.x_slots = std::min(p.chunks, kFewRowsSlots);
  const bool fits = p.warps() * 32 <= s.most_threads && p.shared_bytes(s.bits) <= s.most_shared &&
                    int64_t{parts - 1} * p.part_k(s.bits) < s.k;  // no part of nothing
  if (!fits) return {};
  p.beside = few_rows_sums_fit_beside(s, p);
  p.us = few_rows_time(s, p);
  return p;
}
// Of so many parts and CTAs a multiprocessor: tiles as small as a wave allows, and as many warps along k
// as fit.
inline FewRowsPlan few_rows_plan_of(const FewRowsShape& s, int parts, int together) {
  const int most = s.most_threads / 32 / together;
  const int64_t m_tiles = few_rows_tiles(s.m, few_rows_eights(s.m) * 8);
  const int64_t tiles =
      std::max<int64_t>(1, few_rows_at_a_time(s, parts, together) / (parts * m_tiles));
  const int64_t wanted =
      few_rows_tiles(few_rows_tiles(s.n, kFewRowsOfWarp), static_cast<int>(tiles));
  for (int n_warps = static_cast<int>(std::clamp<int64_t>(wanted, 1, most));; n_warps /= 2) {
    for (int k_warps = 4; k_warps > 0; k_warps /= 2) {
      if (n_warps * k_warps > most) continue;
      const FewRowsPlan p = few_rows_plan(s, n_warps, k_warps, parts);
      if (p.eights != 0) return p;
    }
    if (n_warps == 1) return {};
  }
}
inline FewRowsPlan choose_few_rows(const FewRowsShape& s) {
  FewRowsPlan best;
  for (const int parts : {1, 2, 4, kFewRowsMostParts}) {
    if (parts > 1 && !s.clusters) break;
    for (const int together : {1, 2}) {
      const FewRowsPlan p = few_rows_plan_of(s, parts, together);
      if (p.eights != 0 && (best.eights == 0 || p.us < best.us)) best = p;
    }
  }
  return best;
}

}  // namespace pestle::ops
