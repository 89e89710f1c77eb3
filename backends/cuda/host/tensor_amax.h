// The largest magnitude of a tensor on the device.
#pragma once

#include "core/op.h"

namespace pestle::cuda {

// Leaves formats::abs_bits of the largest element of x in `amax` (device memory), NaN above all;
// 0 for an empty tensor. On the call's stream; any strides, bf16, f16 or f32.
Status tensor_amax(const Call& call, const TensorView& x, uint32_t* amax);

// Bytes from one row of the last dimension to the next if that is the same for all rows and their
// elements are neighbours; -1 else.
int64_t row_distance(const TensorView& t);

// Why a kernel that moves 16 bytes at a time does not take this tensor; empty: it does.
std::string refuse_unaligned(const char* name, const TensorView& t, int64_t alignment = 16);

// The same of block scales, which fast kernels address by rows of bytes.
std::string refuse_scale_strides(const char* name, const TensorView& t, bool swizzled);

}  // namespace pestle::cuda
