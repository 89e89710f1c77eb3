// Descriptions of tensors for Hopper's copy engine, of boxes that are several elements deep in the
// tensor's third dimension. For .cu files.
#pragma once

#include "backends/cuda/tensor_map.h"

namespace pestle::cuda {

// As make_tensor_map, with boxes of `depth` elements of dimension 2.
Status make_deep_map(const BoxedTensor& t, int depth, CUtensorMap* map);

}  // namespace pestle::cuda
