// Copies from global to shared memory that a thread starts and waits for later (sm_80 and later).
// A thread that reads only what it copied itself needs no barrier.
#pragma once

#include <cstdint>

namespace pestle::cuda {

#ifdef __CUDACC__
// 16 aligned bytes, past the L1.
__device__ inline void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
// The first `bytes` of 16 aligned bytes, and zeros behind them; reads nothing for 0.
__device__ inline void copy_async(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// The same, where the rest of its 128 aligned bytes is read soon: the L2 fetches all of them.
__device__ inline void copy_async_of_line(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
// The same of 4 aligned bytes, through the L1.
__device__ inline void copy_word_async(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Copies since the last commit are one group.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `pending` of the groups are under way: a constant once inlined.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ inline void wait_for_copies(int pending) {
  switch (pending) {
    case 0: return wait_for_copies<0>();
    case 1: return wait_for_copies<1>();
    case 2: return wait_for_copies<2>();
    default: return wait_for_copies<3>();
  }
}
// Until all are there, of a group or not.
__device__ inline void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Counts as one arrival at an mbarrier in shared memory, once this thread's copies so far are there.
__device__ inline void arrive_behind_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
#endif

}  // namespace pestle::cuda
