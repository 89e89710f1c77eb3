// Hopper's product of two matrices of bf16 or of f16, each along k or across it: what ops start
// that multiply such matrices. Its kernels are compiled once (matmul_dense.cu).
#pragma once

#include "ops/common/matmul_launch.cuh"

namespace pestle::ops {

// `job` comes with its epilogue filled.
Status start_dense_product(const Call& call, const char* name, const Operands& o,
                           const HopperJob& job);

}  // namespace pestle::ops
