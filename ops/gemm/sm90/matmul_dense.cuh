// Hopper's product of two matrices of bf16 or of f16, each along k or across it: what ops start
// that multiply such matrices. Its kernels are compiled once (matmul_dense.cu, matmul_held.cu).
#pragma once

#include "ops/gemm/sm90/matmul_launch.cuh"

namespace pestle::ops {

// `job` comes with its epilogue filled; `slices`: of k, in the call's workspace
// (PESTLE_SLICE_BYTES).
Status start_dense_product(const Call& call, const char* name, const Operands& o,
                           const HopperJob& job, bool slices = false);

// Columns of the tile where results are made beside the next tile's products (matmul_held.cu), else
// 0: wide tiles, more than one round of them, with an activation or a residual.
int held_columns(const Call& call, const Operands& o, const hopper::EpilogueArguments& e);
Status start_held_product(const Call& call, const char* name, const Operands& o,
                          const HopperJob& job, int columns);

}  // namespace pestle::ops
