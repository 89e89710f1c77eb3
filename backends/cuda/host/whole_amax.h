// The largest magnitude of a whole tensor for a kernel that needs it, in fewer launches than
// tensor_amax: one, or none for a small tensor.
#pragma once

#include "backends/cuda/device/row/whole_amax.cuh"
#include "core/op.h"

namespace pestle::cuda {

inline constexpr int kAmaxParts = 1024;
inline constexpr int kAmaxWorkspace = 4 * kAmaxParts;  // bytes

// `amax` is for a kernel whose blocks call WholeAmax::by_block; `workspace` is device memory. On
// the call's stream; any strides, bf16, f16 or f32.
Status whole_amax(const Call& call, const TensorView& x, void* workspace, WholeAmax& amax);

}  // namespace pestle::cuda
