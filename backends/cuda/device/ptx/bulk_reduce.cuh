// Sums in global memory by the bulk copy engine, what orders them, and barriers under a condition.
// Compiled to nothing below sm_90a.
#pragma once

#include "backends/cuda/device/ptx/hopper.cuh"

namespace pestle::cuda::hopper {

#if PESTLE_HOPPER

// f32 of shared memory onto those of global memory: 16-byte aligned, multiples of 16 bytes. One of
// the stores that commit_stores() closes.
__device__ inline void add_floats(float* to, const void* from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}
// Four f32 onto those of global memory, at 16 bytes.
__device__ inline void add_four(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a),
               "f"(b), "f"(c), "f"(d)
               : "memory");
}
// Until all but kPending of the committed groups are done: what they wrote is there for this thread.
template <int kPending>
__device__ inline void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
// fence_async_proxy of all memory, and the other way round.
__device__ inline void fence_async_proxy_of_all() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// By a thread that is `told` to, without a branch.
__device__ inline void arrive_if(uint64_t* barrier, bool told) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(shared_address(barrier)),
      "r"(static_cast<int>(told))
      : "memory");
}
// Of the threads that come to the named barrier, does one say yes? Waits for all of them.
__device__ inline bool any_thread(int id, int threads, bool yes) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(yes)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
