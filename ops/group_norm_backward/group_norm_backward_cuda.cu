// group_norm_backward on CUDA.
// Map      a block a group: statistics, sums of each channel, then d_x; a second kernel adds up the
//          channels' sums over samples, a thread a channel, in order. Any strides and offsets.
// Traffic  x five times, d_out twice, d_x once: out of the L2 where a group fits it.
// Numerics f32; fixed trees of additions.
// Measured not yet run on a GPU
#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/launch.h"
#include "ops/group_norm_backward/group_norm_backward_groups.h"

namespace pestle::ops::group_norm_backward {
namespace {

using namespace pestle::cuda;

constexpr int kThreads = 256;

struct Job {
  AnyTensor x, d_out, d_x, weight, bias, d_weight, d_bias;
  float2* sums;  // of channels of samples: of d, and of d * y
  int64_t samples, groups, group_channels, plane;
  float eps;
  bool silu;

  __device__ float weight_of(int64_t channel) const {
    return weight.data == nullptr ? 1.0f : weight.load(weight.element_at(channel));
  }
  __device__ float bias_of(int64_t channel) const {
    return bias.data == nullptr ? 0.0f : bias.load(bias.element_at(channel));
  }
};

__device__ float block_sum(float v) {
  __shared__ float warps[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < kThreads / 32 ? warps[threadIdx.x % 32] : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// A channel of the block's group.
struct Channel {
  const Job& p;
  float mean, rstd, w, b;

  __device__ float x(int64_t element) const { return p.x.load(p.x.element_at(element)); }
  __device__ float y(int64_t element) const { return (x(element) - mean) * rstd; }
  // The gradient behind weight and bias.
  __device__ float d(int64_t element, float y) const {
    const float g = p.d_out.load(p.d_out.element_at(element));
    if (!p.silu) return g;
    const float z = __fmaf_rn(y, w, b);
    const float s = 1.0f / (1.0f + expf(-z));
    return g * s * __fmaf_rn(z, 1.0f - s, 1.0f);
  }
};

__global__ void __launch_bounds__(kThreads) group_kernel(const __grid_constant__ Job p) {
  const int64_t group = blockIdx.x;
  const int64_t size = p.group_channels * p.plane;
  const int64_t start = group * size;
  const auto count = static_cast<float>(size);
  float own = 0;
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    own += p.x.load(p.x.element_at(start + i));
  }
  const float mean = block_sum(own) / count;
  own = 0;
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    const float v = p.x.load(p.x.element_at(start + i)) - mean;
    own = __fmaf_rn(v, v, own);
  }
  const float rstd = __frsqrt_rn(block_sum(own) / count + p.eps);
  const int64_t first = group % p.groups * p.group_channels;
  float m1 = 0, m2 = 0;
  for (int64_t c = 0; c < p.group_channels; ++c) {
    const Channel channel{p, mean, rstd, p.weight_of(first + c), p.bias_of(first + c)};
    float sum = 0, products = 0;
    for (int64_t i = threadIdx.x; i < p.plane; i += kThreads) {
      const int64_t element = start + c * p.plane + i;
      const float y = channel.y(element);
      const float d = channel.d(element, y);
      sum += d;
      products = __fmaf_rn(d, y, products);
    }
    sum = block_sum(sum);
    products = block_sum(products);
    if (threadIdx.x == 0) {
      p.sums[group * p.group_channels + c] = make_float2(sum, products);
    }
    m1 = __fmaf_rn(sum, channel.w, m1);
    m2 = __fmaf_rn(products, channel.w, m2);
  }
  m1 /= count;
  m2 /= count;
  for (int64_t c = 0; c < p.group_channels; ++c) {
    const Channel channel{p, mean, rstd, p.weight_of(first + c), p.bias_of(first + c)};
    for (int64_t i = threadIdx.x; i < p.plane; i += kThreads) {
      const int64_t element = start + c * p.plane + i;
      const float y = channel.y(element);
      const float d = channel.d(element, y) * channel.w;
      p.d_x.store(p.d_x.element_at(element), rstd * (__fmaf_rn(-y, m2, d) - m1));
    }
  }
}

__global__ void __launch_bounds__(kThreads) channel_kernel(const __grid_constant__ Job p) {
  const int64_t channels = p.groups * p.group_channels;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= channels) return;
  float bias = 0, weight = 0;
  for (int64_t sample = 0; sample < p.samples; ++sample) {
    const float2 one = p.sums[sample * channels + channel];
    bias += one.x;
    weight += one.y;
  }
  if (p.d_weight.data != nullptr) p.d_weight.store(p.d_weight.element_at(channel), weight);
  if (p.d_bias.data != nullptr) p.d_bias.store(p.d_bias.element_at(channel), bias);
}

Status run(const Call& call) {
  const Groups g(call);
  const Job job{AnyTensor(g.x),
                AnyTensor(g.d_out),
                AnyTensor(g.d_x),
                AnyTensor(g.weight),
                AnyTensor(g.bias),
                AnyTensor(g.d_weight),
                AnyTensor(g.d_bias),
                static_cast<float2*>(call.workspace),
                g.x.shape[0],
                g.groups,
                g.group_channels(),
                g.plane,
                g.eps,
                g.silu};
  PESTLE_TRY(launch(call, "group_norm_backward", {g.count(), kThreads}, group_kernel, job));
  return launch(call, "group_norm_backward", {ceil_div(g.channels, kThreads), kThreads},
                channel_kernel, job);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/group_norm_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run,
     .workspace = kWorkspace},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::group_norm_backward
