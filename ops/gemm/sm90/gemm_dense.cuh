// The GEMM of two matrices of bf16 or of f16 on sm_90, each along k or across it: what ops start
// that multiply such matrices. Its kernels are compiled once (gemm_dense.cu, gemm_overlapped.cu,
// gemm_factors.cu).
#pragma once

#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {

// `job` comes with its epilogue filled; `split_k`: in the call's workspace (PESTLE_SPLIT_K_BYTES).
Status start_dense_gemm(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                        bool split_k = false);

// The same of operands along k, with the epilogue's factors of rows and columns.
Status start_dense_gemm_with_factors(const Call& call, const char* name, const Operands& o,
                                     const GemmJob& job);

// Columns of the tile where the epilogue is overlapped with the next tile (gemm_overlapped.cu),
// else 0: wide tiles, more than one wave of them, with an activation or a residual.
int overlapped_columns(const Call& call, const Operands& o, const hopper::EpilogueArguments& e);
Status start_overlapped_gemm(const Call& call, const char* name, const Operands& o,
                             const GemmJob& job, int columns);

}  // namespace pestle::ops
