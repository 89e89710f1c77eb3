// Several weights of one x in one launch: their tiles stand side by side, those of the first weight
// first. Pure functions of the shape and the machine, tested on a CPU.
#pragma once

#include <cstdint>
#include <span>

#include "formats/host_device.h"
#include "ops/gemm/select/gemm_tiles.h"

namespace pestle::ops {

inline constexpr int kGemvParts = 3;  // at most

struct GemvParts {
  int first[kGemvParts] =
      {};  // tile of each weight; of weights that there are not, behind the last
  int tiles = 0;

  PESTLE_HD int part_of(int64_t tile) const {
    int part = 0;
    for (int p = 1; p < kGemvParts; ++p) part += tile >= first[p] ? 1 : 0;
    return part;
  }
};

// Tiles of so many columns, and so many of them along m; none crosses from one weight into the next.
inline GemvParts lay_out_parts(std::span<const int64_t> widths, int columns, int along_m = 1) {
  GemvParts parts;
  for (size_t p = 0; p < kGemvParts; ++p) {
    parts.first[p] = parts.tiles;
    if (p < widths.size())
      parts.tiles += along_m * static_cast<int>((widths[p] + columns - 1) / columns);
  }
  return parts;
}

// As choose_gemv_tile, of which no tile crosses from one weight into the next.
inline GemvTile choose_gemv_tile(std::span<const int64_t> widths, int multiprocessors) {
  constexpr int kMost = 16;  // eights
  int64_t eights = 0;
  for (const int64_t n : widths) eights += (n + 7) / 8;
  for (int64_t waves = (eights + kMost * multiprocessors - 1) / (kMost * multiprocessors);;
       ++waves) {
    for (int each = 1; each <= kMost; ++each) {
      const int tiles = lay_out_parts(widths, each * 8).tiles;
      if (tiles <= waves * multiprocessors) return {each * 8, tiles};
    }
  }
}

}  // namespace pestle::ops
