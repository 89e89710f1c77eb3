// Register-resident norms: rows as they lie in memory, a row a warp, a CTA or a cluster, for
// norm_rows.cu.
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops::norm_device {

// taken: it has started one.
Status start_register_norm(const Call& call, const char* name, const NormRows& n, bool& taken);

}  // namespace pestle::ops::norm_device
