// The largest magnitude of a whole tensor, as every thread block of the kernel that needs it finds
// it: from the maxima that blocks of an earlier kernel left, or, in a small tensor, from all its
// elements, which costs less than a kernel of its own.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include "backends/cuda/device/tensor/elements.cuh"
#endif

namespace pestle::cuda {

struct WholeAmax {
  const uint32_t* parts = nullptr;  // formats::abs_bits; the largest counts
  int count = 0;
  const char* x = nullptr;  // instead: all elements, in units of eight
  int units = 0;

#ifdef __CUDACC__
  __device__ bool is_known() const { return parts == nullptr && x == nullptr; }  // nothing to find
  // The same in all threads. By all of the block's, at most 1024; once a kernel.
  template <class T>
  __device__ uint32_t by_block() const {
    uint32_t largest = 0;
    if (x == nullptr) {
      for (int i = threadIdx.x; i < count; i += blockDim.x) largest = max(largest, parts[i]);
    } else {
      constexpr int kInFlight = 32 / (2 * T::kBytes);
      for (int first = threadIdx.x; first < units; first += kInFlight * blockDim.x) {
        typename T::Raw raw[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const int unit = first + i * static_cast<int>(blockDim.x);
          raw[i] = unit < units ? T::load(x + int64_t{unit} * (kUnit * T::kBytes)) : T::zero();
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) largest = max(largest, T::amax(raw[i]));
      }
    }
    __shared__ uint32_t warps[32];
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
    __syncthreads();
    const unsigned lane = threadIdx.x % 32;
    return __reduce_max_sync(0xFFFFFFFFu, lane < blockDim.x / 32 ? warps[lane] : 0u);
  }
#endif
};

}  // namespace pestle::cuda
