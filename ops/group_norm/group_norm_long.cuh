// group_norm's kernels for groups that no cluster's shared memory holds.
// Map      blocks take a chunk of a group each, first for its mean and squared differences, then,
//          chunks merged, for the result, backwards: what the L2 still holds comes first.
// Traffic  x (and residual) twice, out (and residual_out) once.
// Numerics mean and squares around it of some units at a time, merged by Chan's formula in a fixed
//          order.
#pragma once

#include "ops/group_norm/group_norm_job.cuh"

namespace pestle::ops::group_norm {

constexpr int kThreads = 256;    // of long and any
constexpr int kBlocks = 3;       // of a multiprocessor, of long, at least
constexpr int64_t kWave = 1056;  // chunks that fill a device

// Units that a thread has in flight, 128 bytes of x and residual together; a block's tile is
// kThreads times as many.
template <class T, bool kSum>
constexpr int kTile = (kSum ? 64 : 128) / (kUnit * T::kBytes);

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
  return part;
}

// A block's place: units [begin, end) of a group.
struct Chunk {
  int64_t group, begin, end;

  __device__ static Chunk of(const Job& p, int tile) {
    const int64_t group = blockIdx.x / p.chunks;
    const int64_t begin = blockIdx.x % p.chunks * p.tiles_of_chunk * tile;
    return {group, begin, min(begin + p.tiles_of_chunk * tile, p.units)};
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

template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads, kBlocks) parts_kernel(const __grid_constant__ Job p) {
  constexpr int kTileUnits = kThreads * kTile<T, kSum>;
  const Chunk chunk = Chunk::of(p, kTileUnits);
  const Place place(p, static_cast<uint32_t>(chunk.group));
  const int64_t start = chunk.group * p.units * (kUnit * T::kBytes);
  Part own{0, 0, 0};
  for (int64_t tile = chunk.begin; tile < chunk.end; tile += kTileUnits) {
    const int64_t first = tile + threadIdx.x;
    Units<T, kSum> in;
    in.load(p, start, first);
    int units = 0;
    for (int i = 0; i < kTile<T, kSum>; ++i) units += first + i * kThreads < chunk.end;
    own = own.merged(part_of<T, kSum>(p, place, in, first, units));
  }
  own = merge_block(own);
  if (threadIdx.x == 0) p.parts[blockIdx.x] = make_float4(own.n, own.mean, own.squares, 0);
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads, kBlocks) apply_kernel(const __grid_constant__ Job p) {
  __shared__ float2 whole;
  constexpr int kTileUnits = kThreads * kTile<T, kSum>;
  const Chunk chunk = Chunk::of(p, kTileUnits);
  Part part{0, 0, 0};
  for (int64_t i = threadIdx.x; i < p.chunks; i += kThreads) {
    const float4 v = p.parts[chunk.group * p.chunks + i];
    part = part.merged({v.x, v.y, v.z});
  }
  part = merge_block(part);
  if (threadIdx.x == 0) {
    whole = make_float2(part.mean, __frsqrt_rn(part.squares * p.share + p.eps));
  }
  __syncthreads();
  const float mean = whole.x, rstd = whole.y;
  const Place place(p, static_cast<uint32_t>(chunk.group));
  const int64_t start = chunk.group * p.units * (kUnit * T::kBytes);
  const int64_t tiles = (chunk.end - chunk.begin + kTileUnits - 1) / kTileUnits;
  for (int64_t t = tiles - 1; t >= 0; --t) {
    const int64_t first = chunk.begin + t * kTileUnits + threadIdx.x;
    Units<T, kSum> in;
    in.load(p, start, first);
#pragma unroll
    for (int i = 0; i < kTile<T, kSum>; ++i) {
      const int64_t unit = first + i * kThreads;
      if (unit >= chunk.end) continue;
      const int64_t at = start + unit * (kUnit * T::kBytes);
      float v[kUnit];
      in.values(p, place, i, unit, v);
      if constexpr (kSum) {
        if (p.residual_out != nullptr) T::put(p.residual_out + at, round_unit<T>(v));
      }
      finish<kUnit>(p, place, static_cast<int>(unit), mean, rstd, v);
      const typename T::Raw rounded = round_unit<T>(v);
      if constexpr (T::kBytes == 2) {
        store_result<T>(p, at, rounded.v);
      } else {
        store_result<T>(p, at, rounded.low);
        store_result<T>(p, at + 16, rounded.high);
      }
    }
  }
}

#endif

}  // namespace pestle::ops::group_norm
