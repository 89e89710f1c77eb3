// The second kernel of norm_backward.cu: adds up the sums that runs of rows left, in a fixed order.
#pragma once

#include "ops/norm/backward/norm_backward_job.cuh"

namespace pestle::ops::norm_gradients {

#ifdef __CUDACC__

// One array's sums: of all runs, or of each group's.
struct SumJob {
  const float* from = nullptr;  // of run 0
  AnyTensor to;
  uint32_t first_block = 0;
  int32_t runs = 0;      // of a group
  int64_t run_step = 0;  // floats from one run to the next
};
struct SumJobs {
  SumJob job[kArrays];
  int count = 0;
  int lanes = 1;  // threads that share columns
  int64_t columns = 0;
  uint32_t tiles = 0;  // of a row
  uint32_t blocks = 0;
};

inline constexpr int kSumThreads = 256;

__device__ inline void store_sum(const AnyTensor& t, char* p, float v) {
  if (reinterpret_cast<uintptr_t>(p) % t.bytes != 0) {
    t.store(p, v);
  } else if (t.dtype == DType::kF32) {
    *reinterpret_cast<uint32_t*>(p) = v != v ? formats::kF32Nan : __float_as_uint(v);
  } else {
    *reinterpret_cast<uint16_t*>(p) =
        t.dtype == DType::kBF16 ? formats::bf16_from_f32(v) : formats::f16_from_f32(v);
  }
}
__device__ inline float4 plus(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four columns a thread; lanes take runs in turns, those of a warp add theirs up by shuffles. What
// needs no sums comes before the wait: it costs nothing while the other kernel's last blocks run.
__global__ void __launch_bounds__(kSumThreads)
    sum_runs_kernel(const __grid_constant__ SumJobs jobs) {
  __shared__ float4 parts[kSumThreads];
  int which = 0;
  while (which + 1 < jobs.count && blockIdx.x >= jobs.job[which + 1].first_block) ++which;
  const SumJob& job = jobs.job[which];
  const uint32_t block = blockIdx.x - job.first_block;
  const uint32_t group = block / jobs.tiles;
  const int wide = kSumThreads / jobs.lanes;
  const int lane = static_cast<int>(threadIdx.x) / wide;
  const int column = static_cast<int>(threadIdx.x) - lane * wide;
  const int64_t j = (int64_t{block - group * jobs.tiles} * wide + column) * 4;
  const float* from = job.from + static_cast<int64_t>(group) * job.runs * job.run_step + j;
  char* to = lane == 0 && j < jobs.columns ? job.to.at(group, j) : nullptr;
  wait_previous_kernel();
  float4 sum = make_float4(0, 0, 0, 0);
  if (j < jobs.columns) {
    constexpr int kAtOnce = 5;
    for (int run = lane; run < job.runs; run += kAtOnce * jobs.lanes) {
      float4 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int one = run + i * jobs.lanes;
        v[i] = one < job.runs ? *reinterpret_cast<const float4*>(from + one * job.run_step)
                              : make_float4(0, 0, 0, 0);
      }
      sum = plus(sum, plus(plus(v[0], v[1]), plus(plus(v[2], v[3]), v[4])));
    }
  }
  for (int distance = wide; distance < 32; distance *= 2) {
    sum = plus(
        sum,
        make_float4(__shfl_xor_sync(~0u, sum.x, distance), __shfl_xor_sync(~0u, sum.y, distance),
                    __shfl_xor_sync(~0u, sum.z, distance), __shfl_xor_sync(~0u, sum.w, distance)));
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (to == nullptr) return;
  const int step = max(wide, 32);
  for (int i = step; i < kSumThreads; i += step) sum = plus(sum, parts[i + column]);
  const float v[4] = {sum.x, sum.y, sum.z, sum.w};
  const int64_t between = job.to.strides[job.to.rank - 1];
  for (int i = 0; i < 4; ++i) store_sum(job.to, to + i * between, v[i]);
}

#endif

}  // namespace pestle::ops::norm_gradients
