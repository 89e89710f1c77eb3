// qkv_project of few rows in one launch, on CUDA.
#pragma once

#include <string>

#include "core/op.h"

namespace pestle::ops::qkv_project {

// Weights of codes, by ops/gemm/gemv/gemv_weight_mma.cuh.
std::string refuse_gemv_of_codes(const Call& call, const Machine& machine);
Status run_gemv_of_codes(const Call& call);

// The same of 17 to 64 rows of x, by ops/gemm/weight_only/many_rows.cuh.
std::string refuse_many_rows_of_codes(const Call& call, const Machine& machine);
Status run_many_rows_of_codes(const Call& call);

// Weights of floats, by ops/gemm/gemv/gemv_wgmma.cuh.
std::string refuse_gemv_of_floats(const Call& call, const Machine& machine);
Status run_gemv_of_floats(const Call& call);

}  // namespace pestle::ops::qkv_project
