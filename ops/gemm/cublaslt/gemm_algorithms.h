// Where cuBLASLt is faster than our kernels on an H200, and by which of the algorithms that it
// names for a product, as measured (`pestle tune`); where nothing was measured, by its first.
#pragma once

#include "ops/gemm/select/gemm_key.h"

namespace pestle::ops {

// Whether it is where no choice was tuned. `one_scale`: 8-bit floats under scales of tensors.
bool library_gains(const GemmKey& key, bool one_scale);
// `version`: cuBLASLt's; `multiprocessors`: the GPU's.
int measured_algorithm(const GemmKey& key, int version, int multiprocessors);

}  // namespace pestle::ops
