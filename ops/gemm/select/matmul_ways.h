// Which way a matrix product on tensor cores goes: pure functions of its shape and the machine,
// tested on a CPU. What `pestle tune` measured on a machine comes first (matmul_tuned.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "ops/gemm/cublaslt/matmul_algorithms.h"
#include "ops/gemm/select/matmul_tiles.h"

namespace pestle::ops {

// kSlices: tiles, the last ones in slices of k.
enum class ProductWay : int { kFewRows, kTile, kLibrary, kSlices };

struct ProductChoice {
  ProductWay way = ProductWay::kTile;
  int variant = 0;  // kTile, kSlices: columns; kLibrary: which of its algorithms, best first
  bool tuned = false;
  int version = 0;  // of the library that was tuned
};

inline constexpr int kMultiprocessorsOfH200 = 132;
inline constexpr int64_t kStepBytes = 128;   // of k that tiles go forward by
inline constexpr int kCublasAlgorithms = 8;  // that cuBLASLt is asked for

// What the machine and the call leave to choose from.
struct ProductMeans {
  int compute_capability = 90;
  int multiprocessors = kMultiprocessorsOfH200;
  bool few_rows = false;               // its kernel takes the call
  bool slices = false;                 // the same of tiles in slices
  bool library = false;                // cuBLASLt was found and takes the call
  int version = 0;                     // cuBLASLt's
  int algorithms = kCublasAlgorithms;  // that it names at most
};

// Sums begun anew in f32 need tiles of whole halves.
inline bool needs_halves(ProductSums sums) {
  return sums == ProductSums::kAccurate || sums == ProductSums::kBlocks;
}

// Of k, 128 bytes each.
inline int64_t steps_of_k(const ProductKey& p) {
  return (p.k * dtype_bytes(p.a) + kStepBytes - 1) / kStepBytes;
}

inline MatmulTile sliced_tile_of(int columns, const ProductKey& p, int multiprocessors) {
  const MatmulTile tile = matmul_tile_of(columns, p.m, p.n, p.batches, multiprocessors);
  return takes_slices(columns, needs_halves(p.sums))
             ? with_slices(tile, steps_of_k(p), multiprocessors)
             : tile;
}

// Whether a tuned way can be gone: it may be of another library, or of a call with an epilogue that
// this one has not.
inline bool is_open(const ProductChoice& choice, const ProductKey& p, const ProductMeans& means) {
  switch (choice.way) {
    case ProductWay::kFewRows: return means.few_rows;
    case ProductWay::kLibrary:
      return means.library && choice.version == means.version && choice.variant < means.algorithms;
    case ProductWay::kSlices:
      if (!means.slices || sliced_tile_of(choice.variant, p, means.multiprocessors).slices == 1)
        return false;
      break;
    default: break;
  }
  return !needs_halves(p.sums) || choice.variant % 128 == 0;
}

// `tuned`: what a tuner measured, or null.
inline ProductChoice choose_way(const ProductKey& p, const ProductMeans& means,
                                const ProductChoice* tuned = nullptr) {
  if (tuned != nullptr && is_open(*tuned, p, means)) return *tuned;
  if (means.few_rows) return {ProductWay::kFewRows};
  const bool one_scale = means.algorithms > 1;  // it names one alone where there are more
  if (means.library && means.compute_capability == 90 && library_gains(p, one_scale))
    return {ProductWay::kLibrary,
            std::min(measured_algorithm(p, means.version, means.multiprocessors),
                     means.algorithms - 1)};
  const MatmulTile tile =
      choose_matmul_tile(p.m, p.n, p.batches, means.multiprocessors, needs_halves(p.sums),
                         means.slices ? steps_of_k(p) : 0);
  return {tile.slices > 1 ? ProductWay::kSlices : ProductWay::kTile, tile.n};
}

inline std::string describe(const ProductChoice& choice, const ProductKey& p, int multiprocessors) {
  const std::string end = choice.tuned ? " (tuned)" : "";
  switch (choice.way) {
    case ProductWay::kFewRows: return describe(choose_few_rows_tile(p.n, multiprocessors)) + end;
    case ProductWay::kLibrary:
      return "cuBLASLt's algorithm " + std::to_string(choice.variant) + end;
    case ProductWay::kSlices:
      return describe(sliced_tile_of(choice.variant, p, multiprocessors)) + end;
    default: break;
  }
  return describe(matmul_tile_of(choice.variant, p.m, p.n, p.batches, multiprocessors)) + end;
}

}  // namespace pestle::ops
