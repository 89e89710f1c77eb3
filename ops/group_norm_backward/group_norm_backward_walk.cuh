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

struct WalkParts {
  float4 statistics[kMostWarps * kMostBlocks];  // mean, squares around it, elements
  float4 sums[kMostWarps * kMostBlocks];
  uint64_t arrived[2];
};

// By whole words where it lies so.
__device__ inline float parameter(const AnyTensor& t, int64_t index) {
  const char* p = t.data + index * t.strides[0];
  if (reinterpret_cast<uintptr_t>(p) % t.bytes != 0) return t.load(p);
  switch (t.dtype) {
    case DType::kBF16: return formats::f32_from_bf16(__ldg(reinterpret_cast<const uint16_t*>(p)));
    case DType::kF16: return __half2float(__ldg(reinterpret_cast<const __half*>(p)));
    default: return __ldg(reinterpret_cast<const float*>(p));
  }
}

// A warp has the same piece of every group that its cluster goes through; the next group's comes
// into shared memory while this one's is in registers.
template <class T>
struct Walk {
  static constexpr int kUnits = kWalkUnits<T>;
  static constexpr int kWords = kUnit * T::kBytes / 16;
  using Raw = typename T::Raw;

  const HeldJob& p;
  WalkParts& parts;
  uint32_t shared;
  int rank, lane, warp, warps;
  bool works;  // the warp has a piece
  int channel, first, units;
  int64_t own_offset[3];  // of this lane's first unit, of x, d_out, d_x
  float count;            // elements of the warp
  float one_by_count;     // 1 / those of the group
  uint32_t phase = 0;

