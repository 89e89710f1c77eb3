// group_norm's kernel for groups that no cluster's shared memory holds.
// Map      one kernel, both passes: a block takes a chunk of a group, 64 KiB of x, either for its
//          mean and squared differences or for the result. Blocks take numbers; results of a group
//          come some hundred numbers after its statistics, so that x is still in the L2 then and
//          what memory is asked for is mixed. The last block of a group's statistics joins them
//          and says so; results wait for that, and nothing else waits.
// Traffic  x (and residual) twice, once out of the L2 where groups are shorter than about 10 MiB;
//          out (and residual_out) once.
// Numerics mean and squares around it of some units at a time, merged by Chan's formula in a fixed
//          order.
#pragma once

#include "ops/group_norm/group_norm_job.cuh"

namespace pestle::ops::group_norm {

constexpr int kThreads = 256;  // of long and any
constexpr int kBlocks = 3;     // of a multiprocessor, of long, at least
constexpr int64_t kChunkBytes = 64 << 10;
// Chunks between a group's statistics and its results: with as many results in between, more than
// a device works on at once.
constexpr int64_t kAhead = 280;

// Units that a thread has in flight, 128 bytes of x and residual together; a block's tile is
// kThreads times as many.
template <class T, bool kSum>
constexpr int kTile = (kSum ? 64 : 128) / (kUnit * T::kBytes);

struct LongJob {
  Job job;
  uint32_t count;          // of groups
  uint32_t chunks, ahead;  // of a group; groups whose statistics come first
  int64_t chunk_units;
  float4* parts;      // of chunks
  float2* whole;      // of groups: mean and 1 / deviation
  uint32_t* numbers;  // zeros: numbers given out; then of groups: chunks done, and whether all are

  // Bytes of workspace for `count` groups of `chunks`.
  static int64_t bytes(int64_t count, int64_t chunks) {
    return 16 * count * chunks + 8 * count + 8 * count + 4;
  }
};

#ifdef __CUDACC__

// All threads' parts merged; the result is thread 0's.
__device__ inline Part merge_block(Part part) {
  __shared__ Part warps[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) part = part.merged(part.shifted(distance));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = part;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / 32; ++i) part = part.merged(warps[i]);
  }
  __syncthreads();
  return part;
}

// A block's work.
struct Chunk {
  uint32_t group, number;  // of the group
  bool result;             // or statistics

  __device__ static Chunk of(const LongJob& p, uint32_t n) {
    const uint32_t first = p.ahead * p.chunks, both = (p.count - p.ahead) * p.chunks * 2;
    if (n < first) return at(p, n, false);
    n -= first;
    if (n < both) return n % 2 == 0 ? at(p, first + n / 2, false) : at(p, n / 2, true);
    return at(p, n - both / 2, true);
  }
  // Results go backwards: of a group that the L2 does not hold, its end is there.
  __device__ static Chunk at(const LongJob& p, uint32_t n, bool is_result) {
    const uint32_t group = n / p.chunks, own = n - group * p.chunks;
    return {group, is_result ? p.chunks - 1 - own : own, is_result};
  }
};

// A tile's units of one thread, on their way in registers.
template <class T, bool kSum>
struct Units {
  static constexpr int kBytes = kUnit * T::kBytes;
  static constexpr int kCount = kTile<T, kSum>;
  typename T::Raw x[kCount], residual[kSum ? kCount : 1];

  // `start`: the group's first byte; `first`: this thread's first unit.
  __device__ void load(const Job& p, int64_t start, int64_t first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t at = start + min(first + i * kThreads, p.units - 1) * kBytes;
      x[i] = T::load(p.x + at);
      if constexpr (kSum) residual[i] = p.residual ? T::load(p.residual + at) : T::zero();
    }
  }
  // What is normalised, of unit i, which is `unit` of the group.
  __device__ void values(const Job& p, const Place& place, int i, int64_t unit,
                         float (&v)[kUnit]) const {
    T::to_f32(x[i], v);
    if constexpr (kSum) {
      const auto of = static_cast<uint32_t>(min(unit, p.units - 1));
      const float gate = p.gate.quick_load(place.sample, place.channel + p.plane.divide(of), 1.0f);
      float r[kUnit];
      T::to_f32(residual[i], r);
      for (int j = 0; j < kUnit; ++j) v[j] = __fmaf_rn(v[j], gate, r[j]);
    }
  }
};

template <class T, bool kSum>
__device__ inline Part part_of(const Job& p, const Place& place, const Units<T, kSum>& in,
                               int64_t first, int units) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kTile<T, kSum>; ++i) {
    float v[kUnit];
    in.values(p, place, i, first + i * kThreads, v);
    if (i >= units) continue;
    for (int j = 0; j < kUnit; ++j) sum += v[j];
  }
  Part part{static_cast<float>(units * kUnit), 0, 0};
  if (units == 0) return part;
  part.mean = sum / part.n;
