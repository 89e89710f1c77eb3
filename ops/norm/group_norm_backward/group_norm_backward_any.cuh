// A block a group, eight elements a thread at a time, any strides and offsets; and what all kernels
// end with: gradients of weight, bias and modulation out of sums of channels of samples.
#pragma once

#include "backends/cuda/device/row/block_sums.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/norm/group/channel_affine.cuh"

namespace pestle::ops::group_norm_backward {

using namespace pestle::cuda;

constexpr int kThreads = 256;

struct AnyJob {
  AnyTensor x, residual, d_out, d_residual_out, d_x, d_residual;
  ChannelParameter gate;
  ChannelAffine affine;
  float2* sums;      // of channels of samples: of d, and of d * y
  float* gate_sums;  // of d_s * x
  int64_t groups, group_channels, plane;
  float eps;
  bool silu;
};

// Sums of pieces of a channel of a sample, [samples, channels, pieces].
struct SumsJob {
  const float2* sums;
  const float* gate_sums;
  int samples_each, modulations, channels, pieces;
  ChannelAffine affine;
  AnyTensor d_weight, d_bias, d_gate, d_scale, d_shift;
};

#ifdef __CUDACC__

constexpr int kAnyBatch = 8;  // elements that a thread loads before it uses them
struct Batch {
  float v[kAnyBatch];
};

// A channel of the block's group.
struct Channel {
  const AnyJob& p;
  int64_t start;  // its first element
  float mean = 0, rstd = 0;
  float gate;
  float2 wb;

