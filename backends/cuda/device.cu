#include <cuda_runtime_api.h>

#include <atomic>
#include <string>

#include "backends/cuda/device.h"

namespace pestle::cuda {

Status from_cuda(int error, const char* call) {
  const auto code = static_cast<cudaError_t>(error);
  if (code == cudaSuccess) return {};
  std::string message = std::string("CUDA: ") + call + " failed with " + cudaGetErrorName(code) +
                        " (" + cudaGetErrorString(code) + ")";
  if (code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice) {
    message += "; this build needs an NVIDIA GPU and a driver of version 580 or later";
  }
  const bool memory = code == cudaErrorMemoryAllocation;
  return {memory ? Code::kOutOfMemory : Code::kDeviceError, std::move(message)};
}

int multiprocessors(int device) {
  constexpr int kRemembered = 64;
  static std::atomic<int> remembered[kRemembered];
  const bool fits = device >= 0 && device < kRemembered;
  int count = fits ? remembered[device].load(std::memory_order_relaxed) : 0;
  if (count > 0) return count;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    cudaGetLastError();
    return 1;
  }
  if (fits) remembered[device].store(count, std::memory_order_relaxed);
  return count;
}

Result<int> device_count() {
  int count = 0;
  PESTLE_CUDA_TRY(cudaGetDeviceCount(&count));
  return count;
}

}  // namespace pestle::cuda