#pragma unroll
  for (int i = 0; i < kTile<T, kSum>; ++i) {
    float v[kUnit];
    in.values(p, place, i, first + i * kThreads, v);
    if (i >= units) continue;
    for (int j = 0; j < kUnit; ++j) {
      const float d = v[j] - part.mean;
      part.squares = __fmaf_rn(d, d, part.squares);
    }
  }
  return part;
}

// Thread 0's part of a chunk is stored; the last block of the group joins all of them.
__device__ inline void leave_part(const LongJob& p, const Chunk& chunk, const Part& part) {
  __shared__ bool last;
  uint32_t* done = p.numbers + 1 + chunk.group;
  float4* parts = p.parts + static_cast<int64_t>(chunk.group) * p.chunks;
  if (threadIdx.x == 0) {
    __stcg(parts + chunk.number, make_float4(part.n, part.mean, part.squares, 0));
    __threadfence();
    last = atomicAdd(done, 1) == p.chunks - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  Part all{0, 0, 0};
  for (uint32_t i = threadIdx.x; i < p.chunks; i += kThreads) {
    const float4 v = __ldcg(parts + i);
    all = all.merged({v.x, v.y, v.z});
  }
  all = merge_block(all);
  if (threadIdx.x != 0) return;
  const float rstd = __frsqrt_rn(all.squares * p.job.share + p.job.eps);
  __stcg(p.whole + chunk.group, make_float2(all.mean, rstd));
  __threadfence();
  atomicExch(done + p.count, 1);
}

// Mean and 1 / deviation of the group, once they are there.
__device__ inline float2 wait_for_whole(const LongJob& p, uint32_t group) {
  if (threadIdx.x == 0) {
    const uint32_t* ready = p.numbers + 1 + p.count + group;
    while (*reinterpret_cast<const volatile uint32_t*>(ready) == 0) __nanosleep(100);
    __threadfence();
  }
  __syncthreads();
  return __ldcg(p.whole + group);
}

template <class T, bool kSum>
__device__ inline void put_results(const Job& p, const Place& place, const Units<T, kSum>& in,
                                   int64_t start, int64_t first, int64_t end, const float2& of) {
#pragma unroll
  for (int i = 0; i < kTile<T, kSum>; ++i) {
    const int64_t unit = first + i * kThreads;
    if (unit >= end) continue;
    const int64_t at = start + unit * (kUnit * T::kBytes);
    float v[kUnit];
    in.values(p, place, i, unit, v);
    if constexpr (kSum) {
      if (p.residual_out != nullptr) T::put(p.residual_out + at, round_unit<T>(v));
    }
    finish<kUnit>(p, place, static_cast<int>(unit), of.x, of.y, v);
    const typename T::Raw rounded = round_unit<T>(v);
    if constexpr (T::kBytes == 2) {
      store_result<T>(p, at, rounded.v);
    } else {
      store_result<T>(p, at, rounded.low);
      store_result<T>(p, at + 16, rounded.high);
    }
  }
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads, kBlocks)
    long_kernel(const __grid_constant__ LongJob p) {
  constexpr int kTileUnits = kThreads * kTile<T, kSum>;
  __shared__ uint32_t own;
  if (threadIdx.x == 0) own = atomicAdd(p.numbers, 1);
  __syncthreads();
  const Chunk chunk = Chunk::of(p, own);
  const Place place(p.job, chunk.group);
  const int64_t start = chunk.group * p.job.units * (kUnit * T::kBytes);
  const int64_t begin = chunk.number * p.chunk_units;
  const int64_t end = min(begin + p.chunk_units, p.job.units);
  Units<T, kSum> in;
  in.load(p.job, start, begin + threadIdx.x);
  float2 of = make_float2(0, 0);
  if (chunk.result) of = wait_for_whole(p, chunk.group);
  Part part{0, 0, 0};
  for (int64_t tile = begin; tile < end; tile += kTileUnits) {
    const int64_t first = tile + threadIdx.x;
    if (tile > begin) in.load(p.job, start, first);
    if (chunk.result) {
      put_results<T, kSum>(p.job, place, in, start, first, end, of);
    } else {
      int units = 0;
      for (int i = 0; i < kTile<T, kSum>; ++i) units += first + i * kThreads < end;
      part = part.merged(part_of<T, kSum>(p.job, place, in, first, units));
    }
  }
  if (!chunk.result) leave_part(p, chunk, merge_block(part));
}

#endif

}  // namespace pestle::ops::group_norm
