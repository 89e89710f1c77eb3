// Gradients of groups of any size, with a residual and a gate: what shared memory does not hold.
// Map      a warp takes a piece of up to 2 KiB of one channel, in three kernels: statistics, sums
//          behind the gradients, gradients. Between them a block a group adds up what its pieces
//          left, in a fixed order.
//          Each kernel's blocks are in place, its loads of inputs asked for, while the one before
//          ends. The second one goes backwards, so that each begins with what the L2 still holds.
// Traffic  x and residual three times, d_out twice, d_residual_out, d_x and d_residual once.
#pragma once

#include "backends/cuda/device/numeric/exponential.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/norm/group/channel_affine.cuh"
#include "ops/norm/group_norm_backward/group_norm_backward_any.cuh"

namespace pestle::ops::group_norm_backward {

using namespace pestle::cuda;

enum Operand { kXOperand, kResidualOperand, kDOut, kDResidualOut, kDX, kDResidual, kOperands };

struct PiecesJob {
  char* data[kOperands];
  int64_t strides[kOperands][2];  // of samples and channels, bytes
  ChannelParameter gate;
  ChannelAffine affine;
  float2* sums;                // of pieces: of d, and of d * y
  float* gate_sums;            // of d_s * x
  float2 *statistics, *means;  // of groups: mean and 1 / deviation; those behind d_s
  float4* parts;               // of pieces: count, mean, squares around it
  FastDivisor channel_pieces, channels, group_channels;
  uint32_t groups, pieces, group_pieces;  // of a sample, of all, of a group
  int channel_units, piece_units;
  float eps, count;
  bool silu;
};

#ifdef __CUDACC__

// Where a piece lies.
struct PiecePlace {
  uint32_t number, sample, channel, group;
  int first, units;  // of the channel's plane

  __device__ PiecePlace(const PiecesJob& p, uint32_t n) : number(n) {
    const uint32_t row = p.channel_pieces.divide(n);
    first = static_cast<int>(n - row * p.channel_pieces.divisor) * p.piece_units;
    units = min(p.piece_units, p.channel_units - first);
    sample = p.channels.divide(row);
    channel = row - sample * p.channels.divisor;
    group = sample * p.groups + p.group_channels.divide(channel);
  }
};

__device__ inline float add_lanes(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
  return v;
}
// Counts, means and squares of all lanes as one.
__device__ inline float4 join_lanes(const float4& v) {
  const float n = add_lanes(v.x);
  const float mean = n > 0 ? __fdividef(add_lanes(v.x * v.y), n) : 0;
  const float away = v.y - mean;
  return make_float4(n, mean, add_lanes(v.x > 0 ? __fmaf_rn(away * v.x, away, v.z) : 0), 0);
}

template <class T, bool kSum>
struct PieceWorker {
  static constexpr int kUnits = 8 / T::kBytes;  // of a lane
  static constexpr int kBytes = kUnit * T::kBytes;
  using Raw = typename T::Raw;

  const PiecesJob& p;
  const PiecePlace at;
  const int lane = threadIdx.x % 32;
  float gate = 1;
  Raw x[kUnits], residual[kSum ? kUnits : 1];

