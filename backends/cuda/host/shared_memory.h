// How much shared memory a kernel may have.
#pragma once

#include <algorithm>

#include "backends/cuda/host/launch.h"

namespace pestle::cuda {

// Beyond 48 KiB a kernel has to be allowed its dynamic shared memory, before it is started. What it
// declares itself, 8 KiB at most, counts towards these 48, but not towards what is allowed.
template <class... Parameters>
Status allow_shared(const Call& call, void (*kernel)(Parameters...), int bytes) {
  if (bytes <= 40 << 10) return {};
  PESTLE_ON_DEVICE(device_index(call));
  PESTLE_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       std::max(bytes, 49 << 10)));
  return {};
}

}  // namespace pestle::cuda
