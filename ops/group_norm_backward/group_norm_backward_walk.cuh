// Groups in the registers of the threads of a block or a cluster, which stays and goes through
// groups; a piece a warp, the next group's on its way to shared memory.
#pragma once

#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/device/cluster_messages.cuh"
#include "backends/cuda/device/elements.cuh"
#include "backends/cuda/device/exponential.cuh"
#include "ops/group_norm_backward/group_norm_backward_job.cuh"

namespace pestle::ops::group_norm_backward {

using namespace pestle::cuda;

// Units of 8 elements that a lane has of its warp's piece.
template <class T>
constexpr int kWalkUnits = 8 / T::kBytes;

constexpr int kWalkWarps = 20;  // of a block
constexpr int kWalkStages = 2;  // groups in shared memory

// Numbers on their way, by parity of the group: a block's warps leave theirs, one warp adds them up
// and tells all blocks of the cluster. Statistics are count, mean and squares around it.
struct WalkParts {
  float4 statistics[2][kWalkWarps], sums[2][kWalkWarps];                // of warps
  float4 block_statistics[2][kMostBlocks], block_sums[2][kMostBlocks];  // of the cluster's blocks
  uint64_t arrived[4];  // of statistics, by parity, and of sums
};

// A warp has the same piece of every group that its cluster goes through. While one group's sums
// are on their way between the blocks, the next one's statistics are made; the group after that
// comes into shared memory where this one was read.
template <class T>
struct Walk {
  static constexpr int kUnits = kWalkUnits<T>;
  static constexpr int kWords = kUnit * T::kBytes / 16;
  static constexpr int kThreadBytes = 2 * kUnits * kWords * 16;  // of a stage: x and d_out
  using Raw = typename T::Raw;

  // A group: its number, sample and place in the sample.
  struct Group {
    uint32_t number, sample, group;
  };

  const HeldJob& p;
  WalkParts& parts;
  uint32_t shared, stage_bytes;
  int rank, lane, warp, warps;
  bool works;  // the warp has a piece
  int channel, first, units;
  int64_t own_offset[3];  // of this lane's first unit, of x, d_out, d_x
  float own_count;        // elements of this lane
  float one_by_count;     // 1 / those of the group
  int parity = 0;         // of the group
  uint32_t phase = 0;     // of its barriers

