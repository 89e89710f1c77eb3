// Which of the algorithms that cuBLASLt names for a product is the fastest on an H200, as measured
// (`pestle tune`); where nothing was measured, its first.
#pragma once

#include "ops/common/matmul_key.h"

namespace pestle::ops {

// `version`: cuBLASLt's; `multiprocessors`: the GPU's.
int measured_algorithm(const ProductKey& key, int version, int multiprocessors);

}  // namespace pestle::ops