  __device__ Channel(const AnyJob& job, int64_t group, int64_t c)
      : p(job), start((group * job.group_channels + c) * job.plane) {
    const auto sample = static_cast<uint32_t>(group / p.groups);
    const auto channel = static_cast<uint32_t>(group % p.groups * p.group_channels + c);
    gate = p.gate.load(sample, channel, 1.0f);
    wb = p.affine.load(sample, channel);
  }
  // How many of elements i, i + kThreads, ... there are, at most a batch.
  __device__ int count(int64_t i) const {
    return static_cast<int>(
        min((p.plane - i + kThreads - 1) / kThreads, static_cast<int64_t>(kAnyBatch)));
  }
  // These elements of x, and of what is normalised.
  __device__ void load(int64_t i, Batch& x, Batch& sum) const {
    const int n = count(i);
    load_from(p.x, i, n, x);
    Batch r = {};
    if (p.residual.data != nullptr) load_from(p.residual, i, n, r);
    const bool plain = p.residual.data == nullptr && p.gate.data == nullptr;
#pragma unroll
    for (int j = 0; j < kAnyBatch; ++j) {
      sum.v[j] = plain ? x.v[j] : __fmaf_rn(x.v[j], gate, r.v[j]);
    }
  }
  __device__ void load_from(const AnyTensor& t, int64_t i, int n, Batch& batch) const {
    t.load_elements(start + i, kThreads, n, batch.v);
  }
  __device__ float y(float sum) const { return (sum - mean) * rstd; }
  // The gradient behind weight and modulation, from g, that of out.
  __device__ float d(float g, float y) const {
    if (!p.silu) return g;
    const float z = __fmaf_rn(y, wb.x, wb.y);
    const float s = 1.0f / (1.0f + expf(-z));
    return g * s * __fmaf_rn(z, 1.0f - s, 1.0f);
  }
  // d_s out of d and y, and what belongs to it; `beside`: what else d_s has.
  __device__ float finish(int64_t i, float d, float y, float m1, float m2, float beside) const {
    const float d_s = rstd * (__fmaf_rn(-y, m2, d * wb.x) - m1) + beside;
    const int64_t element = start + i;
    if (p.d_residual.data != nullptr) p.d_residual.store(p.d_residual.element_at(element), d_s);
    p.d_x.store(p.d_x.element_at(element), d_s * gate);
    return d_s;
  }
};

// body(number of a thread's first, x, what is normalised, how many) over a channel, by batches.
template <class Body>
__device__ void each_batch(const Channel& channel, Body&& body) {
  for (int64_t i = threadIdx.x; i < channel.p.plane; i += kThreads * kAnyBatch) {
    Batch x, sum;
    channel.load(i, x, sum);
    body(i, x, sum, channel.count(i));
  }
}

__global__ void __launch_bounds__(kThreads) any_kernel(const __grid_constant__ AnyJob p) {
  const int64_t group = blockIdx.x;
  const auto count = static_cast<float>(p.group_channels * p.plane);
  float own = 0;
  for (int64_t c = 0; c < p.group_channels; ++c) {
    each_batch(Channel(p, group, c), [&](int64_t, const Batch&, const Batch& s, int n) {
#pragma unroll
      for (int j = 0; j < kAnyBatch; ++j) own += j < n ? s.v[j] : 0.0f;
    });
  }
  const float mean = block_sum<kThreads>(own) / count;
  own = 0;
  for (int64_t c = 0; c < p.group_channels; ++c) {
    each_batch(Channel(p, group, c), [&](int64_t, const Batch&, const Batch& s, int n) {
#pragma unroll
      for (int j = 0; j < kAnyBatch; ++j) {
        const float v = j < n ? s.v[j] - mean : 0.0f;
        own = __fmaf_rn(v, v, own);
      }
    });
  }
  const float rstd = __frsqrt_rn(block_sum<kThreads>(own) / count + p.eps);
  float m1 = 0, m2 = 0;
  for (int64_t c = 0; c < p.group_channels; ++c) {
    Channel channel(p, group, c);
    channel.mean = mean;
    channel.rstd = rstd;
    float sum = 0, products = 0;
    each_batch(channel, [&](int64_t i, const Batch&, const Batch& s, int n) {
      Batch g;
      channel.load_from(p.d_out, i, n, g);
#pragma unroll
      for (int j = 0; j < kAnyBatch; ++j) {
        if (j >= n) break;
        const float y = channel.y(s.v[j]);
        const float d = channel.d(g.v[j], y);
        sum += d;
        products = __fmaf_rn(d, y, products);
      }
    });
    sum = block_sum<kThreads>(sum);
    products = block_sum<kThreads>(products);
    if (threadIdx.x == 0) p.sums[group * p.group_channels + c] = make_float2(sum, products);
    m1 = __fmaf_rn(sum, channel.wb.x, m1);
    m2 = __fmaf_rn(products, channel.wb.x, m2);
  }
  m1 /= count;
  m2 /= count;
  for (int64_t c = 0; c < p.group_channels; ++c) {
    Channel channel(p, group, c);
    channel.mean = mean;
    channel.rstd = rstd;
    float products = 0;
    // d_x may not lie in x's place, so x is still there.
    each_batch(channel, [&](int64_t i, const Batch& x, const Batch& s, int n) {
      Batch g, beside = {};
      channel.load_from(p.d_out, i, n, g);
      if (p.d_residual_out.data != nullptr) channel.load_from(p.d_residual_out, i, n, beside);
#pragma unroll
      for (int j = 0; j < kAnyBatch; ++j) {
        if (j >= n) break;
        const float y = channel.y(s.v[j]);
        const float d_s =
            channel.finish(i + j * kThreads, channel.d(g.v[j], y), y, m1, m2, beside.v[j]);
        products = __fmaf_rn(d_s, x.v[j], products);
      }
    });
    if (p.gate_sums == nullptr) continue;
    products = block_sum<kThreads>(products);
    if (threadIdx.x == 0) p.gate_sums[group * p.group_channels + c] = products;
  }
}

// A warp a channel, over the pieces of its samples.
__global__ void __launch_bounds__(kThreads) sums_kernel(const __grid_constant__ SumsJob p) {
  wait_previous_kernel();
  const int channel = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32);
  if (channel >= p.channels) return;
  const auto c = static_cast<uint32_t>(channel);
  const float w = p.affine.weight.load(0, c, 1.0f), b = p.affine.bias.load(0, c, 0.0f);
  const bool first_lane = threadIdx.x % 32 == 0;
  const auto put = [&](const AnyTensor& t, int row, float v) {
    if (first_lane && t.data != nullptr) t.store(t.at(row, channel), v);
  };
  float weight = 0, bias = 0;
  for (int row = 0; row < p.modulations; ++row) {
    float sum = 0, products = 0, gates = 0;
    for (int i = static_cast<int>(threadIdx.x % 32); i < p.samples_each * p.pieces; i += 32) {
      const int of_row = i / p.pieces;
      const int sample = row * p.samples_each + of_row;
      const int64_t at =
          (int64_t{sample} * p.channels + channel) * p.pieces + (i - of_row * p.pieces);
      const float2 one = p.sums[at];
      sum += one.x;
      products += one.y;
      if (p.gate_sums != nullptr) gates += p.gate_sums[at];
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
      products += __shfl_xor_sync(~0u, products, distance);
      gates += __shfl_xor_sync(~0u, gates, distance);
    }
    const auto sample = static_cast<uint32_t>(row * p.samples_each);
    const float by = 1.0f + p.affine.scale.load(sample, c, 0.0f);
    bias = __fmaf_rn(sum, by, bias);
    weight = __fmaf_rn(products, by, weight);
    put(p.d_shift, row, sum);
    put(p.d_scale, row, __fmaf_rn(products, w, sum * b));
    put(p.d_gate, row, gates);
  }
  put(p.d_weight, 0, weight);
  put(p.d_bias, 0, bias);
}

#endif

}  // namespace pestle::ops::group_norm_backward
