// Norms by persistent kernels (norm_persistent.cu), for norm_rows.cu.
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops::norm_device {

// At most a factor and an addend.
bool is_simple(const NormRows& n);

// taken: it has started one.
Status start_persistent_norm(const Call& call, const char* name, const NormRows& n, bool& taken);

}  // namespace pestle::ops::norm_device
