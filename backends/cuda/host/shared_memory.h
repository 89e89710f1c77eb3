// How much shared memory a kernel may have.
#pragma once

#include <algorithm>

#include "backends/cuda/host/launch.h"

namespace pestle::cuda {

// For who asks how many blocks run at once, before a launch has seen to it.
template <class... Parameters>
Status allow_shared(const Call& call, void (*kernel)(Parameters...), int bytes) {
  return allow_shared_bytes(reinterpret_cast<const void*>(kernel), device_index(call),
                            static_cast<size_t>(bytes));
}

}  // namespace pestle::cuda
