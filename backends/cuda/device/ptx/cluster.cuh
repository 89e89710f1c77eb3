// Thread block clusters (sm_90 and later): a barrier over all of a cluster's threads, and stores to
// the shared memory of its other blocks. Code for older architectures compiles to nothing and is
// never started: launches ask the device first.
#pragma once

#include <cstdint>

namespace pestle::cuda {

// Blocks of a cluster that a device takes; 1: it has no clusters.
inline int largest_cluster(int compute_capability) {
  if (compute_capability < 90) return 1;
  return compute_capability < 120 ? 16 : 8;  // beyond 8 only where a GPC has that many SMs
}

#ifdef __CUDACC__
// What was stored before arriving is seen by who has waited.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Stores to where `own`, an address of this block's shared memory, lies in block `rank`.
__device__ inline void store_to_block(float4* own, unsigned rank, float4 v) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
#endif
}
__device__ inline void store_to_block(uint32_t* own, unsigned rank, uint32_t v) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
#endif
}
#endif

}  // namespace pestle::cuda
