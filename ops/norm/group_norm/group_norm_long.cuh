// group_norm's kernels for groups that no cluster's shared memory holds.
// Map      statistics: a block takes a chunk of a group, 32 KiB of x (more where a group would have
//          over 256 of them), and leaves its count, mean and squared differences. results: a block
//          takes 32 KiB, asks for them, joins what the group's chunks left, all at once, a chunk a
//          thread, and writes. Its blocks are in place while the first kernel ends, and go
//          backwards: the end of x is still in the L2.
// Traffic  x (and residual) twice; out (and residual_out) once.
// Numerics sums around the mean of each thread's first unit; threads, warps and chunks are joined
//          as counts, means and squared differences, in a fixed order.
#pragma once

#include "backends/cuda/device/row/block_sums.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/norm/group_norm/group_norm_job.cuh"

namespace pestle::ops::group_norm {

constexpr int kThreads = 256;         // of long and any
constexpr int kStatisticsBlocks = 4;  // of a multiprocessor, at least
constexpr int kResultBlocks = 3;
constexpr int64_t kMostChunks = kThreads;  // of a group

// Units that a thread has in flight, 128 bytes of x and residual together; a block's tile is
// kThreads times as many.
template <class T, bool kSum>
constexpr int kTile = (kSum ? 64 : 128) / (kUnit * T::kBytes);

struct LongJob {
  Job job;
  FastDivisor chunks, tiles;  // of a group: of statistics, of results
  int64_t chunk_units;
  float4* parts;  // of chunks
};

#ifdef __CUDACC__

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
  // What is normalised, of unit i.
  __device__ void values(int i, float gate, float (&v)[kUnit]) const {
    T::to_f32(x[i], v);
    if constexpr (kSum) {
      float r[kUnit];
      T::to_f32(residual[i], r);
      for (int j = 0; j < kUnit; ++j) v[j] = __fmaf_rn(v[j], gate, r[j]);
    }
  }
};

// What belongs to the channels of a tile's units: asked for once where they are of one channel.
template <bool kSum>
struct TileChannels {
  const Job& p;
  const Place& place;
  bool one;
  float gate = 1;
  float2 wb = make_float2(1, 0);

  __device__ TileChannels(const Job& job, const Place& of, int64_t begin, int64_t end, bool results)
      : p(job), place(of) {
    const uint32_t first = p.plane.divide(static_cast<uint32_t>(begin));
    one = first == p.plane.divide(static_cast<uint32_t>(end - 1));
    if (one) load(first, results);
  }
  __device__ void load(uint32_t channel, bool results) {
    if constexpr (kSum) gate = p.gate.quick_load(place.sample, place.channel + channel, 1.0f);
    if (results) wb = p.affine.quick_load(place.sample, place.channel + channel);
  }
  // Of a unit that exists.
  __device__ void of(int64_t unit, bool results) {
    if (!one) load(p.plane.divide(static_cast<uint32_t>(unit)), results);
  }
};

// This thread's part of a chunk.
template <class T, bool kSum>
__device__ inline float4 part_of(const Job& p, const Place& place, int64_t start, int64_t begin,
                                 int64_t end) {
  constexpr int kTileUnits = kThreads * kTile<T, kSum>;
  float shift = 0, n = 0, sums[2] = {0, 0}, squares[2] = {0, 0};
  for (int64_t tile = begin; tile < end; tile += kTileUnits) {
    const int64_t first = tile + threadIdx.x;
    Units<T, kSum> in;
    in.load(p, start, first);
    TileChannels<kSum> channels(p, place, tile, min(tile + kTileUnits, end), false);
#pragma unroll
    for (int i = 0; i < kTile<T, kSum>; ++i) {
      const int64_t unit = first + i * kThreads;
      if (unit >= end) continue;
      if (kSum) channels.of(unit, false);
      float v[kUnit];
      in.values(i, channels.gate, v);
      if (n == 0) {
        shift =
            (((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))) * (1.0f / kUnit);
      }
      n += kUnit;
      for (int j = 0; j < kUnit; ++j) {
        const float d = v[j] - shift;
        sums[j & 1] += d;
        squares[j & 1] = __fmaf_rn(d, d, squares[j & 1]);
      }
    }
  }
  const float sum = sums[0] + sums[1];
  const float away = n > 0 ? __fdividef(sum, n) : 0;
  const float rest = __fmaf_rn(-away, sum, squares[0] + squares[1]);
  return make_float4(n, shift + away, rest < 0 ? 0.0f : rest, 0);
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads, kStatisticsBlocks)
    long_statistics_kernel(const __grid_constant__ LongJob p) {
  start_next_kernel();  // which waits for this one
  const uint32_t group = p.chunks.divide(blockIdx.x);
  const uint32_t chunk = blockIdx.x - group * p.chunks.divisor;
  const Place place(p.job, group);
  const int64_t start = group * p.job.units * (kUnit * T::kBytes);
  const int64_t begin = chunk * p.chunk_units;
  const int64_t end = min(begin + p.chunk_units, p.job.units);
  const float4 all = join_block<kThreads>(part_of<T, kSum>(p.job, place, start, begin, end));
  if (threadIdx.x == 0) p.parts[blockIdx.x] = all;
}

