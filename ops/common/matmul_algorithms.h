// Where cuBLASLt is faster than our kernels on an H200, and by which of the algorithms that it
// names for a product, as measured (`pestle tune`); where nothing was measured, by its first.
#pragma once

#include "ops/common/matmul_key.h"

namespace pestle::ops {

// Whether it is where no choice was tuned, by the number of terms.
bool library_gains(const ProductKey& key);
// `version`: cuBLASLt's; `multiprocessors`: the GPU's.
int measured_algorithm(const ProductKey& key, int version, int multiprocessors);

}  // namespace pestle::ops
