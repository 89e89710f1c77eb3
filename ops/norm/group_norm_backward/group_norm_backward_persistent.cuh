// group_norm_backward's persistent kernel: a CTA or a cluster goes through groups, each in its
// registers; a piece a warp, the next group's on its way to shared memory.
#pragma once

#include "backends/cuda/device/numeric/exponential.cuh"
#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "ops/norm/group_norm_backward/group_norm_backward_job.cuh"

namespace pestle::ops::group_norm_backward {

using namespace pestle::cuda;

// Units of 8 elements that a lane has of its warp's piece.
template <class T>
constexpr int kPersistentUnits = 8 / T::kBytes;

constexpr int kPersistentWarps = 20;  // of a block
constexpr int kPersistentStages =
    2;  // groups of d_out in shared memory; of x one more where it fits

// Numbers on their way, by parity of the group: a block's warps leave theirs, one warp adds them up
// and tells all blocks of the cluster. Statistics are count, mean and squares around it.
struct PersistentParts {
  float4 statistics[2][kPersistentWarps], sums[2][kPersistentWarps];    // of warps
  float4 block_statistics[2][kMostBlocks], block_sums[2][kMostBlocks];  // of the cluster's blocks
  int64_t offsets[kPersistentWarps][3];  // of each warp's piece in a group's x, d_out and d_x
  uint64_t arrived[4];                   // of statistics, by parity, and of sums
};

// A warp has the same piece of every group that its cluster goes through. While one group's sums
// are on their way between the blocks, the next one's statistics are made; the group after that
// comes into shared memory where this one was read.
template <class T>
struct PersistentGroups {
  static constexpr int kUnits = kPersistentUnits<T>;
  static constexpr int kWords = kUnit * T::kBytes / 16;
  static constexpr int kThreadBytes = kUnits * kWords * 16;  // of a stage of x or d_out
  using Raw = typename T::Raw;

  // A group: its number, sample and place in the sample.
  struct Group {
    uint32_t number, sample, group;
  };

  const PieceJob& p;
  PersistentParts& parts;
  uint32_t shared, stage_bytes;  // stages of x, then those of d_out
  int rank, lane, warp, warps;
  bool works;  // the warp has a piece
  int channel, first, units;
  float own_count;     // elements of this lane
  int parity = 0;      // of the group
  uint32_t phase = 0;  // of its barriers

