// Norms of bf16 rows to nvfp4, a row a warp, for norm_rows.cu.
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops::norm_device {

// taken: it has started one.
Status start_warps_norm(const Call& call, const char* name, const NormRows& n, bool& taken);

}  // namespace pestle::ops::norm_device
