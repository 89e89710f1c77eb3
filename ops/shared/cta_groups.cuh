// Long rows by groups of CTAs that all run at the same time (backends/cuda/host/launch_together.h):
// a CTA has a part of each of its group's rows, and the rows are dealt out to the groups in turn.
// What CTAs must know of one another is a pair of floats each, words in the call's workspace. A
// row's pair is told while the row before is finished, so that nobody waits for a message that has
// just been sent; rows after that are on their way to shared memory.
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/row/row_groups.cuh"
#include "backends/cuda/host/launch_together.h"
#include "core/machine.h"
#include "ops/shared/rows_along.h"

namespace pestle::ops {

inline constexpr int kGroupThreads = 256;
inline constexpr int kGroupPieces = 8;  // of 16 bytes, of a thread, of one or more tensors together
inline constexpr int kGroupBuffers = 2;
inline constexpr int64_t kGroupRowBytes = int64_t{kGroupPieces} * kGroupThreads * 16;
inline constexpr size_t kGroupShared = kGroupBuffers * static_cast<size_t>(kGroupRowBytes);

struct CtaGroups {
  int blocks = 1;  // of a CTA group
  int group_count = 1;
  uint64_t* words = nullptr;  // of each row's blocks

  cuda::Grid grid() const {
    return {int64_t{blocks} * group_count, kGroupThreads, kGroupShared, 1};
  }
};

#ifdef __CUDACC__
namespace cta_group_device {

using namespace pestle::cuda;

constexpr int kGroupWarps = kGroupThreads / 32;
constexpr int kGroupWords = 4;  // that a lane asks for at once

// In a CTA group's first row.
__device__ inline RowPlace group_place(const CtaGroups& t, const RowGroups& g) {
  RowPlace p;
  p.row = blockIdx.x / t.blocks;
  p.rank = blockIdx.x - static_cast<unsigned>(p.row) * t.blocks;
  p.lane = threadIdx.x;
  p.lanes = kGroupThreads;
  p.cluster = 1;
  p.first = p.rank * g.block_units;
  p.units = static_cast<int>(min(max(g.units - p.first, int64_t{0}), g.block_units));
  p.chunks = (p.units + kGroupThreads - 1) / kGroupThreads;
  return p;
}

struct CtaGroupParts {
  float2 warps[kGroupWarps];
  float2 all;
};

// Join: none(), join(a, b) and over_lanes(v, width) of pairs. By one warp.
template <class Join>
__device__ inline float2 hear_group(const uint64_t* words, int blocks) {
  float2 all = Join::none();
  for (int first = threadIdx.x % 32; first < blocks; first += 32 * kGroupWords) {
    uint64_t heard[kGroupWords];
    bool missing = true;
    while (missing) {
      missing = false;
#pragma unroll
      for (int k = 0; k < kGroupWords; ++k) {
        heard[k] = look_at(words + min(first + 32 * k, blocks - 1));
        missing |= heard[k] == 0;
      }
    }
#pragma unroll
    for (int k = 0; k < kGroupWords; ++k) {
      if (first + 32 * k < blocks) all = Join::join(all, told(heard[k]));
    }
  }
  __syncwarp();
  return Join::over_lanes(all, 32);
}

// By all threads: tells the CTA group what the block has of one row (`own`, the same in all lanes
// of a warp) and returns what all blocks told of another. Null: not that.
template <class Join>
__device__ inline float2 exchange(CtaGroupParts& parts, const CtaGroups& cta_groups, unsigned rank,
                                  float2 own, uint64_t* tell, const uint64_t* hear) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) parts.warps[warp] = own;
  __syncthreads();
  if (warp == 0 && tell != nullptr) {
    const float2 block = Join::over_lanes(parts.warps[lane % kGroupWarps], kGroupWarps);
    if (lane == 0) tell_all(tell + rank, block);
  }
  if (warp == 1 && hear != nullptr) {
    const float2 all = hear_group<Join>(hear, cta_groups.blocks);
    if (lane == 0) parts.all = all;
  }
  __syncthreads();
  return parts.all;
}

}  // namespace cta_group_device

// ---- the host's side ----

// Rows of up to `in_cluster` bytes are better held by a cluster, of up to `in_block` by a block.
inline std::string refuse_cooperative(const TensorView& x, int64_t dim, int64_t in_cluster,
                                      int64_t in_block, const Machine& machine) {
  if (numel(x) == 0) return "there is nothing to do";
  const TensorView rows = rows_along(x, dim);
  const int64_t bytes = rows.shape[rows.rank - 1] * dtype_bytes(x.dtype);
  const bool clusters = cuda::largest_cluster(machine.compute_capability) > 1;
  if (bytes > (clusters ? in_cluster : in_block)) return {};
  return "a row has " + std::to_string(bytes) + " bytes, which " +
         (clusters ? "a cluster" : "a block") + " holds";
}

// Shares rows of `row_bytes` (of one tensor), `block_bytes` a block at most. False: the device does
// not run as many blocks of the kernel at once as a row needs. Blocks that would be left over share
// rows, too, as long as there are at most `times` as many as a row needs: so many words there are.
inline Result<bool> make_cta_groups(const Call& call, const void* kernel,
                                    cuda::BlocksAtOnce& at_once, int64_t row_bytes,
                                    int64_t block_bytes, cuda::RowGroups& g, CtaGroups& cta_groups,
                                    int64_t times = 1) {
  constexpr int64_t kAligned = 8;  // units: parts begin at multiples of 128 bytes
  const auto blocks = at_once.of(cuda::device_index(call), kernel, kGroupThreads, kGroupShared);
  PESTLE_TRY(blocks.status());
  const int64_t needed = cuda::ceil_div(row_bytes, block_bytes);
  if (needed > blocks.value()) return false;
  const int64_t group_count = std::min<int64_t>(g.rows, blocks.value() / needed);
  cta_groups.group_count = static_cast<int>(group_count);
  constexpr int64_t kHeardAtOnce = 32 * 4;  // more are asked for in two steps, 6 % of a row
  const int64_t most = std::max(needed, std::min(times * needed, kHeardAtOnce));
  cta_groups.blocks = static_cast<int>(std::min(blocks.value() / group_count, most));
  g.block_units = cuda::ceil_div(cuda::ceil_div(g.units, cta_groups.blocks), kAligned) * kAligned;
  cta_groups.words = static_cast<uint64_t*>(call.workspace);
  return true;
}
#endif

}  // namespace pestle::ops