  __device__ Walk(const HeldJob& job, WalkParts& own, uint4* memory) : p(job), parts(own) {
    rank = blockIdx.x % p.cluster;
    lane = threadIdx.x % 32;
    warp = threadIdx.x / 32;
    warps = blockDim.x / 32;
    // A warp's part of a stage lies together, so that places are constants apart.
    shared = shared_at(memory) + warp * (32 * kThreadBytes) + lane * 16;
    stage_bytes = blockDim.x * kThreadBytes;
    const int piece = rank * p.block_pieces + warp;
    works = warp < p.block_pieces && piece < p.pieces;
    channel = piece / p.channel_pieces;
    first = (piece - channel * p.channel_pieces) * p.piece_units;
    units = works ? min(p.piece_units, p.channel_units - first) : 0;
    own_count = static_cast<float>((units - lane + 31) / 32 * kUnit);
    if (units <= lane) own_count = 0;
    one_by_count = 1.0f / p.count;
    const int64_t inside = (int64_t{first} * kWords + lane) * 16;
    own_offset[0] = channel * p.x_stride[1] + inside;
    own_offset[1] = channel * p.d_out_stride[1] + inside;
    own_offset[2] = channel * p.d_x_stride[1] + inside;
  }
  __device__ bool has(int i) const { return i * 32 + lane < units; }
  // A unit's 16 bytes number k: of f32 the halves of the piece, so that lanes side by side ask for
  // whole sectors.
  __device__ int word(int i, int k) const { return (i * 32 + k * units) * 16; }
  __device__ Group group_of(uint32_t number) const {
    const uint32_t sample = p.by_groups.divide(number);
    return {number, sample, number - sample * static_cast<uint32_t>(p.groups)};
  }
  __device__ int64_t base(const int64_t (&stride)[2], const Group& g) const {
    return g.sample * stride[0] + int64_t{g.group} * p.group_channels * stride[1];
  }
  __device__ static constexpr uint32_t place(int operand, int i, int k) {
    return static_cast<uint32_t>((operand * kUnits + i) * kWords + k) * 512;
  }
  __device__ void copy(uint32_t stage, int operand, int i, const char* from) const {
    if (!has(i)) return;
#pragma unroll
    for (int k = 0; k < kWords; ++k) copy_ahead(stage + place(operand, i, k), from + word(i, k));
  }
  __device__ const char* x_of(const Group& g) const {
    return p.x + base(p.x_stride, g) + own_offset[0];
  }
  __device__ const char* d_out_of(const Group& g) const {
    return p.d_out + base(p.d_out_stride, g) + own_offset[1];
  }
  __device__ Raw read(uint32_t stage, int operand, int i) const {
    uint4 raw[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw[k].x), "=r"(raw[k].y), "=r"(raw[k].z), "=r"(raw[k].w)
                   : "r"(stage + place(operand, i, k))
                   : "memory");
    }
    if constexpr (kWords == 2)
      return {raw[0], raw[1]};
    else
      return {raw[0]};
  }
  // This lane's weight and bias, with the modulation.
  __device__ float2 parameters(const Group& g) const {
    if (!works) return make_float2(1, 0);
    return p.affine.quick_load(g.sample, g.group * p.group_channels + channel);
  }

  // ---- sums over the group ----

  __device__ static void add_lanes(float& a, float& b) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      a += __shfl_xor_sync(~0u, a, distance);
      b += __shfl_xor_sync(~0u, b, distance);
    }
  }
  __device__ static float add_lanes(float a) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) a += __shfl_xor_sync(~0u, a, distance);
    return a;
  }
  // Counts, means and squares of all lanes as one.
  __device__ static float4 joined(const float4& v) {
    const float n = add_lanes(v.x);
    const float mean = n > 0 ? __fdividef(add_lanes(v.x * v.y), n) : 0;
    const float away = v.y - mean;
    return make_float4(n, mean, add_lanes(__fmaf_rn(away * v.x, away, v.z)), 0);
  }
  __device__ static float4 added(float4 v) {
    add_lanes(v.x, v.y);
    return v;
  }
  // Of the first `count` of them, 32 at most, one a lane.
  __device__ float4 part(const float4* parts_of, int count) const {
    return lane < count ? parts_of[lane] : make_float4(0, 0, 0, 0);
  }
  // Only the warp that sends waits for the others; they go on.
  __device__ bool sends(int which, int sender) const {
    __syncwarp();
    if (warp == sender) {
      asm volatile("bar.sync %0, %1;" ::"r"(which + 1), "r"(blockDim.x) : "memory");
      return true;
    }
    asm volatile("bar.arrive %0, %1;" ::"r"(which + 1), "r"(blockDim.x) : "memory");
    return false;
  }
  __device__ void tell(float4* slots, int which, const float4& v) const {
    if (lane == 0) expect_bytes(&parts.arrived[which], p.cluster * 16);
    if (lane < p.cluster) {
      tell_block(&slots[rank], &parts.arrived[which], static_cast<unsigned>(lane), v);
    }
  }
  // Until all blocks' numbers are there.
  __device__ void wait_for(int which) const {
    if (p.cluster == 1)
      __syncthreads();
    else
      wait_bytes(&parts.arrived[which], phase);
  }
  // Of the group of a stage, around the mean of each lane's first unit.
  __device__ void post_statistics(uint32_t stage, int to) const {
    float shift = 0, sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const Raw raw = read(stage, 0, i);
      if (!has(i)) continue;
      float v[kUnit];
      T::to_f32(raw, v);
      if (i == 0) {
        shift =
            (((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))) * (1.0f / kUnit);
      }
      for (int j = 0; j < kUnit; ++j) {
        const float d = v[j] - shift;
        sum += d;
        squares = __fmaf_rn(d, d, squares);
      }
    }
    const float n = own_count;
    const float away = n > 0 ? __fdividef(sum, n) : 0;
    const float rest = __fmaf_rn(-away, sum, squares);
    const float4 v = joined(make_float4(n, shift + away, rest < 0 ? 0.0f : rest, 0));
    if (lane == 0) parts.statistics[to][warp] = v;
    if (p.cluster > 1 && sends(0, 0)) {
      tell(parts.block_statistics[to], to, joined(part(parts.statistics[to], warps)));
    }
  }
  // Mean and 1 / deviation.
  __device__ float2 statistics() const {
    wait_for(parity);
    const float4 v = joined(p.cluster == 1 ? part(parts.statistics[parity], warps)
                                           : part(parts.block_statistics[parity], p.cluster));
    return make_float2(v.y, __frsqrt_rn(__fmaf_rn(v.z, one_by_count, p.eps)));
  }
  // The gradients behind weight and bias; posts the sums of them times weight, and times y, too.
  // `next`: the group that takes this one's place, if there is one.
  __device__ void gradients(uint32_t stage, const float2& of, const float2& wb, uint32_t number,
                            const Group& next, bool has_next, float (&d)[kUnits][kUnit]) const {
    const char* from = d_out_of(next);
    const float w = wb.x * of.y;
    float sum = 0, products = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const Raw raw[2] = {read(stage, 0, i), read(stage, 1, i)};
      if (has_next) copy(stage, 1, i, from);
      if (!has(i)) continue;
      float v[kUnit];
      T::to_f32(raw[0], v);
      T::to_f32(raw[1], d[i]);
      for (int j = 0; j < kUnit; ++j) v[j] -= of.x;
      if (p.silu) {
        for (int j = 0; j < kUnit; ++j) {
          const float z = __fmaf_rn(v[j], w, wb.y);
          const float s = quick_reciprocal(1.0f + quick_exp(-z));
          d[i][j] *= __fmaf_rn(s, __fmaf_rn(-z, s, z), s);
        }
      }
      for (int j = 0; j < kUnit; ++j) {
        sum += d[i][j];
        products = __fmaf_rn(d[i][j], v[j], products);
      }
    }
    products *= of.y;
    add_lanes(sum, products);
    if (lane == 0 && works) {
      p.sums[int64_t{number} * p.pieces + rank * p.block_pieces + warp] =
          make_float2(sum, products);
    }
    if (lane == 0) {
      parts.sums[parity][warp] = make_float4(sum * wb.x, products * wb.x, 0, 0);
    }
    if (p.cluster > 1 && sends(1, warps - 1)) {
      tell(parts.block_sums[parity], 2 + parity, added(part(parts.sums[parity], warps)));
    }
  }
  __device__ float2 means() const {
    wait_for(2 + parity);
    const float4 v = added(p.cluster == 1 ? part(parts.sums[parity], warps)
                                          : part(parts.block_sums[parity], p.cluster));
    return make_float2(v.x * one_by_count, v.y * one_by_count);
  }
  __device__ void finish(uint32_t stage, const float2& of, const float2& means, float w,
                         const Group& group, const Group& next, bool has_next,
                         float (&d)[kUnits][kUnit]) const {
    char* to = p.d_x + base(p.d_x_stride, group) + own_offset[2];
    const char* from = x_of(next);
    const float c1 = -of.y * means.x, c2 = -of.y * means.y;
    w *= of.y;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const Raw x = read(stage, 0, i);
      if (has_next) copy(stage, 0, i, from);
      if (!has(i)) continue;
      float v[kUnit];
      T::to_f32(x, v);
      for (int j = 0; j < kUnit; ++j) {
        const float y = (v[j] - of.x) * of.y;
        d[i][j] = __fmaf_rn(d[i][j], w, __fmaf_rn(y, c2, c1));
      }
      const Raw raw = T::pack(d[i]);
      if constexpr (kWords == 2) {
        store16(to + word(i, 0), raw.low);
        store16(to + word(i, 1), raw.high);
      } else {
        store16(to + word(i, 0), raw.v);
      }
    }
  }
  // The groups number, number + step, ... below end.
  __device__ void run(uint32_t number, uint32_t step, uint32_t end) {
    Group group = group_of(number), next = group_of(number + step);
    uint32_t stage = shared, other = shared + stage_bytes;
    for (int n = 0; n < kWalkStages; ++n) {
      const Group& g = n == 0 ? group : next;
      for (int i = 0; i < kUnits && g.number < end; ++i) {
        copy(n == 0 ? stage : other, 0, i, x_of(g));
        copy(n == 0 ? stage : other, 1, i, d_out_of(g));
      }
      commit_copies();
    }
    float2 wb = parameters(group);
    if (p.cluster > 1) cluster_wait();
    wait_for_copies<1>();
    post_statistics(stage, 0);
    while (true) {
      const Group after = group_of(next.number + step);
      const bool more = next.number < end, yet_more = after.number < end;
      const float2 of = statistics();
      float d[kUnits][kUnit];
      gradients(stage, of, wb, group.number, after, yet_more, d);
      const float w = wb.x;
      if (more) {
        wait_for_copies<0>();
        post_statistics(other, parity ^ 1);
        wb = parameters(next);
      }
      finish(stage, of, means(), w, group, after, yet_more, d);
      commit_copies();
      if (!more) return;
      group = next;
      next = after;
      const uint32_t was = stage;
      stage = other;
      other = was;
      phase ^= parity;
      parity ^= 1;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kWalkWarps * 32, 1)
    walk_kernel(const __grid_constant__ HeldJob p, uint32_t groups) {
  extern __shared__ uint4 memory[];
  __shared__ WalkParts parts;
  begin_late(blockIdx.x / p.cluster * p.delay);
  Walk<T> own(p, parts, memory);
  if (p.cluster > 1) {  // others' shared memory is theirs only once they have begun
    if (threadIdx.x < 4) begin_barrier(&parts.arrived[threadIdx.x]);
    cluster_arrive();
  }
  own.run(blockIdx.x / p.cluster, gridDim.x / p.cluster, groups);
}

}  // namespace pestle::ops::group_norm_backward
