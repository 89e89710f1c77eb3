// Threads that share a row: 4 to 32 neighbouring lanes of a warp, a block, or the blocks of a
// cluster; each holds a few units of 8 elements in registers. Joins of one number over a thread
// group have a fixed order, so results do not depend on timing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/tensor/elements.cuh"

namespace pestle::cuda {

inline constexpr int kGroupUnits = 4;          // of kernels that hold one tensor
inline constexpr int kMostGroupThreads = 512;  // of a block, at most
inline constexpr int kMostGroupBlocks = 16;
inline constexpr int kGroupWalk = 4;  // rows a thread group walks over where there are many

// How rows are covered; made on the host.
struct ThreadGroupShape {
  int64_t rows = 0;
  int units = 0;   // of 8 elements, in a row
  int lanes = 32;  // of a block that share a row: 4, 8, 16, 32, or all its threads
  int threads = 128;
  int cluster = 1;     // blocks that share a row
  bool whole = false;  // every thread's every unit exists
  int walk = 1;        // rows that a thread group takes, one after another (row_ring.cuh)

  // For rows that at most `most_blocks` blocks can hold, kUnits units a thread.
  static ThreadGroupShape over(int64_t row_count, int64_t row_units, int most_blocks,
                               int units_of_thread, int most_threads) {
    ThreadGroupShape s;
    s.rows = row_count;
    s.units = static_cast<int>(row_units);
    if (row_units <= 32 * units_of_thread) {
      s.lanes = 4;
      while (s.lanes * units_of_thread < row_units) s.lanes *= 2;
    } else {
      const int64_t block_units = int64_t{units_of_thread} * most_threads;
      while (row_units > s.cluster * block_units && s.cluster < most_blocks) s.cluster *= 2;
      const int64_t each = int64_t{s.cluster} * units_of_thread;
      s.threads = s.lanes = static_cast<int>(((row_units + each - 1) / each + 31) / 32 * 32);
    }
    s.whole = row_units == int64_t{s.lanes} * s.cluster * units_of_thread;
    return s;
  }
  // The same, a block or more for a thread group: what it keeps from row to row is its own.
  static ThreadGroupShape looping(int64_t row_units, int most_blocks, int units_of_thread) {
    ThreadGroupShape s = over(1, row_units, most_blocks, units_of_thread, kMostGroupThreads);
    if (s.lanes > 32) return s;
    s.threads = s.lanes = 32;
    s.whole = row_units == int64_t{32} * units_of_thread;
    return s;
  }
  int rows_of_block() const { return threads / lanes; }
  int64_t blocks() const {
    const int64_t each = int64_t{rows_of_block()} * walk;
    return (rows + each - 1) / each * cluster;
  }
  // Rows for each thread group of a walk, where `resident` blocks run at a time: one wave of blocks
  // that are as long as one another while that gives few rows to each, else several waves, since
  // blocks that end early make room.
  void choose_walk(int64_t resident) {
    const int64_t thread_groups = std::max<int64_t>(resident / cluster * rows_of_block(), 1);
    const int64_t each = (rows + thread_groups - 1) / thread_groups;
    walk = static_cast<int>(each <= 2 * kGroupWalk ? std::max<int64_t>(each, 1) : kGroupWalk);
  }
};

#ifdef __CUDACC__
// Each number of a join needs a slot of its own; a slot may be used again after another join.
template <int kSlots>
struct ReductionParts {
  uint32_t warps[kSlots][kMostGroupThreads / 32];
  uint32_t blocks[kSlots][kMostGroupBlocks];
};
// The same for ThreadGroup::begin(): blocks of a cluster send one another their numbers, which
// arrive at a barrier of the receiver. A cluster's own barrier would wait for all stores to global
// memory.
template <int kSlots>
struct ReductionSlots {
  static constexpr int kCount = kSlots;
  uint32_t warps[kSlots][kMostGroupThreads / 32];
  uint32_t blocks[kSlots][kMostGroupBlocks];
  uint64_t arrived[kSlots];
};

__device__ inline uint32_t shared_place(const void* own) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(own));
}
__device__ inline void store_word(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ inline uint32_t load_word(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
// Sends v to where `own` lies in block `rank`; its arrival counts at that block's `barrier`.
__device__ inline void send_to_rank(const uint32_t* own, const uint64_t* barrier, unsigned rank,
                                    uint32_t v) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 to, at;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 at, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %3, [at];\n}" ::"r"(
          shared_place(own)),
      "r"(shared_place(barrier)), "r"(rank), "r"(v)
      : "memory");
#endif
}
__device__ inline void init_arrivals(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_place(barrier)) : "memory");
#endif
}
// By one thread, once a phase: so many bytes are to arrive.
__device__ inline void expect_arrivals(const uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_place(barrier)),
      "r"(bytes)
      : "memory");
