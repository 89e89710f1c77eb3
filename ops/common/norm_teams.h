// Norms of rows that no cluster shares and no block holds, by teams of blocks (norm_teams.cu).
#pragma once

#include "ops/common/norm_rows.h"

namespace pestle::ops {

// A word for each block of each row; f32's parts are the shorter ones.
inline constexpr const char* kNormTeamsWorkspace = "8 * (numel(x) / K) * cdiv(K, 4096)";

Status norm_teams_cuda(const Call& call, const char* name, const NormRows& n);
std::string refuse_norm_teams_cuda(const NormRows& n, const Machine& machine);

}  // namespace pestle::ops
