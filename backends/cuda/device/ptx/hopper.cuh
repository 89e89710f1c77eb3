// Hopper's machinery in plain functions: barriers in shared memory, the tensor copy engine (TMA),
// register budgets. Compiled to nothing below sm_90a; kernels say in refuses() what they need.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace pestle::cuda::hopper {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PESTLE_HOPPER 1
#else
#define PESTLE_HOPPER 0
#endif

#if PESTLE_HOPPER

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- barriers: a phase ends when so many threads have arrived and all announced bytes are there
// --
__device__ inline void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
// Makes initialised barriers visible to the copy engine.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives and announces bytes that the copy engine will deliver.
__device__ inline void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Acquires for the thread block alone: with .acquire.cluster each wait invalidates the L1.
__device__ inline void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- the tensor copy engine ---------------------------------------------------------------------
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Box at (column, row, batch) into shared memory; its bytes count on `barrier`.
__device__ inline void load_box(void* to, const CUtensorMap* map, uint64_t* barrier, int column,
                                int row, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(batch)
      : "memory");
}
// The box into the L2.
__device__ inline void prefetch_box(const CUtensorMap* map, int column, int row, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map),
               "r"(column), "r"(row), "r"(batch)
               : "memory");
}
__device__ inline void store_box(const CUtensorMap* map, const void* from, int column, int row,
                                 int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared_address(from)), "r"(column), "r"(row), "r"(batch)
      : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but kPending of the committed groups have read their shared memory.
template <int kPending>
__device__ inline void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Ordinary stores to shared memory, before the copy engine or the tensor cores read them.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- counts in global memory, between blocks that run at once -----------------------------------
// One more is there, behind all stores that a barrier of the block has put before it.
__device__ inline void count_up(uint32_t* count) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
__device__ inline void wait_count(const uint32_t* count, uint32_t wanted) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
  } while (seen < wanted);
}

// ---- registers and named barriers ---------------------------------------------------------------
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Barrier `id` (1 to 15) of `threads` threads of the block.
__device__ inline void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Counts as having come to that barrier, without waiting.
__device__ inline void arrive_threads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Four 8x8 matrices of 16-bit elements: lane i names row i % 8 of matrix i / 8.
__device__ inline void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

// The same, rows for columns.
__device__ inline void store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                        uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ inline void load_matrices(uint32_t from, uint32_t (&w)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from)
               : "memory");
}

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