  __device__ PieceWorker(const PiecesJob& job, uint32_t number) : p(job), at(job, number) {
    load(kXOperand, x);
    if constexpr (kSum) {
      if (p.data[kResidualOperand] != nullptr) {
        load(kResidualOperand, residual);
      } else {
        for (int i = 0; i < kUnits; ++i) residual[i] = T::zero();
      }
      gate = p.gate.quick_load(at.sample, at.channel, 1.0f);
    }
  }
  __device__ bool has(int i) const { return i * 32 + lane < at.units; }
  __device__ char* place(int operand, int i) const {
    return p.data[operand] + at.sample * p.strides[operand][0] +
           at.channel * p.strides[operand][1] +
           int64_t{at.first + min(i * 32 + lane, at.units - 1)} * kBytes;
  }
  __device__ void load(int operand, Raw (&to)[kUnits]) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) to[i] = T::load(place(operand, i));
  }
  __device__ void sum(int i, float (&v)[kUnit]) const {
    T::to_f32(x[i], v);
    if constexpr (kSum) {
      float r[kUnit];
      T::to_f32(residual[i], r);
      for (int j = 0; j < kUnit; ++j) v[j] = __fmaf_rn(v[j], gate, r[j]);
    }
  }
  __device__ void statistics() const {
    float n = 0, total = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has(i)) continue;
      float v[kUnit];
      sum(i, v);
      for (int j = 0; j < kUnit; ++j) total += v[j];
      n += kUnit;
    }
    const float mean = n > 0 ? total / n : 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has(i)) continue;
      float v[kUnit];
      sum(i, v);
      for (int j = 0; j < kUnit; ++j) squares = __fmaf_rn(v[j] - mean, v[j] - mean, squares);
    }
    const float4 all = join_lanes(make_float4(n, mean, squares, 0));
    if (lane == 0) p.parts[at.number] = all;
  }
  // y, and d: the gradient behind weight and modulation.
  __device__ void gradients(int i, const Raw& d_out, const float2& of, const float2& wb,
                            float (&y)[kUnit], float (&d)[kUnit]) const {
    sum(i, y);
    T::to_f32(d_out, d);
    for (int j = 0; j < kUnit; ++j) y[j] = (y[j] - of.x) * of.y;
    if (!p.silu) return;
    for (int j = 0; j < kUnit; ++j) {
      const float z = __fmaf_rn(y[j], wb.x, wb.y);
      const float s = quick_reciprocal(1.0f + quick_exp(-z));
      d[j] *= s * __fmaf_rn(z, 1.0f - s, 1.0f);
    }
  }
  __device__ void add_gradients() const {
    Raw d_out[kUnits];
    load(kDOut, d_out);
    wait_previous_kernel();
    const float2 of = p.statistics[at.group];
    const float2 wb = p.affine.quick_load(at.sample, at.channel);
    float total = 0, products = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has(i)) continue;
      float y[kUnit], d[kUnit];
      gradients(i, d_out[i], of, wb, y, d);
      for (int j = 0; j < kUnit; ++j) {
        total += d[j];
        products = __fmaf_rn(d[j], y[j], products);
      }
    }
    total = add_lanes(total);
    products = add_lanes(products);
    if (lane == 0) p.sums[at.number] = make_float2(total, products);
  }
  __device__ void finish() const {
    Raw d_out[kUnits], d_residual_out[kSum ? kUnits : 1];
    load(kDOut, d_out);
    if constexpr (kSum) {
      if (p.data[kDResidualOut] != nullptr) load(kDResidualOut, d_residual_out);
    }
    wait_previous_kernel();
    const float2 of = p.statistics[at.group], means = p.means[at.group];
    const float2 wb = p.affine.quick_load(at.sample, at.channel);
    float products = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has(i)) continue;
      float y[kUnit], d[kUnit];
      gradients(i, d_out[i], of, wb, y, d);
      for (int j = 0; j < kUnit; ++j) {
        d[j] = of.y * (__fmaf_rn(-y[j], means.y, d[j] * wb.x) - means.x);
      }
      if constexpr (kSum) products = add_residual(i, d_residual_out[i], d, products);
      T::store(place(kDX, i), d);
    }
    if (p.gate_sums == nullptr) return;
    products = add_lanes(products);
    if (lane == 0) p.gate_sums[at.number] = products;
  }
  // d_s becomes d_x; adds up d_s * x.
  __device__ float add_residual(int i, const Raw& d_residual_out, float (&d)[kUnit],
                                float products) const {
    float v[kUnit];
    if (p.data[kDResidualOut] != nullptr) {
      T::to_f32(d_residual_out, v);
      for (int j = 0; j < kUnit; ++j) d[j] += v[j];
    }
    if (p.data[kDResidual] != nullptr) T::store(place(kDResidual, i), d);
    T::to_f32(x[i], v);
    for (int j = 0; j < kUnit; ++j) {
      products = __fmaf_rn(d[j], v[j], products);
      d[j] *= gate;
    }
    return products;
  }
};

// This warp's piece; false: there is none.
__device__ inline bool own_piece(const PiecesJob& p, uint32_t& number) {
  number = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  return number < p.pieces;
}
template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads) statistics_kernel(const __grid_constant__ PiecesJob p) {
  start_next_kernel();
  uint32_t number;
  if (own_piece(p, number)) PieceWorker<T, kSum>(p, number).statistics();
}
template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads) gradients_kernel(const __grid_constant__ PiecesJob p) {
  start_next_kernel();
  uint32_t number;
  if (own_piece(p, number)) {
    PieceWorker<T, kSum>(p, p.pieces - 1 - number).add_gradients();
  }
}
template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ PiecesJob p) {
  start_next_kernel();
  uint32_t number;
  if (own_piece(p, number)) PieceWorker<T, kSum>(p, number).finish();
}

// A block a group: its pieces' statistics as one.
__global__ void __launch_bounds__(kThreads)
    join_statistics_kernel(const __grid_constant__ PiecesJob p) {
  __shared__ float4 warps[kThreads / 32];
  start_next_kernel();
  wait_previous_kernel();
  const float4* parts = p.parts + static_cast<int64_t>(blockIdx.x) * p.group_pieces;
  float4 own = make_float4(0, 0, 0, 0);
  for (uint32_t i = threadIdx.x; i < p.group_pieces; i += kThreads) {
    const float4 v = parts[i];
    const float n = own.x + v.x, away = v.y - own.y, share = v.x / n;
    own =
        make_float4(n, __fmaf_rn(away, share, own.y), own.z + v.z + away * away * own.x * share, 0);
  }
  own = join_lanes(own);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  own = join_lanes(threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : make_float4(0, 0, 0, 0));
  if (threadIdx.x == 0) {
    p.statistics[blockIdx.x] = make_float2(own.y, __frsqrt_rn(own.z / p.count + p.eps));
  }
}
// The means behind d_s, out of the pieces' sums.
__global__ void __launch_bounds__(kThreads) join_means_kernel(const __grid_constant__ PiecesJob p) {
  start_next_kernel();
  wait_previous_kernel();
  const uint32_t begin = blockIdx.x * p.group_pieces;
  const uint32_t sample = blockIdx.x / p.groups;
  const uint32_t row = sample * p.channels.divisor;
  float m1 = 0, m2 = 0;
  for (uint32_t i = begin + threadIdx.x; i < begin + p.group_pieces; i += kThreads) {
    const uint32_t channel = p.channel_pieces.divide(i) - row;
    const float w = p.affine.quick_load(sample, channel).x;
    const float2 v = p.sums[i];
    m1 = __fmaf_rn(v.x, w, m1);
    m2 = __fmaf_rn(v.y, w, m2);
  }
  m1 = block_sum<kThreads>(m1);
  m2 = block_sum<kThreads>(m2);
  if (threadIdx.x == 0) p.means[blockIdx.x] = make_float2(m1 / p.count, m2 / p.count);
}

#endif

}  // namespace pestle::ops::group_norm_backward
