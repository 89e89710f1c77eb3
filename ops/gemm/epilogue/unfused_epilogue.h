// Unfused epilogues: the GEMM alone, in f32 in the workspace, by whichever implementation of the op
// takes it; then a second pass applies bias, activation, pairs, gate and residual.
// Extended is an epilogue with pairs, a gate or a beta, which most kernels can't fuse.
#pragma once

#include <string>

#include "core/op.h"
#include "ops/gemm/epilogue/epilogue.h"

namespace pestle::ops {

// Does the call have pairs?
bool wants_pairs(const Call& call);
// Does it have an extended epilogue?
bool wants_extended(const Call& call);
// What implementations say that know no pairs, or none of the three.
std::string refuse_pairs(const Call& call);
std::string refuse_extended(const Call& call);
// What implementations with the second pass say where there is none of it.
std::string refuse_without_pairs(const Call& call, const Machine&);
std::string refuse_without_extended(const Call& call, const Machine&);

// Bytes on the CPU for linear_* and scaled_mm_* : the f32 output, and what these ops need.
inline constexpr const char* kPairsWorkspace =
    "4*M*N + 512 + (min(M,128) + 4) * round_up(K,128) * 4 + 16448";

// out's place among the arguments, and that of alpha, the first of the epilogue's.
int out_place(const Call& call);
int alpha_place(const Call& call);

// The GEMM alone, into the workspace's first bytes.
Status run_gemm_alone(const Call& call, TensorView* sums);

// All of it, on the CPU and on a GPU.
Status run_with_pairs(const Call& call);
Status run_unfused_on_cuda(const Call& call);

}  // namespace pestle::ops
