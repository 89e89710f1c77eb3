// Which path a GEMM on tensor cores takes (GEMV, whole tiles, split-K, cuBLASLt): pure functions of
// its shape and the machine, tested on a CPU. What `pestle tune` measured on a machine comes first
// (gemm_tuned.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "ops/gemm/cublaslt/gemm_algorithms.h"
#include "ops/gemm/select/gemm_tiles.h"

namespace pestle::ops {

// kSplitK: tiles, those of the last wave by split-K.
enum class GemmPath : int { kGemv, kTile, kLibrary, kSplitK };

struct GemmChoice {
  GemmPath path = GemmPath::kTile;
  int variant = 0;  // kTile, kSplitK: columns; kLibrary: which of its algorithms, best first
  bool tuned = false;
  int version = 0;  // of the library that was tuned
};

inline constexpr int kMultiprocessorsOfH200 = 132;
inline constexpr int64_t kStepBytes = 128;   // of k that tiles go forward by
inline constexpr int kCublasAlgorithms = 8;  // that cuBLASLt is asked for

// What the machine and the call leave to choose from.
struct GemmOptions {
  int compute_capability = 90;
  int multiprocessors = kMultiprocessorsOfH200;
  bool gemv = false;                   // its kernel takes the call
  bool split_k = false;                // the same of tiles by split-K
  bool library = false;                // cuBLASLt was found and takes the call
  int version = 0;                     // cuBLASLt's
  int algorithms = kCublasAlgorithms;  // that it names at most
};

// Sums begun anew in f32 need tiles of whole halves.
inline bool needs_halves(GemmSums sums) {
  return sums == GemmSums::kAccurate || sums == GemmSums::kBlocks;
}

// Of k, 128 bytes each.
inline int64_t steps_of_k(const GemmKey& p) {
  return (p.k * dtype_bytes(p.a) + kStepBytes - 1) / kStepBytes;
}

inline TilePlan split_k_plan_of(int columns, const GemmKey& p, int multiprocessors) {
  const TilePlan tile = tile_plan_of(columns, p.m, p.n, p.batches, multiprocessors);
  return takes_split_k(columns, needs_halves(p.sums))
             ? with_split_k(tile, steps_of_k(p), multiprocessors)
             : tile;
}

// Whether a tuned path can be taken: it may be of another library, or of a call with an epilogue
// that this one has not.
inline bool is_open(const GemmChoice& choice, const GemmKey& p, const GemmOptions& options) {
  switch (choice.path) {
    case GemmPath::kGemv: return options.gemv;
    case GemmPath::kLibrary:
      return options.library && choice.version == options.version &&
             choice.variant < options.algorithms;
    case GemmPath::kSplitK:
      if (!options.split_k ||
          split_k_plan_of(choice.variant, p, options.multiprocessors).splits == 1)
        return false;
      break;
    default: break;
  }
  return !needs_halves(p.sums) || choice.variant % 128 == 0;
}

// Whether `tile` is faster than cuBLASLt under scales of rows, for which it has no split-K and
// behaves as whole tiles of 256 columns. On an H200 (bench/results/linear_peers.jsonl: codes of 8
// bits of linear_fp8, fast, by cuBLASLt; of linear_int8 by our tiles, which take as long for both)
// ours won wherever those are one wave or two (192 x 14336 x 4096 30.0 us for 35.7, 1024 x 4096 x
// 14336 93.8 for 98.8) and where they cost a tenth more than ours (512 x 5120 x 13824 74 for 96,
// 1024 x 3072 x 3072 19.4 for 22.9), and lost elsewhere (8192 x 9216 x 3072 391 for 348). Accurate
// sums cost our tiles more.
inline bool tile_gains_under_rows(const TilePlan& tile, const GemmKey& p,
                                  const GemmOptions& options) {
  const int64_t steps = options.split_k ? steps_of_k(p) : 0;
  const TilePlan wide = tile_plan_of(256, p.m, p.n, p.batches, options.multiprocessors);
  const int64_t own = cost_of(tile, steps, options.multiprocessors);
  const int64_t whole = cost_of(wide, steps, options.multiprocessors);
  if (p.sums == GemmSums::kFast) return wide.waves <= 2 || 10 * own < 9 * whole;
  return p.sums == GemmSums::kAccurate && 4 * own < 3 * whole;
}

// `tuned`: what a tuner measured, or null.
inline GemmChoice choose_path(const GemmKey& p, const GemmOptions& options,
                              const GemmChoice* tuned = nullptr) {
  if (tuned != nullptr && is_open(*tuned, p, options)) return *tuned;
  if (options.gemv) return {GemmPath::kGemv};
  const bool one_scale = options.algorithms > 1;  // it names one alone where there are more
  const TilePlan tile = choose_tile_plan(p.m, p.n, p.batches, options.multiprocessors,
                                         needs_halves(p.sums), options.split_k ? steps_of_k(p) : 0);
  if (options.library && options.compute_capability == 90 && library_gains(p, one_scale) &&
      (one_scale || !tile_gains_under_rows(tile, p, options)))
    return {GemmPath::kLibrary,
            std::min(measured_algorithm(p, options.version, options.multiprocessors),
                     options.algorithms - 1)};
  return {tile.splits > 1 ? GemmPath::kSplitK : GemmPath::kTile, tile.n};
}

inline std::string describe(const GemmChoice& choice, const GemmKey& p, int multiprocessors) {
  const std::string end = choice.tuned ? " (tuned)" : "";
  switch (choice.path) {
    case GemmPath::kGemv: return describe(choose_gemv_tile(p.n, multiprocessors)) + end;
    case GemmPath::kLibrary: return "cuBLASLt's algorithm " + std::to_string(choice.variant) + end;
    case GemmPath::kSplitK:
      return describe(split_k_plan_of(choice.variant, p, multiprocessors)) + end;
    default: break;
  }
  return describe(tile_plan_of(choice.variant, p.m, p.n, p.batches, multiprocessors)) + end;
}

}  // namespace pestle::ops
