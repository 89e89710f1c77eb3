// Norms of short rows, several in a warp's 512 bytes, for norm_rows.cu.
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops::norm_device {

// taken: it has started one.
Status start_short_norm(const Call& call, const char* name, const NormRows& n, bool& taken);

}  // namespace pestle::ops::norm_device
