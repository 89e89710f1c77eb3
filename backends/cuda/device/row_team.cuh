// Threads that share a row: 4 to 32 neighbouring lanes of a warp, a block, or the blocks of a
// cluster; each holds a few units of 8 elements in registers. Joins of one number over a team
// have a fixed order, so results do not depend on timing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/device/elements.cuh"

namespace pestle::cuda {

inline constexpr int kTeamUnits = 4;      // of kernels that hold one tensor
inline constexpr int kTeamThreads = 512;  // of a block, at most
inline constexpr int kMostBlocksOfTeam = 16;

// How rows are covered; made on the host.
struct TeamShape {
  int64_t rows = 0;
  int units = 0;   // of 8 elements, in a row
  int lanes = 32;  // of a block that share a row: 4, 8, 16, 32, or all its threads
  int threads = 128;
  int cluster = 1;     // blocks that share a row
  bool whole = false;  // every thread's every unit exists

  // For rows that at most `most_blocks` blocks can hold, kUnits units a thread.
  static TeamShape over(int64_t row_count, int64_t row_units, int most_blocks, int units_of_thread,
                        int most_threads) {
    TeamShape s;
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
  // The same, a block or more for a team: what it keeps from row to row is its own.
  static TeamShape looping(int64_t row_units, int most_blocks, int units_of_thread) {
    TeamShape s = over(1, row_units, most_blocks, units_of_thread, kTeamThreads);
    if (s.lanes > 32) return s;
    s.threads = s.lanes = 32;
    s.whole = row_units == int64_t{32} * units_of_thread;
    return s;
  }
  int rows_of_block() const { return threads / lanes; }
  int64_t blocks() const { return (rows + rows_of_block() - 1) / rows_of_block() * cluster; }
};

#ifdef __CUDACC__
// Stores to where `own`, an address of this block's shared memory, lies in block `rank`.
__device__ inline void store_to_rank(uint32_t* own, unsigned rank, uint32_t v) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
#endif
}

// Each number of a join needs a slot of its own; a slot may be used again after another join.
template <int kSlots>
struct TeamParts {
  uint32_t warps[kSlots][kTeamThreads / 32];
  uint32_t blocks[kSlots][kMostBlocksOfTeam];
};

// One thread's place.
struct Team {
  int64_t row;  // clamped to the last
  bool inside;  // there is such a row
  int first;    // the thread's first unit; the others are `step` further each
  int step;
  int units;
  int lanes;
  int cluster;
  unsigned rank;
  bool whole;

  __device__ explicit Team(const TeamShape& s)
      : units(s.units), lanes(s.lanes), cluster(s.cluster), whole(s.whole) {
    if (lanes <= 32) {
      const int in_block = threadIdx.x / lanes;
      row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / lanes) + in_block;
      first = threadIdx.x - in_block * lanes;
      step = lanes;
      rank = 0;
    } else {
      row = cluster == 1 ? blockIdx.x : blockIdx.x / cluster;
      rank = cluster == 1 ? 0 : blockIdx.x % cluster;
      first = static_cast<int>(rank) * lanes + threadIdx.x;
      step = lanes * cluster;
    }
    inside = row < s.rows;
    if (!inside) row = s.rows - 1;
    // Other blocks' shared memory may be written to once they have begun.
    if (cluster > 1) cluster_arrive();
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
  // The joins of all threads' v; `none` changes nothing. Slots slot to slot + kCount - 1.
  template <int kCount, int kSlots, class Join>
  __device__ void join(TeamParts<kSlots>& parts, int slot, uint32_t (&v)[kCount], uint32_t none,
                       Join f) const {
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
        store_to_rank(&parts.blocks[slot + n][rank], threadIdx.x, v[n]);
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
  __device__ void sums(TeamParts<kSlots>& parts, int slot, float (&v)[kCount]) const {
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
  __device__ float sum(TeamParts<kSlots>& parts, int slot, float v) const {
    float one[1] = {v};
    sums(parts, slot, one);
    return one[0];
  }
  template <int kSlots>
  __device__ uint32_t largest(TeamParts<kSlots>& parts, int slot, uint32_t v) const {
    uint32_t one[1] = {v};
    join(parts, slot, one, 0u, [](uint32_t a, uint32_t b) { return max(a, b); });
    return one[0];
  }

 private:
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
