#include <cuda_runtime_api.h>

#include <atomic>
#include <string>

#include "backends/cuda/host/device.h"

namespace pestle::cuda {

Status from_cuda(int error, const char* call) {
  const auto code = static_cast<cudaError_t>(error);
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();
  std::string message = std::string("CUDA: ") + call + " failed with " + cudaGetErrorName(code) +
                        " (" + cudaGetErrorString(code) + ")";
  if (code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice) {
    message += "; this build needs an NVIDIA GPU and a driver of version 580 or later";
  }
  const bool memory = code == cudaErrorMemoryAllocation;
  return {memory ? Code::kOutOfMemory : Code::kDeviceError, std::move(message)};
}

namespace {

// Asked for once a device; `otherwise` where it can't be had.
template <cudaDeviceAttr kAttribute>
int remembered(int device, int otherwise) {
  constexpr int kRemembered = 64;
  static std::atomic<int> values[kRemembered];
  const bool fits = device >= 0 && device < kRemembered;
  int value = fits ? values[device].load(std::memory_order_relaxed) : 0;
  if (value > 0) return value;
  if (cudaDeviceGetAttribute(&value, kAttribute, device) != cudaSuccess) {
    cudaGetLastError();
    return otherwise;
  }
  if (fits) values[device].store(value, std::memory_order_relaxed);
  return value;
}

}  // namespace

int multiprocessors(int device) { return remembered<cudaDevAttrMultiProcessorCount>(device, 1); }

int most_shared_bytes(int device) {
  return remembered<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device, 48 << 10);
}

Result<int> device_count() {
  int count = 0;
  PESTLE_CUDA_TRY(cudaGetDeviceCount(&count));
  return count;
}

}  // namespace pestle::cuda
