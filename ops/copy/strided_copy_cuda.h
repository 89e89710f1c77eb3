// Copies elements of 1, 2, 4 or 8 bytes between tensors of any strides on a GPU.
#pragma once

#include <string>

#include "core/op.h"
#include "ops/copy/copy_plan.h"

namespace pestle::ops {

// Why the kernels that move 16 bytes at a time refuse the copy, or empty. They take tensors that
// lie the same way but for gaps, and those in which another dimension is the dense one.
std::string refuse_fast_copy(const CopyPlan& plan);
Status fast_copy(const Call& call, const char* name, const CopyPlan& plan);

// A fast copy of 4-byte elements that lie in another order in out (plan.crossing() >= 0), each
// exclusive-or'd with `flip`.
Status fast_flipped_copy(const Call& call, const char* name, const CopyPlan& plan, uint32_t flip);

// Any strides and byte offsets.
Status any_copy(const Call& call, const char* name, const CopyPlan& plan);

}  // namespace pestle::ops
