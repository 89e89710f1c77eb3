// A GEMM as decisions about it see it.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace pestle::ops {

// What sums along k may lose: part of what decides how fast a GEMM is.
enum class GemmSums : int { kF32, kFast, kAccurate, kBlocks, kInteger };

struct GemmKey {
  DType a = DType::kNone, b = DType::kNone, out = DType::kNone;
  int64_t m = 0, n = 0, k = 0, batches = 1;
  bool a_along_k = true, b_along_k = true;
  GemmSums sums = GemmSums::kF32;
  bool operator==(const GemmKey& other) const = default;
};

}  // namespace pestle::ops
