// Norms of rows that a block goes through again (norm_long.cu), for norm_rows.cu.
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops::norm_device {

// Without codes, and without a sum before the norm.
Status start_long_norm(const Call& call, const char* name, const NormRows& n);

}  // namespace pestle::ops::norm_device
