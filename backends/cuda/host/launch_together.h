// A kernel all of whose blocks run at the same time (cooperative launch): they may wait for one
// another. What they tell one another are words in global memory that are never 0, in places that
// were cleared before the launch: a word is there as a whole or not at all, so that no fence is
// needed and nothing waits for stores. For the .cu files of ops.
#pragma once

#include <array>
#include <atomic>

#include "backends/cuda/host/launch.h"

namespace pestle::cuda {

#ifdef __CUDACC__
__device__ inline void tell_all(uint64_t* place, float2 v) {
  const uint64_t word = uint64_t{__float_as_uint(v.y)} << 32 | __float_as_uint(v.x);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
}
// 0: nothing was told yet.
__device__ inline uint64_t look_at(const uint64_t* place) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
  return word;
}
__device__ inline float2 told(uint64_t word) {
  return make_float2(__uint_as_float(static_cast<uint32_t>(word)),
                     __uint_as_float(static_cast<uint32_t>(word >> 32)));
}
#endif

// Blocks that a device runs at once, remembered by the caller, once a kernel.
class BlocksAtOnce {
 public:
  Result<int> of(int device, const void* kernel, int threads, size_t shared_bytes) {
    std::atomic<int>& known = known_[static_cast<size_t>(device) % known_.size()];
    if (const int blocks = known.load(std::memory_order_relaxed); blocks > 0) return blocks - 1;
    PESTLE_ON_DEVICE(device);
    int each = 0;
    PESTLE_TRY(allow_shared_bytes(kernel, device, shared_bytes));
    PESTLE_CUDA_TRY(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared_bytes));
    const int blocks = each * multiprocessors(device);
    known.store(blocks + 1, std::memory_order_relaxed);
    return blocks;
  }

 private:
  std::array<std::atomic<int>, 64> known_{};
};

// As launch; a grid that does not run at once is an error.
template <class... Parameters, class... Arguments>
Status launch_together(const Call& call, const char* name, const Grid& grid,
                       void (*kernel)(Parameters...), const Arguments&... arguments) {
  const int device = device_index(call);
  const auto* const address = reinterpret_cast<const void*>(kernel);
  PESTLE_ON_DEVICE(device);
  PESTLE_TRY(allow_shared_bytes(address, device, grid.shared_bytes));
  const cudaError_t error = [&](Parameters... values) {
    void* pointers[] = {&values...};
    return cudaLaunchCooperativeKernel(address, dim3(static_cast<unsigned>(grid.blocks)),
                                       dim3(static_cast<unsigned>(grid.threads)), pointers,
                                       grid.shared_bytes, static_cast<cudaStream_t>(call.stream));
  }(static_cast<Parameters>(arguments)...);
  return launched(error, name, grid, device);
}

}  // namespace pestle::cuda
