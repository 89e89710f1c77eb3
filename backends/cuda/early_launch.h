// A kernel that may begin while the previous one of its stream ends (programmatic dependent launch,
// sm_90 and later): its blocks are in place when the other's results are. For the .cu files of ops.
#pragma once

#include <atomic>

#include "backends/cuda/launch.h"

namespace pestle::cuda {

#ifdef __CUDACC__
// First thing in a kernel that is started early: until all that the previous one wrote is there.
__device__ inline void wait_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// In the kernel before: the next one may begin once all blocks have come here.
__device__ inline void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

// As launch, for a kernel that begins with wait_previous_kernel.
template <class Parameter>
Status launch_early(const Call& call, const char* name, const Grid& grid, void (*kernel)(Parameter),
                    Parameter argument) {
  if (grid.blocks == 0) return {};
  const int device = device_index(call);
  PESTLE_ON_DEVICE(device);
  // Code of older architectures has no wait: it must not be started early. Asked once a device.
  static std::atomic<uint64_t> asked{0}, waits{0};
  const uint64_t bit = uint64_t{1} << (device & 63);
  if ((asked.load(std::memory_order_acquire) & bit) == 0) {
    cudaFuncAttributes attributes;
    PESTLE_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel));
    if (attributes.binaryVersion >= 90 && attributes.ptxVersion >= 90) waits.fetch_or(bit);
    asked.fetch_or(bit, std::memory_order_release);
  }
  if ((waits.load(std::memory_order_relaxed) & bit) == 0) {
    return launch(call, name, grid, kernel, argument);
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = static_cast<cudaStream_t>(call.stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {&argument};
  return from_cuda(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments),
                   name);
}

}  // namespace pestle::cuda