  __device__ Walk(const HeldJob& job, WalkParts& own, uint4* memory) : p(job), parts(own) {
    rank = blockIdx.x % p.cluster;
    lane = threadIdx.x % 32;
    warp = threadIdx.x / 32;
    warps = blockDim.x / 32;
    shared = shared_at(memory + threadIdx.x);
    const int piece = rank * p.block_pieces + warp;
    works = warp < p.block_pieces && piece < p.pieces;
    channel = piece / p.channel_pieces;
    first = (piece - channel * p.channel_pieces) * p.piece_units;
    units = works ? min(p.piece_units, p.channel_units - first) : 0;
    count = static_cast<float>(units * kUnit);
    one_by_count = 1.0f / p.count;
    const int64_t inside = (int64_t{first} * kWords + lane) * 16;
    own_offset[0] = channel * p.x_stride[1] + inside;
    own_offset[1] = channel * p.d_out_stride[1] + inside;
    own_offset[2] = channel * p.d_x_stride[1] + inside;
  }
  __device__ bool has(int i) const { return i * 32 + lane < units; }
  // A unit's 16 bytes number k: of f32 the halves of the piece, so that lanes side by side ask for
  // whole sectors.
  __device__ int64_t word(int i, int k) const { return int64_t{i * 32 + k * units} * 16; }
  // Where a group begins. Divisions of 32 bits: those of 64 take some hundred instructions.
  __device__ int64_t base(const int64_t (&stride)[2], uint32_t number) const {
    const uint32_t sample = number / static_cast<uint32_t>(p.groups);
    const uint32_t group = number - sample * static_cast<uint32_t>(p.groups);
    return sample * stride[0] + int64_t{group} * p.group_channels * stride[1];
  }
  __device__ void copy(uint32_t number) const {
    const char* x = p.x + base(p.x_stride, number) + own_offset[0];
    const char* d_out = p.d_out + base(p.d_out_stride, number) + own_offset[1];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has(i)) continue;
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        copy_ahead(shared + (i * kWords + k) * blockDim.x * 16, x + word(i, k));
        copy_ahead(shared + ((kUnits + i) * kWords + k) * blockDim.x * 16, d_out + word(i, k));
      }
    }
  }
  __device__ Raw read(int i) const {
    uint4 raw[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw[k].x), "=r"(raw[k].y), "=r"(raw[k].z), "=r"(raw[k].w)
                   : "r"(shared + (i * kWords + k) * blockDim.x * 16)
                   : "memory");
    }
    if constexpr (kWords == 2)
      return {raw[0], raw[1]};
    else
      return {raw[0]};
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
  // The same in all threads of the cluster, from all warps' parts: each(part, number).
  __device__ void exchange(float4* array, int which, const float4& v) {
    float4* slot = array + rank * warps + warp;
    if (p.cluster == 1) {
      if (lane == 0) *slot = v;
      __syncthreads();
      return;
    }
    if (threadIdx.x == 0) expect_bytes(&parts.arrived[which], warps * p.cluster * 16);
    if (lane < p.cluster) {
      tell_block(slot, &parts.arrived[which], static_cast<unsigned>(lane), v);
    }
    wait_bytes(&parts.arrived[which], phase);
  }
  // Mean and 1 / deviation.
  __device__ float2 statistics(const Raw (&x)[kUnits]) {
    float means[kUnits];
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      means[i] = 0;
      if (!has(i)) continue;
      float v[kUnit];
      T::to_f32(x[i], v);
      means[i] =
          (((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))) * (1.0f / kUnit);
      sum += means[i];
      float own = 0;
      for (int j = 0; j < kUnit; ++j) {
        const float d = v[j] - means[i];
        own = __fmaf_rn(d, d, own);
      }
      squares += own;
    }
    const float mean = works ? add_lanes(sum) * kUnit / count : 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const float d = means[i] - mean;
      if (has(i)) squares = __fmaf_rn(d * kUnit, d, squares);
    }
    exchange(parts.statistics, 0, make_float4(mean, add_lanes(squares), count, 0));
    float all = 0, none = 0;
    for (int i = lane; i < warps * p.cluster; i += 32) {
      all = __fmaf_rn(parts.statistics[i].x, parts.statistics[i].z, all);
    }
    const float middle = add_lanes(all) * one_by_count;
    for (int i = lane; i < warps * p.cluster; i += 32) {
      const float4 v = parts.statistics[i];
      const float away = v.x - middle;
      none += __fmaf_rn(away * v.z, away, v.y);
    }
    return make_float2(middle, __frsqrt_rn(__fmaf_rn(add_lanes(none), one_by_count, p.eps)));
  }
  // The gradients behind weight and bias; the group's means of them times weight, and times y, too.
  __device__ float2 gradients(const Raw (&x)[kUnits], const Raw (&g)[kUnits], const float2& of,
                              const float2& wb, uint32_t number, float (&d)[kUnits][kUnit]) {
    float sum = 0, products = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has(i)) continue;
      float y[kUnit];
      T::to_f32(x[i], y);
      T::to_f32(g[i], d[i]);
      for (int j = 0; j < kUnit; ++j) y[j] = (y[j] - of.x) * of.y;
      if (p.silu) {
        for (int j = 0; j < kUnit; ++j) {
          const float z = __fmaf_rn(y[j], wb.x, wb.y);
          const float s = quick_reciprocal(1.0f + quick_exp(-z));
          d[i][j] *= s * __fmaf_rn(z, 1.0f - s, 1.0f);
        }
      }
      for (int j = 0; j < kUnit; ++j) {
        sum += d[i][j];
        products = __fmaf_rn(d[i][j], y[j], products);
      }
    }
    add_lanes(sum, products);
    if (lane == 0 && works) {
      p.sums[int64_t{number} * p.pieces + rank * p.block_pieces + warp] =
          make_float2(sum, products);
    }
    exchange(parts.sums, 1,
             works ? make_float4(sum * wb.x, products * wb.x, 0, 0) : make_float4(0, 0, 0, 0));
    float m1 = 0, m2 = 0;
    for (int i = lane; i < warps * p.cluster; i += 32) {
      m1 += parts.sums[i].x;
      m2 += parts.sums[i].y;
    }
    add_lanes(m1, m2);
    return make_float2(m1 * one_by_count, m2 * one_by_count);
  }
  __device__ void finish(const Raw (&x)[kUnits], const float2& of, const float2& means, float w,
                         uint32_t number, float (&d)[kUnits][kUnit]) const {
    char* to = p.d_x + base(p.d_x_stride, number) + own_offset[2];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has(i)) continue;
      float y[kUnit];
      T::to_f32(x[i], y);
      for (int j = 0; j < kUnit; ++j) {
        y[j] = (y[j] - of.x) * of.y;
        d[i][j] = of.y * (__fmaf_rn(-y[j], means.y, d[i][j] * w) - means.x);
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
  __device__ void group(uint32_t number, uint32_t next, uint32_t end) {
    float2 wb = make_float2(1, 0);
    const int64_t at =
        int64_t{number % static_cast<uint32_t>(p.groups)} * p.group_channels + channel;
    if (works && p.weight.data != nullptr) wb.x = parameter(p.weight, at);
    if (works && p.bias.data != nullptr) wb.y = parameter(p.bias, at);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    Raw x[kUnits], g[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      x[i] = read(i);
      g[i] = read(kUnits + i);
    }
    if (next < end) copy(next);
    commit_copies();
    const float2 of = statistics(x);
    float d[kUnits][kUnit];
    const float2 means = gradients(x, g, of, wb, number, d);
    finish(x, of, means, wb.x, number, d);
    phase ^= 1;
  }
};

template <class T>
// Registers for two blocks of ten warps.
__global__ void __launch_bounds__(640, 1)
    walk_kernel(const __grid_constant__ HeldJob p, uint32_t groups) {
  extern __shared__ uint4 memory[];
  __shared__ WalkParts parts;
  Walk<T> own(p, parts, memory);
  if (p.cluster > 1) {  // others' shared memory is theirs only once they have begun
    if (threadIdx.x < 2) begin_barrier(&parts.arrived[threadIdx.x]);
    cluster_arrive();
  }
  const uint32_t step = gridDim.x / p.cluster;
  uint32_t number = blockIdx.x / p.cluster;
  own.copy(number);
  commit_copies();
  if (p.cluster > 1) cluster_wait();
  for (; number < groups; number += step) own.group(number, number + step, groups);
}

}  // namespace pestle::ops::group_norm_backward
