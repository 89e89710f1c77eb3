#include "ops/common/matmul_algorithms.h"

namespace pestle::ops {
namespace {

struct Measured {
  ProductKey key;
  int algorithm;
};

// `pestle tune` on one H200 of 132 multiprocessors, cuBLASLt 13.1: where another algorithm was
// faster than the first by more than 1 %.
constexpr int kVersion = 130100;
constexpr int kMultiprocessors = 132;
constexpr Measured kMeasured[] = {
    {{DType::kBF16, DType::kBF16, DType::kBF16, 4096, 4096, 4096, 1, true, false,
      ProductSums::kF32},
     5},
};

}  // namespace

int measured_algorithm(const ProductKey& key, int version, int multiprocessors) {
  if (version != kVersion || multiprocessors != kMultiprocessors) return 0;
  for (const Measured& known : kMeasured) {
    if (known.key == key) return known.algorithm;
  }
  return 0;
}

}  // namespace pestle::ops
