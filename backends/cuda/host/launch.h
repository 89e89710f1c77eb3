// Starting kernels: on the device of the call's tensors, on the caller's stream, errors as
// statuses. For the .cu files of ops only.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "backends/cuda/host/current_device.h"
#include "backends/cuda/host/device.h"
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
  int cluster = 1;  // neighbouring blocks that form a cluster; more than 1 from sm_90 on
};

// A kernel's address must be allowed dynamic shared memory beyond 48 KiB, on each device, before it
// is started with as much. All that is below does so; remembered.
Status allow_shared_bytes(const void* kernel, int device, size_t bytes);
// What a failed launch says: the call, CUDA's error, and what was asked for.
Status launch_failed(int error, const char* name, const Grid& grid, int device);
inline Status launched(int error, const char* name, const Grid& grid, int device) {
  return error == cudaSuccess ? Status() : launch_failed(error, name, grid, device);
}

// Starts blocks in clusters. More than 8 blocks are allowed to kernels that say so.
inline cudaError_t launch_clusters(const void* kernel, const Grid& grid, void** arguments,
                                   cudaStream_t stream) {
  if (grid.cluster > 8) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(grid.cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

// Starts `kernel`; nothing to do for an empty grid. `name` is what an error calls it.
template <class... Parameters, class... Arguments>
Status launch(const Call& call, const char* name, const Grid& grid, void (*kernel)(Parameters...),
              const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  if (grid.blocks == 0) return {};
  if (grid.blocks > INT_MAX)
    return unsupported(std::string(name) + ": needs a grid beyond 2^31 - 1");
  const int device = device_index(call);
  const auto* const address = reinterpret_cast<const void*>(kernel);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  PESTLE_ON_DEVICE(device);
  PESTLE_TRY(allow_shared_bytes(address, device, grid.shared_bytes));
  const cudaError_t error = [&](Parameters... values) {
    void* pointers[] = {&values...};
    if (grid.cluster > 1) return launch_clusters(address, grid, pointers, stream);
    return cudaLaunchKernel(address, dim3(static_cast<unsigned>(grid.blocks)),
                            dim3(static_cast<unsigned>(grid.threads)), pointers, grid.shared_bytes,
                            stream);
  }(static_cast<Parameters>(arguments)...);
  return launched(error, name, grid, device);
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
