// Copies elements of 1, 2, 4 or 8 bytes between tensors of any strides on the CPU: rows where both
// sides have them, else tiles that read and write whole cache lines.
#pragma once

#include "ops/copy/copy_plan.h"

namespace pestle::ops {

// The plan's elements have one size on both sides.
void strided_copy(const CopyPlan& plan);

}  // namespace pestle::ops
