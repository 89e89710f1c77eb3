// Do views share memory? Judged by the bytes of their elements, not by the range that they span:
// interleaved views of one packed tensor do not.
#pragma once

#include "core/tensor.h"

namespace pestle {

enum class Overlap : uint8_t { kNo, kYes, kTooHard };

// Of two views that share a byte. kTooHard: strides so odd that no answer was found in thousands of
// steps; who asks must be careful.
Overlap overlap_of(const TensorView& a, const TensorView& b);
// Do two elements of one view share a byte, as with stride 0?
Overlap overlap_within(const TensorView& tensor);

}  // namespace pestle
