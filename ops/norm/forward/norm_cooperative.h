// Norms of rows that no cluster shares and no CTA holds, by groups of CTAs in a cooperative launch
// (norm_cooperative.cu).
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops {

// A word for each block of each row, of which there are at most twice as many as a row of f32,
// whose parts are the shorter ones, needs.
inline constexpr const char* kNormCooperativeWorkspace = "16 * (numel(x) / K) * cdiv(K, 4096)";

Status norm_cooperative_cuda(const Call& call, const char* name, const NormRows& n);
std::string refuse_norm_cooperative_cuda(const NormRows& n, const Machine& machine);

}  // namespace pestle::ops
