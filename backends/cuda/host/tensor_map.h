// Descriptions of tensors for Hopper's copy engine. For .cu files.
#pragma once

#include <cuda.h>

#include "core/status.h"

namespace pestle::cuda {

// A tensor of three dimensions, innermost first, whose innermost elements are neighbours, and the
// box of it that one copy moves. Reads beyond the tensor give zeros, writes there are dropped.
struct BoxedTensor {
  const void* data = nullptr;
  int element_bytes = 0;         // 1, 2 or 4
  int64_t size[3] = {};          // elements
  int64_t stride_bytes[2] = {};  // of dimensions 1 and 2; multiples of 16
  int box[2] = {};               // elements of dimensions 0 and 1; one of dimension 2
  int swizzle = 128;  // bytes of a row whose 16-byte pieces are permuted: 128, 64, 32; 0: none
};

// Why the copy engine does not take the tensor; empty: it does.
const char* refuse_boxes(const BoxedTensor& t);
Status make_tensor_map(const BoxedTensor& t, CUtensorMap* map);

}  // namespace pestle::cuda
