// Rows that lie in shared memory while they are worked on: all of a row is asked for by
// asynchronous copies at once, so that what is under way needs no registers. A row belongs to a
// warp, a block, or a cluster; a thread's part of it is granules of kNeighbours elements, `step`
// granules from one to the next. Lanes ask for neighbouring pieces of 16 bytes and read those of
// their own granules: a warp's granules of one step lie together, and no other warp touches them.
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/row/row_ring.cuh"
#include "backends/cuda/device/row/thread_group.cuh"

namespace pestle::cuda {

inline constexpr int kStagedBlock = 256;       // threads, at most
inline constexpr int64_t kStagedPart = 65536;  // bytes of shared memory for a block's part of a row

// Bytes of the longest row that a warp has to itself. Where a row costs many instructions besides
// its elements', longer ones pay, though fewer warps then fit.
inline constexpr int64_t kWarpRow = 4096, kLongWarpRow = 12288;

struct StagedShape {
  ThreadGroupShape thread_group;  // its units are granules
  int steps = 0;                  // granules of a thread, at most
  int waits = 1;                  // groups of steps, each waited for
  int together = 1;               // steps of a group
  int step_shift = 0;
  int cluster_shift = 0;

  static constexpr int kWaits = 4;
  static constexpr int64_t kOneWait = 32768;  // bytes of a block's part that are waited for at once

#ifdef __CUDACC__
  __host__ __device__
#endif
      int
      granules_bytes(int granule_bytes) const {
    return steps * thread_group.threads * granule_bytes;
  }
  // kept_bytes: of a granule, that are kept beside it. warp_row: bytes of the longest row of a
  // warp.
  static StagedShape over(int64_t rows, int64_t granules, int granule_bytes, int kept_bytes,
                          int most_blocks, int64_t warp_row) {
    StagedShape s;
    ThreadGroupShape& t = s.thread_group;
    const int64_t bytes = granules * granule_bytes;
    t.rows = rows;
    t.units = static_cast<int>(granules);
    t.lanes = bytes <= warp_row ? 32 : (bytes <= 16384 ? 128 : kStagedBlock);
    t.threads = bytes <= warp_row ? 128 : t.lanes;
    const int64_t all = granules * (granule_bytes + kept_bytes);
    while (t.cluster < most_blocks && all > t.cluster * kStagedPart) t.cluster *= 2;
    const int64_t step = int64_t{t.lanes} * t.cluster;
    s.steps = static_cast<int>((granules + step - 1) / step);
    s.waits = bytes <= t.cluster * kOneWait ? 1 : kWaits;
    s.together = (s.steps + s.waits - 1) / s.waits;
    while ((int64_t{1} << s.step_shift) < step) ++s.step_shift;
    while (1 << s.cluster_shift < t.cluster) ++s.cluster_shift;
    return s;
  }
  // Elements of the longest row.
  static int64_t longest(int most_blocks, int bytes, int kept_bytes) {
    return most_blocks * kStagedPart / (bytes + kept_bytes);
  }
};

#ifdef __CUDACC__

__device__ inline void copy_piece(uint32_t to, const char* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline void store_shared(uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Addresses are kept in registers, hidden from the compiler, which would make them anew each step.
template <class T, int kNeighbours>
struct StagedRow {
  static constexpr int kElements = kNeighbours;
  static constexpr int kBytes = kElements * T::kBytes;  // of a granule
  static constexpr int kPieces = kBytes / kPieceBytes;
  static constexpr int kStep = 32 * kBytes;  // of a warp, from step to step

  int granules;  // of the row
  int first;     // this lane's first
  int shift;     // of a step, in granules
  int steps;     // that this warp has
  uint32_t own;  // the lane's first piece in shared memory; its others by exclusive or

  __device__ StagedRow(const StagedShape& s, const ThreadGroup& thread_group, uint32_t shared)
      : granules(s.thread_group.units), first(thread_group.first), shift(s.step_shift) {
    const int lane = threadIdx.x % 32;
    steps = max((granules - (first - lane) + (1 << shift) - 1) >> shift, 0);
    // Lanes that read neighbouring granules would meet in the same banks.
    own = shared + threadIdx.x / 32 * (s.steps * kStep) + lane * kBytes +
          (lane * kPieces >> 3 & (kPieces - 1)) * kPieceBytes;
    asm volatile("" : "+r"(own));
    asm volatile("" : "+r"(first));
  }
  // This lane's granule of a step.
  __device__ int granule(int step) const { return first + (step << shift); }
  __device__ bool has(int step) const { return granule(step) < granules; }
  // `behind`: bytes from the first tensor.
  __device__ uint4 load(int step, int q, uint32_t behind = 0) const {
    return load_shared((own ^ q * kPieceBytes) + step * kStep + behind);
  }
  __device__ void store(int step, int q, const uint4& v) const {
    store_shared((own ^ q * kPieceBytes) + step * kStep, v);
  }

  // Asks for a row, in as many groups as there are waits, to `behind` bytes behind the first; or
  // for the first and a second one behind it.
  __device__ void fetch(const StagedShape& s, const char* row, const char* second = nullptr,
                        uint32_t behind = 0) const {
    const int lane = threadIdx.x % 32;
    const int left = (granules - (first - lane)) * kPieces - lane;  // pieces from this lane's on
    const int64_t at = (static_cast<int64_t>(first - lane) * kPieces + lane) * kPieceBytes;
    fetch_tensor(s, row + at, left, lane, 0, second == nullptr);
    if (second != nullptr) fetch_tensor(s, second + at, left, lane, behind, true);
  }
  // f(step) for all steps, each after its pieces have come.
  template <class F>
  __device__ void each_as_it_comes(const StagedShape& s, F&& f) const {
    int step = 0;
#pragma unroll 1
    for (int wait = 1; wait <= s.waits; ++wait) {
      if (wait == s.waits)
        wait_for_copies<0>();
      else
        wait_for_copies(StagedShape::kWaits - wait);
      if constexpr (kPieces > 1) __syncwarp();
      const int end = min(wait * s.together, steps);
#pragma unroll(kPieces == 1 ? 2 : 1)
      for (; step < end; ++step) f(step);
    }
  }
  template <class F>
  __device__ void each(F&& f) const {
#pragma unroll(kPieces == 1 ? 2 : 1)
    for (int step = 0; step < steps; ++step) f(step);
  }

 private:
  // A second tensor comes in groups of its own, the first one's before them: waits are for both.
  __device__ void fetch_tensor(const StagedShape& s, const char* from, int left, int lane,
                               uint32_t behind, bool last) const {
    uint32_t to = own - lane * kBytes - (lane * kPieces >> 3 & (kPieces - 1)) * kPieceBytes +
                  (lane ^ (lane >> 3 & (kPieces - 1))) * kPieceBytes + behind;
    asm volatile("" : "+r"(to));
    asm volatile("" : "+l"(from));
    int step = 0;
#pragma unroll 1
    for (int wait = 1; wait <= s.waits; ++wait) {
      const int end = min(wait * s.together, steps);
#pragma unroll 2
      for (; step < end; ++step) {
#pragma unroll
        for (int q = 0; q < kPieces; ++q) {
          if (q * 32 < left) copy_piece(to + q * 512, from + q * 512);
        }
        left -= kPieces << shift;
        from += static_cast<uint32_t>(kPieces * kPieceBytes) << shift;
        to += kStep;
      }
      if (last) commit_copies();
    }
  }
};

#endif

}  // namespace pestle::cuda
