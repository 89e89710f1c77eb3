// When to store past the caches.
#pragma once

#include "core/tensor.h"

namespace pestle::ops {

// Streaming stores pay for a matrix that no cache would keep anyhow; they need whole lines.
inline bool streams(const TensorView& out) {
  constexpr int64_t kLargestKept = int64_t{8} << 20;
  constexpr int64_t kLine = 64;
  return size_bytes(out) > kLargestKept && out.strides[0] * dtype_bytes(out.dtype) % kLine == 0 &&
         reinterpret_cast<uintptr_t>(out.data) % kLine == 0;
}

}  // namespace pestle::ops