#endif
}
__device__ inline void wait_arrivals(const uint64_t* barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}"
        : "=r"(done)
        : "r"(shared_place(barrier)), "r"(parity)
        : "memory");
  }
#endif
}

// One thread's place. Rows are fewer than 2^31.
struct ThreadGroup {
  int row;      // clamped to the last
  bool inside;  // there is such a row
  int first;    // the thread's first unit; the others are `step` further each
  int step;
  int units;
  int lanes;
  int cluster;
  unsigned rank;
  bool whole;
  int in_block = 0;             // which of the block's thread groups
  int of_block = 1;             // its thread groups
  int rows;                     // of all thread groups
  int next;                     // row of the block's first thread group
  int end;                      // where the block's walk ends
  mutable uint32_t phases = 0;  // of a join's barriers, a bit a slot
  uint32_t joined = 0;          // where ReductionSlots lies in shared memory

  __device__ explicit ThreadGroup(const ThreadGroupShape& s)
      : units(s.units),
        lanes(s.lanes),
        cluster(s.cluster),
        whole(s.whole),
        rows(static_cast<int>(s.rows)) {
    if (lanes <= 32) {
      in_block = threadIdx.x / lanes;
      of_block = blockDim.x / lanes;
      next = blockIdx.x * (s.walk * of_block);
      first = threadIdx.x - in_block * lanes;
      step = lanes;
      rank = 0;
    } else {
      next = (cluster == 1 ? blockIdx.x : blockIdx.x / cluster) * s.walk;
      rank = cluster == 1 ? 0 : blockIdx.x % cluster;
      first = static_cast<int>(rank) * lanes + threadIdx.x;
      step = lanes * cluster;
    }
    // The last block's walk may end beyond 2^31.
    end = static_cast<int>(
        min(static_cast<unsigned>(rows), static_cast<unsigned>(next) + s.walk * of_block));
    place();
    // Other blocks' shared memory may be written to once they have begun.
    if (cluster > 1) cluster_arrive();
  }
  // Teams of whole warps that take one row each (staged_rows.cuh), in few instructions: a warp, or
  // a block, or 2^cluster_shift blocks.
  __device__ ThreadGroup(const ThreadGroupShape& s, int cluster_shift)
      : units(s.units),
        lanes(s.lanes),
        cluster(s.cluster),
        whole(s.whole),
        rows(static_cast<int>(s.rows)) {
    rank = blockIdx.x & (cluster - 1);
    first = static_cast<int>(rank) * lanes + threadIdx.x;
    step = lanes << cluster_shift;
    next = blockIdx.x >> cluster_shift;
    if (lanes == 32) {
      in_block = threadIdx.x / 32;
      of_block = blockDim.x / 32;
      next *= of_block;
      first = threadIdx.x % 32;
    }
    end = next + of_block;
    place();
  }
  // The row that follows by `steps` in a walk, clamped to the last.
  __device__ int row_after(int steps) const {
    return min(next + steps * of_block + in_block, rows - 1);
  }
  // Is that one of any of the block's thread groups? The same in all the block's threads.
  __device__ bool walks_on(int steps) const { return next + steps * of_block < end; }
  __device__ void go_on() {
    next += of_block;
    place();
  }
  __device__ void place() {
    inside = next + in_block < rows;
    row = row_after(0);
  }
  __device__ int unit(int i) const { return first + i * step; }
  __device__ bool has(int i) const { return whole || unit(i) < units; }
  // A unit that exists: loads need no branch.
  __device__ int near_unit(int i) const { return min(unit(i), units - 1); }
  __device__ bool leads() const { return rank == 0 && first == 0; }

