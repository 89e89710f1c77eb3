// How many clusters a device runs at once: a cluster lies within a GPC, whose multiprocessors its size
// need not divide. For the .cu files of ops.
#pragma once

#include <array>
#include <atomic>

#include "backends/cuda/host/launch.h"

namespace pestle::cuda {

// Of kernels each block of which has a multiprocessor to itself; of such, only grid.cluster (8 at most)
// matters. Asked once a device and size.
inline Result<int> clusters_at_once(int device, const void* kernel, const Grid& grid) {
  static std::array<std::array<std::atomic<int>, 9>, 64> all{};
  const auto size = static_cast<size_t>(grid.cluster);
  std::atomic<int>& known = all[static_cast<size_t>(device) % all.size()][size];
  if (const int clusters = known.load(std::memory_order_relaxed); clusters > 0) return clusters - 1;
  PESTLE_ON_DEVICE(device);
  PESTLE_TRY(allow_shared_bytes(kernel, device, grid.shared_bytes));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(grid.cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  PESTLE_CUDA_TRY(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  known.store(clusters + 1, std::memory_order_relaxed);
  return clusters;
}

}  // namespace pestle::cuda