// Mean and 1 / deviation of a group.
__device__ inline float2 whole_of(const LongJob& p, uint32_t group) {
  const auto chunks = static_cast<uint32_t>(p.chunks.divisor);
  float4 own = make_float4(0, 0, 0, 0);
  if (threadIdx.x < chunks) {
    own = __ldcg(p.parts + static_cast<int64_t>(group) * chunks + threadIdx.x);
  }
  const float4 all = join_block<kThreads>(own);
  return make_float2(all.y, __frsqrt_rn(__fmaf_rn(all.z, p.job.share, p.job.eps)));
}

template <class T, bool kSum>
__device__ inline void put_unit(const Job& p, int64_t at, const float2& of, const float2& wb,
                                bool sound, float codes, float (&v)[kUnit]) {
  constexpr int kPiece = 16 / T::kBytes;
  if constexpr (kSum) {
    if (p.residual_out != nullptr) T::put(p.residual_out + at, round_unit<T>(v));
  }
  const float w = wb.x * of.y;
  for (int j = 0; j < kUnit; ++j) v[j] = __fmaf_rn(v[j] - of.x, w, wb.y);
  sound = sound && fabsf(wb.x) + fabsf(wb.y) < 1e18f;
  if (!sound) {
    for (int j = 0; j < kUnit && p.silu; ++j) v[j] = silu_of(v[j]);
    for (int k = 0; k < kUnit / kPiece; ++k) {
      store_result<T>(p, at + 16 * k, round_piece<T>(v + k * kPiece), 0);
    }
    return;
  }
  if (p.silu) silu_pairs<kUnit>(v);
  for (int k = 0; k < kUnit / kPiece; ++k) {
    store_result<T>(p, at + 16 * k, round_numbers<T>(v + k * kPiece), codes);
  }
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads, kResultBlocks)
    long_results_kernel(const __grid_constant__ LongJob p) {
  constexpr int kTileUnits = kThreads * kTile<T, kSum>;
  const uint32_t number = gridDim.x - 1 - blockIdx.x;
  const uint32_t group = p.tiles.divide(number);
  const Place place(p.job, group);
  const int64_t start = group * p.job.units * (kUnit * T::kBytes);
  const int64_t tile = static_cast<int64_t>(number - group * p.tiles.divisor) * kTileUnits;
  const int64_t end = min(tile + kTileUnits, p.job.units);
  Units<T, kSum> in;
  in.load(p.job, start, tile + threadIdx.x);
  TileChannels<kSum> channels(p.job, place, tile, end, true);
  const float codes = p.job.q == nullptr ? 0.0f : code_factor<T>(p.job.q_scale);
  wait_previous_kernel();
  const float2 of = whole_of(p, group);
  // No infinity and no NaN can come out.
  const bool sound = fabsf(of.x) < 1e30f && of.y > 0 && of.y < 1e18f;
#pragma unroll
  for (int i = 0; i < kTile<T, kSum>; ++i) {
    const int64_t unit = tile + threadIdx.x + i * kThreads;
    if (unit >= end) continue;
    channels.of(unit, true);
    float v[kUnit];
    in.values(i, channels.gate, v);
    put_unit<T, kSum>(p.job, start + unit * (kUnit * T::kBytes), of, channels.wb, sound, codes, v);
  }
}

#endif

}  // namespace pestle::ops::group_norm