  // Once, before the first join.
  __device__ void begin_joins() const {
    if (cluster > 1) cluster_wait();
  }
  // The same for joins through barriers: by all threads.
  template <int kSlots>
  __device__ void begin(ReductionSlots<kSlots>& joins) {
    joined = shared_place(joins.warps);
    if (cluster == 1) return;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kSlots; ++i) init_arrivals(&joins.arrived[i]);
    }
    cluster_wait();  // all have begun
    cluster_arrive();
    cluster_wait();  // and have made their barriers
  }
  // The same in two halves, with time for loads between them; instead of what the constructor
  // above lets others know.
  template <int kSlots>
  __device__ void announce(ReductionSlots<kSlots>& joins) {
    joined = shared_place(joins.warps);
    if (cluster == 1) return;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (int i = 0; i < kSlots; ++i) init_arrivals(&joins.arrived[i]);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }
  __device__ void await_others() const {
    if (cluster > 1) cluster_wait();
  }
  // The join of all threads' v in a slot; `none` changes nothing.
  template <int kSlots, class Join>
  __device__ uint32_t join(ReductionSlots<kSlots>& joins, int slot, uint32_t v, uint32_t none,
                           Join f) const {
    if (lanes < 32) {
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
        v = f(v, __shfl_xor_sync(~0u, v, distance));
      }
      return v;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      v = f(v, __shfl_xor_sync(~0u, v, distance));
    }
    if (lanes == 32) return v;
    const int lane = threadIdx.x % 16;
    const uint32_t warps = joined + slot * sizeof(joins.warps[0]);
    if (threadIdx.x % 32 == 0) store_word(warps + threadIdx.x / 32 * 4, v);
    __syncthreads();
    const int count = lanes / 32;
    v = load_word(warps + min(lane, count - 1) * 4);
    v = over_16(lane < count ? v : none, f);
    return cluster == 1 ? v : join_blocks(joins, slot, v, none, f);
  }
  template <int kSlots>
  __device__ float sum(ReductionSlots<kSlots>& joins, int slot, float v) const {
    return __uint_as_float(join(joins, slot, __float_as_uint(v), 0u, [](uint32_t a, uint32_t b) {
      return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
    }));
  }
  template <int kSlots>
  __device__ uint32_t largest(ReductionSlots<kSlots>& joins, int slot, uint32_t v) const {
    return join(joins, slot, v, 0u, [](uint32_t a, uint32_t b) { return max(a, b); });
  }
  // The joins of all threads' v; `none` changes nothing. Slots slot to slot + kCount - 1.
  template <int kCount, int kSlots, class Join>
  __device__ void join(ReductionParts<kSlots>& parts, int slot, uint32_t (&v)[kCount],
                       uint32_t none, Join f) const {
    for (int distance = min(lanes, 32) / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) v[n] = f(v[n], __shfl_xor_sync(~0u, v[n], distance));
    }
    if (lanes <= 32) return;
    const int lane = threadIdx.x % 16;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if (threadIdx.x % 32 == 0) parts.warps[slot + n][threadIdx.x / 32] = v[n];
    }
    __syncthreads();
    const bool is_warp = lane < static_cast<int>(blockDim.x / 32);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      v[n] = over_16(is_warp ? parts.warps[slot + n][lane] : none, f);
      if (cluster > 1 && static_cast<int>(threadIdx.x) < cluster) {
        store_to_block(&parts.blocks[slot + n][rank], threadIdx.x, v[n]);
      }
    }
    if (cluster == 1) return;
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      v[n] = over_16(lane < cluster ? parts.blocks[slot + n][lane] : none, f);
    }
  }
  template <int kCount, int kSlots>
  __device__ void sums(ReductionParts<kSlots>& parts, int slot, float (&v)[kCount]) const {
    uint32_t bits[kCount];
#pragma unroll
    for (int n = 0; n < kCount; ++n) bits[n] = __float_as_uint(v[n]);
    join(parts, slot, bits, 0u, [](uint32_t a, uint32_t b) {
      return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
    });
#pragma unroll
    for (int n = 0; n < kCount; ++n) v[n] = __uint_as_float(bits[n]);
  }
  template <int kSlots>
  __device__ float sum(ReductionParts<kSlots>& parts, int slot, float v) const {
    float one[1] = {v};
    sums(parts, slot, one);
    return one[0];
  }
  template <int kSlots>
  __device__ uint32_t largest(ReductionParts<kSlots>& parts, int slot, uint32_t v) const {
    uint32_t one[1] = {v};
    join(parts, slot, one, 0u, [](uint32_t a, uint32_t b) { return max(a, b); });
    return one[0];
  }

 private:
  // Of a cluster's blocks.
  template <int kSlots, class Join>
  __device__ uint32_t join_blocks(ReductionSlots<kSlots>& joins, int slot, uint32_t v,
                                  uint32_t none, Join f) const {
    if (threadIdx.x == 0) expect_arrivals(&joins.arrived[slot], cluster * 4);
    if (static_cast<int>(threadIdx.x) < cluster) {
      send_to_rank(&joins.blocks[slot][rank], &joins.arrived[slot], threadIdx.x, v);
    }
    wait_arrivals(&joins.arrived[slot], phases >> slot & 1);
    phases ^= 1u << slot;
    const int lane = threadIdx.x % 16;
    return over_16(lane < cluster ? joins.blocks[slot][lane] : none, f);
  }
  template <class Join>
  __device__ static uint32_t over_16(uint32_t v, Join f) {
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
      v = f(v, __shfl_xor_sync(~0u, v, distance));
    }
    return v;
  }
};
#endif

}  // namespace pestle::cuda