  __device__ PersistentGroups(const PieceJob& job, PersistentParts& own, uint4* memory)
      : p(job), parts(own) {
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
    if (lane == 0) {  // in shared memory, since registers are short
      const int64_t inside = int64_t{first} * kWords * 16;
      parts.offsets[warp][0] = channel * p.x_stride[1] + inside;
      parts.offsets[warp][1] = channel * p.d_out_stride[1] + inside;
      parts.offsets[warp][2] = channel * p.d_x_stride[1] + inside;
    }
    __syncwarp();
  }
  __device__ bool has(int i) const { return i * 32 + lane < units; }
  // A unit's 16 bytes number k: of f32 the halves of the piece, so that lanes side by side ask for
  // whole sectors.
  __device__ int word(int i, int k) const { return (i * 32 + k * units) * 16; }
  __device__ Group group_of(uint32_t number) const {
    asm volatile("" : "+r"(number));  // again wherever it is wanted: registers are short
    const uint32_t sample = p.by_groups.divide(number);
    return {number, sample, number - sample * static_cast<uint32_t>(p.groups)};
  }
  // This lane's first 16 bytes of a group in x, d_out or d_x.
  __device__ int64_t offset(int which, const int64_t (&stride)[2], const Group& g) const {
    return g.sample * stride[0] + int64_t{g.group} * p.group_channels * stride[1] +
           parts.offsets[warp][which] + lane * 16;
  }
  __device__ static constexpr uint32_t place(int i, int k) {
    return static_cast<uint32_t>(i * kWords + k) * 512;
  }
  __device__ void copy(uint32_t stage, int i, const char* from) const {
    if (!has(i)) return;
#pragma unroll
    for (int k = 0; k < kWords; ++k) copy_ahead(stage + place(i, k), from + word(i, k));
  }
  __device__ const char* x_of(const Group& g) const { return p.x + offset(0, p.x_stride, g); }
  __device__ const char* d_out_of(const Group& g) const {
    return p.d_out + offset(1, p.d_out_stride, g);
  }
  __device__ Raw read(uint32_t stage, int i) const {
    uint4 raw[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw[k].x), "=r"(raw[k].y), "=r"(raw[k].z), "=r"(raw[k].w)
                   : "r"(stage + place(i, k))
                   : "memory");
    }
    if constexpr (kWords == 2)
      return {raw[0], raw[1]};
    else
      return {raw[0]};
  }
  // Weight, bias, scale and shift of the warp's channel, in lanes 0 to 3 as they lie in memory:
  // what is asked for a group ahead is there when it is wanted.
  __device__ const ChannelParameter& own_parameter() const {
    static_assert(sizeof(ChannelAffine) == 4 * sizeof(ChannelParameter));
    return (&p.affine.weight)[lane & 3];
  }
  __device__ uint32_t ask_for_parameters(const Group& g) const {
    const ChannelParameter& own = own_parameter();
    if (!works || lane > 3) return 0;
    if (own.data == nullptr) return __float_as_uint(lane == 0 ? 1.0f : 0.0f);
    const char* from = own.at(g.sample, g.group * p.group_channels + channel);
    if (own.dtype == DType::kF32) return __ldg(reinterpret_cast<const unsigned*>(from));
    return __ldg(reinterpret_cast<const unsigned short*>(from));
  }
  // What y is multiplied by, and what is added to it.
  __device__ float2 parameters(uint32_t asked) const {
    const ChannelParameter& own = own_parameter();
    float v = __uint_as_float(asked);
    if (own.data != nullptr && own.dtype != DType::kF32) {
      v = own.dtype == DType::kBF16 ? __uint_as_float(asked << 16) : F16::pair(asked).x;
    }
    const float weight = __shfl_sync(~0u, v, 0), bias = __shfl_sync(~0u, v, 1);
    const float scale = 1.0f + __shfl_sync(~0u, v, 2);
    return make_float2(weight * scale, __fmaf_rn(bias, scale, __shfl_sync(~0u, v, 3)));
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
  // Only the first warp waits for the others, and sends; they go on. The same warp for all numbers:
  // compute-sanitizer's racecheck loses count where warps wait at one of two named barriers.
  __device__ bool sends(int which) const {
    __syncwarp();
    if (warp == 0) {
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
      const Raw raw = read(stage, i);
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
    if (p.cluster > 1 && sends(0)) {
      tell(parts.block_statistics[to], to, joined(part(parts.statistics[to], warps)));
    }
  }
  // Mean and 1 / deviation.
  __device__ float2 statistics() const {
    wait_for(parity);
    const float4 v = joined(p.cluster == 1 ? part(parts.statistics[parity], warps)
                                           : part(parts.block_statistics[parity], p.cluster));
    return make_float2(v.y, __frsqrt_rn(__fmaf_rn(v.z, p.share, p.eps)));
  }
  // The gradients behind weight and bias; posts the sums of them times weight, and times y, too.
  // `next`: the group that takes this one's place, if there is one.
  __device__ void gradients(uint32_t stage, uint32_t d_stage, const float2& of, const float2& wb,
                            uint32_t number, uint32_t next, bool has_next,
                            float (&d)[kUnits][kUnit]) const {
    const char* from = d_out_of(group_of(next));
    const float w = wb.x * of.y;
    float sum = 0, products = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const Raw raw[2] = {read(stage, i), read(d_stage, i)};
      if (has_next) copy(d_stage, i, from);
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
    if (p.cluster > 1 && sends(1)) {
      tell(parts.block_sums[parity], 2 + parity, added(part(parts.sums[parity], warps)));
    }
  }
  __device__ float2 means() const {
    wait_for(2 + parity);
    const float4 v = added(p.cluster == 1 ? part(parts.sums[parity], warps)
                                          : part(parts.block_sums[parity], p.cluster));
    return make_float2(v.x * p.share, v.y * p.share);
  }
  __device__ void finish(uint32_t stage, const float2& of, const float2& means, float w,
                         uint32_t number, uint32_t next, bool has_next,
                         float (&d)[kUnits][kUnit]) const {
    char* to = p.d_x + offset(2, p.d_x_stride, group_of(number));
    const char* from = x_of(group_of(next));
    const float c1 = -of.y * means.x, c2 = -of.y * means.y;
    w *= of.y;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const Raw x = read(stage, i);
      if (has_next) copy(stage, i, from);
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
    const uint32_t stages = p.x_stages, d_first = shared + stages * stage_bytes;
    for (uint32_t n = 0; n < stages; ++n) {
      const Group g = group_of(number + n * step);
      for (int i = 0; i < kUnits && g.number < end; ++i) {
        copy(shared + n * stage_bytes, i, x_of(g));
        if (n < kPersistentStages) copy(d_first + n * stage_bytes, i, d_out_of(g));
      }
      commit_copies();
    }
    uint32_t stage = shared, d_stage = d_first;
    uint32_t asked = ask_for_parameters(group_of(number));
    if (p.cluster > 1) cluster_wait();
    wait_for_copies<1>();
    post_statistics(stage, 0);
    while (true) {
      const bool more = number + step < end;
      if (stages > kPersistentStages) wait_for_copies<1>();  // d_out
      const float2 wb = parameters(asked);
      if (more) asked = ask_for_parameters(group_of(number + step));
      const float2 of = statistics();
      float d[kUnits][kUnit];
      gradients(stage, d_stage, of, wb, number, number + 2 * step, number + 2 * step < end, d);
      const uint32_t other = stage + stage_bytes == d_first ? shared : stage + stage_bytes;
      if (more) {
        if (stages == kPersistentStages) wait_for_copies<0>();
        post_statistics(other, parity ^ 1);
      }
      const uint32_t coming = number + stages * step;
      finish(stage, of, means(), wb.x, number, coming, coming < end, d);
      commit_copies();
      if (!more) return;
      number += step;
      stage = other;
      d_stage = d_stage == d_first ? d_first + stage_bytes : d_first;
      phase ^= parity;
      parity ^= 1;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kPersistentWarps * 32, 1)
    persistent_kernel(const __grid_constant__ PieceJob p, uint32_t groups) {
  extern __shared__ uint4 memory[];
  __shared__ PersistentParts parts;
  begin_late(blockIdx.x / p.cluster * p.delay);
  PersistentGroups<T> own(p, parts, memory);
  if (p.cluster > 1) {  // others' shared memory is theirs only once they have begun
    if (threadIdx.x == 0) {
      for (int i = 0; i < 4; ++i) begin_barrier(&parts.arrived[i]);
    }
    cluster_arrive();
  }
  own.run(blockIdx.x / p.cluster, gridDim.x / p.cluster, groups);
}

}  // namespace pestle::ops::group_norm_backward
