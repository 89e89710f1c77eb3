// What the blocks of a cluster tell one another as it becomes known (sm_90 and later): values are
// stored into another block's shared memory, where a barrier counts their bytes. Unlike a cluster
// barrier, waiting for them waits for no store to memory.
#pragma once

#include <cstdint>

namespace pestle::cuda {

#ifdef __CUDACC__
__device__ inline uint32_t shared_at(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// By one thread, before the cluster's first barrier.
__device__ inline void begin_barrier(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Lets the cluster's others know that this block has begun, and no more: cluster_arrive() would
// wait for all of the thread's stores.
__device__ inline void cluster_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void expect_bytes(uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(barrier)),
               "r"(bytes)
               : "memory");
#endif
}
__device__ inline void wait_bytes(uint64_t* barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over:\n}" ::"r"(shared_at(barrier)),
      "r"(phase)
      : "memory");
#endif
}
// The same for what only this block's threads read: without the cluster's scope, which empties the
// L1, waiting is cheap.
__device__ inline void wait_bytes_here(uint64_t* barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over:\n}" ::"r"(shared_at(barrier)),
      "r"(phase)
      : "memory");
#endif
}
// Where `own`, an address of this block's shared memory, lies in block `rank`.
__device__ inline uint32_t shared_of_block(const void* own, unsigned rank) {
  uint32_t at = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_at(own)), "r"(rank));
#endif
  return at;
}
// Arrives at block `rank`'s copy of `barrier`, behind all that a barrier of the warp or the block has put
// before it.
__device__ inline void arrive_at_block(uint64_t* barrier, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   shared_of_block(barrier, rank))
               : "memory");
#endif
}
// To block `rank`'s copy of `own`, counted by its copy of `barrier`.
__device__ inline void tell_block(float* own, uint64_t* barrier, unsigned rank, float v) {
#if __CUDA_ARCH__ >= 900
  const uint32_t to = shared_of_block(own, rank), counted = shared_of_block(barrier, rank);
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
      "f"(v), "r"(counted)
      : "memory");
#endif
}
__device__ inline void tell_block(uint32_t* own, uint64_t* barrier, unsigned rank, uint32_t v) {
  tell_block(reinterpret_cast<float*>(own), barrier, rank, __uint_as_float(v));
}
__device__ inline void tell_block(float2* own, uint64_t* barrier, unsigned rank, const float2& v) {
#if __CUDA_ARCH__ >= 900
  const uint32_t to = shared_of_block(own, rank), counted = shared_of_block(barrier, rank);
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(to),
      "f"(v.x), "f"(v.y), "r"(counted)
      : "memory");
#endif
}
__device__ inline void tell_block(float4* own, uint64_t* barrier, unsigned rank, const float4& v) {
#if __CUDA_ARCH__ >= 900
  const uint32_t to = shared_of_block(own, rank), counted = shared_of_block(barrier, rank);
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(counted)
      : "memory");
#endif
}
#endif

}  // namespace pestle::cuda
