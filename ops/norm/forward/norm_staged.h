// Norms of rows in shared memory (norm_staged.cu), for norm_rows.cu.
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops::norm_device {

struct NormJob;

Status start_staged_norm(const Call& call, const char* name, NormJob& job, const NormRows& n);

}  // namespace pestle::ops::norm_device
