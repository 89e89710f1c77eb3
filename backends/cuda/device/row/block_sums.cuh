// Sums over the lanes of a warp and the threads of a block, in a fixed order; counts, means and
// squared differences of parts as those of all of them.
#pragma once

#include <cstdint>

namespace pestle::cuda {

#ifdef __CUDACC__
__device__ inline float add_lanes(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
  return v;
}
// All threads' v, in all threads of a block of kThreads.
template <int kThreads>
__device__ inline float block_sum(float v) {
  __shared__ float warps[kThreads / 32];
  v = add_lanes(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  return add_lanes(threadIdx.x % 32 < kThreads / 32 ? warps[threadIdx.x % 32] : 0);
}
// x: how many, y: their mean, z: squared differences from it. Those of all lanes as one.
__device__ inline float4 join_lanes(const float4& v) {
  const float n = add_lanes(v.x);
  const float mean = n > 0 ? __fdividef(add_lanes(v.x * v.y), n) : 0;
  const float away = v.x > 0 ? v.y - mean : 0;
  return make_float4(n, mean, add_lanes(__fmaf_rn(away * v.x, away, v.z)), 0);
}
// The same of all threads of a block.
template <int kThreads>
__device__ inline float4 join_block(const float4& v) {
  __shared__ float4 warps[kThreads / 32];
  const int lane = threadIdx.x % 32;
  const float4 warp = join_lanes(v);
  __syncthreads();
  if (lane == 0) warps[threadIdx.x / 32] = warp;
  __syncthreads();
  return join_lanes(lane < kThreads / 32 ? warps[lane] : make_float4(0, 0, 0, 0));
}
#endif

}  // namespace pestle::cuda
