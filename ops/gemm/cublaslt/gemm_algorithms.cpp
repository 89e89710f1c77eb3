#include "ops/gemm/cublaslt/gemm_algorithms.h"

namespace pestle::ops {
namespace {

struct Measured {
  GemmKey key;
  int algorithm;
};

// Terms from which on cuBLASLt is faster: of 16-bit floats (128^3 still 2.8 us for 3.9, but a call
// costs the host more than a launch), of 8-bit ones (1024^3 7.4 us for 6.9, a copy of the scales
// of 1.2 among them that it no longer takes), of those where k is long, which it slices (17 x 3072
// x 3072 6.5 us for 10.7, 256 x 3072 x 3072 9.4 for 11.7).
constexpr int64_t kTerms = int64_t{1} << 22;
constexpr int64_t kTermsOf8Bits = int64_t{1} << 33;
constexpr int64_t kTermsOfLongSums = int64_t{1} << 27;
constexpr int64_t kLongSum = 2048;

// On one H200 of 132 multiprocessors, cuBLASLt 13.1, each algorithm alone and sustained (in turns
// with others, those that draw much power borrow what the others leave): where another was faster
// than the first by 1 % or more. Of 8-bit floats, those under scales of tensors.
constexpr int kVersion = 130100;
constexpr int kMultiprocessors = 132;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;
constexpr DType kE4M3 = DType::kE4M3;
constexpr GemmSums kF32 = GemmSums::kF32;
constexpr Measured kMeasured[] = {
    {{kBF16, kBF16, kBF16, 4608, 9216, 3072, 1, true, false, kF32}, 4},
    {{kBF16, kBF16, kBF16, 32760, 13824, 5120, 1, true, false, kF32}, 5},
    {{kF16, kF16, kF16, 8192, 8192, 8192, 1, true, false, kF32}, 1},
    {{kF16, kF16, kF16, 4608, 12288, 3072, 1, true, false, kF32}, 4},
    {{kBF16, kBF16, kBF16, 2048, 4096, 4096, 1, true, true, kF32}, 1},
    {{kBF16, kBF16, kBF16, 8192, 8192, 8192, 1, true, true, kF32}, 7},
    {{kBF16, kBF16, kBF16, 4608, 9216, 3072, 1, true, true, kF32}, 4},
    {{kBF16, kBF16, kBF16, 17, 4096, 4096, 1, true, true, kF32}, 2},
    {{kE4M3, kE4M3, kBF16, 4608, 12288, 3072, 1, true, true, GemmSums::kFast}, 7},
    {{kE4M3, kE4M3, kBF16, 4096, 4096, 4096, 1, true, true, GemmSums::kFast}, 5},
    {{kE4M3, kE4M3, kBF16, 4608, 9216, 3072, 1, true, true, GemmSums::kFast}, 4},
    {{kE4M3, kE4M3, kBF16, 32760, 13824, 5120, 1, true, true, GemmSums::kFast}, 2},
    {{kE4M3, kE4M3, kBF16, 4096, 4096, 4096, 1, true, true, GemmSums::kAccurate}, 3},
    {{kE4M3, kE4M3, kBF16, 8192, 8192, 8192, 1, true, true, GemmSums::kAccurate}, 2},
    {{kE4M3, kE4M3, kBF16, 4608, 3072, 12288, 1, true, true, GemmSums::kAccurate}, 2},
};

}  // namespace

bool library_gains(const GemmKey& key, bool one_scale) {
  const int64_t terms = key.m * key.n * key.batches * key.k;
  switch (key.sums) {
    case GemmSums::kF32: return terms >= kTerms;
    case GemmSums::kInteger: return false;  // it has no exact sums of integers with scales
    default:
      return terms >= kTermsOf8Bits ||
             (one_scale && key.k >= kLongSum && terms >= kTermsOfLongSums);
  }
}

int measured_algorithm(const GemmKey& key, int version, int multiprocessors) {
  if (version != kVersion || multiprocessors != kMultiprocessors) return 0;
  for (const Measured& known : kMeasured) {
    if (known.key == key) return known.algorithm;
  }
  return 0;
}

}  // namespace pestle::ops
