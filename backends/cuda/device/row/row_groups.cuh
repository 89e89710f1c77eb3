// Rows spread over groups of threads: a few lanes of a warp, whole warps, a block, or the blocks of
// a cluster, and how partial results of a row's threads are joined. A partial result is a type with
//   over_lanes(width)   the same for all of `width` neighbouring lanes, in a fixed order
//   packed() / from()   as a float4, for shared memory;  none()   what joins without effect
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/device/ptx/cluster.cuh"

namespace pestle::cuda {

inline constexpr int kRowThreads = 512;  // of a block, at most
inline constexpr int kRowChunks = 4;     // units of 8 elements a thread holds
inline constexpr int kRowBlockUnits = kRowThreads * kRowChunks;

// How threads share rows; made on the host.
struct RowGroups {
  int64_t rows = 0;
  int lanes = 32;           // threads of a block that share a row: a power of 2, or whole warps
  int rows_of_block = 1;    // lanes * rows_of_block threads
  int cluster = 1;          // blocks that share a row, neighbours in the grid
  int64_t units = 0;        // of 8 elements, of a row; the last may be partial
  int64_t block_units = 0;  // of these, what one block takes

  int threads() const { return lanes * rows_of_block; }
  int64_t blocks() const {
    return units == 0 ? 0 : (rows + rows_of_block - 1) / rows_of_block * cluster;
  }

  // So that each thread holds at most `chunks` units; cluster 0: the row is too long for that.
  static RowGroups holding(int64_t rows, int64_t units, int most_blocks, int most_threads,
                           int chunks) {
    RowGroups g;
    g.rows = rows;
    g.units = units;
    if (units <= 32 * chunks) {
      g.lanes = 1;
      while (g.lanes * chunks < units) g.lanes *= 2;
      g.rows_of_block = 128 / g.lanes;
      g.block_units = units;
      return g;
    }
    while (units > int64_t{most_threads} * chunks * g.cluster) g.cluster *= 2;
    if (g.cluster > most_blocks) g.cluster = 0;
    g.block_units = g.cluster == 0 ? 0 : (units + g.cluster - 1) / g.cluster;
    g.lanes = warps_for(g.block_units, chunks);
    g.rows_of_block = g.lanes == 64 ? 2 : 1;
    if (g.cluster > 1) g.rows_of_block = 1;
    return g;
  }
  // For rows that are read again instead of held.
  static RowGroups looping(int64_t rows, int64_t units, int most_blocks) {
    RowGroups g;
    g.rows = rows;
    g.units = units;
    while (g.cluster < most_blocks && units > 2 * int64_t{kRowBlockUnits} * g.cluster) {
      g.cluster *= 2;
    }
    g.block_units = (units + g.cluster - 1) / g.cluster;
    g.lanes = warps_for(g.block_units);
    return g;
  }
  // Blocks take slices of rows and know nothing of one another: no clusters are launched.
  static RowGroups sliced(int64_t rows, int64_t units, int threads) {
    RowGroups g;
    g.rows = rows;
    g.units = units;
    g.lanes = threads;
    g.block_units = int64_t{kRowChunks} * threads;
    g.cluster = static_cast<int>((units + g.block_units - 1) / g.block_units);
    return g;
  }
  // A block a row, which it goes through in steps.
  static RowGroups block_a_row(int64_t rows, int64_t units, int most_threads) {
    RowGroups g;
    g.rows = rows;
    g.units = g.block_units = units;
    g.lanes = std::min(warps_for(units), most_threads);
    return g;
  }
  // A thread a row: for rows whose elements lie apart while neighbouring rows are neighbours.
  static RowGroups one_thread(int64_t rows, int64_t units) {
    RowGroups g;
    g.rows = rows;
    g.units = g.block_units = units;
    g.lanes = 1;
    g.rows_of_block = 128;
    return g;
  }

 private:
  static int warps_for(int64_t units, int chunks = kRowChunks) {
    const int64_t threads = ((units + chunks - 1) / chunks + 31) / 32 * 32;
    return static_cast<int>(threads < kRowThreads ? threads : kRowThreads);
  }
};

#ifdef __CUDACC__
// One thread's place.
struct RowPlace {
  int64_t row;
  int lane;  // within the group
  int lanes;
  int cluster;
  unsigned rank;  // of the block in its cluster
  int64_t first;  // unit of the row that the block begins with
  int units;      // of the row, for this block; 0 beyond the last row
  int chunks;     // units / lanes, rounded up: the same in all threads of a group
  // Set by Elements::spread:
  int spacing;  // elements between those that a thread has of a chunk
  int skip;     // elements that the row's first unit lacks
};

__device__ inline RowPlace row_place(const RowGroups& g) {
  RowPlace p;
  p.lanes = g.lanes;
  p.cluster = g.cluster;
  p.rank = g.cluster == 1 ? 0 : blockIdx.x % g.cluster;
  const int64_t block = g.cluster == 1 ? blockIdx.x : blockIdx.x / g.cluster;
  const int in_block = g.rows_of_block == 1 ? 0 : threadIdx.x / g.lanes;
  p.lane = threadIdx.x - in_block * g.lanes;
  p.row = block * g.rows_of_block + in_block;
  p.first = p.rank * g.block_units;
  const int64_t left = p.row < g.rows ? max(g.units - p.first, int64_t{0}) : 0;
  p.units = static_cast<int>(min(left, g.block_units));
  p.chunks = (p.units + g.lanes - 1) / g.lanes;
  return p;
}

template <class Join>
__device__ float over_lanes(float v, int width, Join join) {
  if (width >= 32) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = join(v, __shfl_xor_sync(~0u, v, step));
    return v;
  }
  for (int step = width / 2; step > 0; step /= 2) v = join(v, __shfl_xor_sync(~0u, v, step));
  return v;
}
__device__ inline float max_over_lanes(float v, int width) {
  return over_lanes(v, width, [](float a, float b) { return fmaxf(a, b); });
}
__device__ inline float sum_over_lanes(float v, int width) {
  return over_lanes(v, width, [](float a, float b) { return a + b; });
}

// Results of warps and of the cluster's blocks; 16 of each at most.
struct RowParts {
  float4 warps[kRowThreads / 32];
  float4 blocks[16];
};

// To be called once before join_row, early: a block may store to another one only when that has
// begun.
__device__ inline void begin_row(const RowPlace& p) {
  if (p.cluster > 1) cluster_arrive();
}

// What all threads of the row have, from what each warp (or group of lanes) has already joined.
// Once a kernel; by all its threads.
template <class Part>
__device__ Part join_row(const RowPlace& p, Part part, RowParts& shared) {
  const int slot = threadIdx.x % 16;
  if (p.lanes > 32) {
    const int warps = p.lanes / 32;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) shared.warps[warp] = part.packed();
    __syncthreads();
    part = slot < warps ? Part::from(shared.warps[warp / warps * warps + slot]) : Part::none();
    part = part.over_lanes(16);
  }
  if (p.cluster > 1) {
    cluster_wait();
    if (threadIdx.x < p.cluster) {
      store_to_block(&shared.blocks[p.rank], threadIdx.x, part.packed());
    }
    cluster_arrive();
    cluster_wait();
    part = slot < p.cluster ? Part::from(shared.blocks[slot]) : Part::none();
    part = part.over_lanes(16);
  }
  return part;
}
#endif

}  // namespace pestle::cuda
