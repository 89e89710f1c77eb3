// Row losses of many rows of 16-bit elements: a block reads a row straight from memory, with as few
// registers as let a multiprocessor have all its threads; what a row needs besides (NaN,
// infinities, exponents beyond f32) is out of line.
#pragma once

#include "ops/softmax/softmax_staged.cuh"

namespace pestle::ops {

#ifdef __CUDACC__
namespace softmax_device {

constexpr int kLossThreads = 256;
// As many as a multiprocessor has room for: 1536 threads on sm_86, 87, 89 and 12x, 2048 elsewhere.
#if defined(__CUDA_ARCH__) && \
    ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1200)
constexpr int kLossCtas = 1536 / kLossThreads;
#else
constexpr int kLossCtas = 2048 / kLossThreads;
#endif

struct LossParts {
  float2 warps[2][kLossThreads / 32];
};

// What the block's threads have of its row, for the first warp.
__device__ inline SoftmaxPart join_loss(const SoftmaxPart& own,
                                        float2 (&warps)[kLossThreads / 32]) {
  const SoftmaxPart part = own.pair_over_lanes(32);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = make_float2(part.largest, part.sum);
  __syncthreads();
  const float2 v = warps[threadIdx.x % (kLossThreads / 32)];
  return SoftmaxPart{v.x, v.y, 0}.pair_over_lanes(kLossThreads / 32);
}

// The row once more, by the general way.
template <class T>
__device__ __noinline__ void general_loss(const SoftmaxJob& job, RowPlace place,
                                          float2 (&warps)[kLossThreads / 32]) {
  const StagedRow<T> row(job, place);
  const auto* x = reinterpret_cast<const uint4*>(row.x) + row.lane;
  const auto piece = [&](int chunk) {
    return x + min(chunk * row.lanes, row.pieces - 1 - row.lane);
  };
  SoftmaxPart part = SoftmaxPart::none();
  if (row.lane < row.pieces) add_general(row, piece, 0, row.chunks, part);
  part = join_loss(part, warps);
  if (threadIdx.x == 0) store_loss(job, place.row, part);
}
__device__ __noinline__ inline void store_row_loss(const SoftmaxJob& job, int64_t row,
                                                   SoftmaxPart part) {
  store_loss(job, row, part);
}

template <class T>
__global__ void __launch_bounds__(kLossThreads, kLossCtas)
    loss_kernel(const __grid_constant__ SoftmaxJob job) {
  cuda::wait_previous_kernel();
  __shared__ LossParts parts;
  RowPlace place;
  place.row = blockIdx.x;
  place.lane = threadIdx.x;
  place.lanes = kLossThreads;
  place.cluster = 1;
  place.rank = 0;
  place.first = 0;
  place.units = static_cast<int>(job.groups.units);
  const StagedRow<T> row(job, place);
  const auto* x = reinterpret_cast<const uint4*>(row.x) + threadIdx.x;
  PlainPart part;
  int c = 0;
#pragma unroll 1
  for (; (c + kTogether) * kLossThreads <= row.pieces; c += kTogether) {
    uint4 raw[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) raw[k] = __ldg(x + k * kLossThreads);
    x += kTogether * kLossThreads;
    part.template add<T>(raw);
  }
  if (c * kLossThreads < row.pieces) {
    uint4 raw[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      raw[k] = row.has(c + k) ? __ldg(x + k * kLossThreads) : all_lowest<T>();
    }
    part.template add<T>(raw);
  }
  const SoftmaxPart all = join_loss(part.part(), parts.warps[0]);
  if (!is_regular(all)) return general_loss<T>(job, place, parts.warps[1]);
  if (threadIdx.x == 0) store_row_loss(job, place.row, all);
}

}  // namespace softmax_device
#endif

}  // namespace pestle::ops
