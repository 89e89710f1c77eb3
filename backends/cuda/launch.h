// Starting kernels: on the device of the call's tensors, on the caller's stream, errors as
// statuses. For the .cu files of ops only.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "backends/cuda/current_device.h"
#include "backends/cuda/device.h"
#include "core/op.h"

namespace pestle::cuda {

// The CUDA device that the call's tensors live on.
inline int device_index(const Call& call) {
  for (const Value& value : call.args) {
    if (value.present)
      return value.list.empty() ? value.tensor.device.index : value.list[0].device.index;
  }
  return 0;
}

struct Grid {
  int64_t blocks = 0;
  int threads = 256;
  size_t shared_bytes = 0;
};

// Starts `kernel`; nothing to do for an empty grid. `name` is what an error calls it.
template <class... Parameters, class... Arguments>
Status launch(const Call& call, const char* name, const Grid& grid, void (*kernel)(Parameters...),
              const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  if (grid.blocks == 0) return {};
  if (grid.blocks > INT_MAX)
    return unsupported(std::string(name) + ": needs a grid beyond 2^31 - 1");
  PESTLE_ON_DEVICE(device_index(call));
  return [&](Parameters... values) {
    void* pointers[] = {&values...};
    return from_cuda(cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                                      dim3(static_cast<unsigned>(grid.blocks)),
                                      dim3(static_cast<unsigned>(grid.threads)), pointers,
                                      grid.shared_bytes, static_cast<cudaStream_t>(call.stream)),
                     name);
  }(static_cast<Parameters>(arguments)...);
}

// Zeroes device memory on the call's stream.
inline Status clear(const Call& call, void* memory, int64_t bytes) {
  PESTLE_ON_DEVICE(device_index(call));
  PESTLE_CUDA_TRY(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes),
                                  static_cast<cudaStream_t>(call.stream)));
  return {};
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace pestle::cuda
