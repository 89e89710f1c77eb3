// How much shared memory a kernel may have.
#pragma once

#include "backends/cuda/launch.h"

namespace pestle::cuda {

// Beyond 48 KiB a kernel has to be allowed its dynamic shared memory, before it is started.
template <class... Parameters>
Status allow_shared(const Call& call, void (*kernel)(Parameters...), int bytes) {
  if (bytes <= 48 << 10) return {};
  PESTLE_ON_DEVICE(device_index(call));
  PESTLE_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  return {};
}

}  // namespace pestle::cuda
