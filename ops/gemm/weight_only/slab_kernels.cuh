// A slab of a weight as a matrix of x's dtype, and the columns of out that it can't give.
//
// Map      slab_kernel: a CTA a row, a thread 8 codes at a time, to 16 bytes. odd_columns_kernel: a
//          CTA an SM; eight columns of out that hold an odd one are made again from the format's f32
//          values, 32 rows of x at a time.
// Traffic  codes and scales from memory once; the matrix, 2 bytes an element, to the L2, from where the
//          GEMM that follows has it.
// Numerics Matrix times factor is the format's number exactly (int4: rounded to bf16), or the row is
//          odd (slab_formats.cuh).
// Needs    codes' rows at multiples of 16 bytes, K a multiple of 32; code of sm_80 on.
#pragma once

#include "backends/cuda/host/early_launch.h"
#include "ops/gemm/weight_only/finish_rows.cuh"
#include "ops/gemm/weight_only/slab_formats.cuh"

namespace pestle::cuda::many_rows {

constexpr int kSlabThreads = 128, kOddThreads = 256;

struct SlabJob {
  const char* codes = nullptr;
  int64_t code_row = 0;      // bytes
  int64_t first = 0;         // row of the weight
  char* matrix = nullptr;    // rows of k
  float* factors = nullptr;  // a 1, then the rows'
  uint8_t* odd = nullptr;    // of all rows of the weight
  int k = 0;
};

#ifdef __CUDACC__

template <bool kBf16, class Format>
__device__ bool decode_row(const SlabJob& job, const Decoder<kBf16, Format>& decoder) {
  constexpr int kWords = Format::kBits / 4, kAtOnce = 4;
  const char* from = job.codes + (job.first + blockIdx.x) * job.code_row;
  char* to = job.matrix + int64_t{blockIdx.x} * job.k * 2;
  const int units = job.k / 8;  // of 8 columns
  bool odd = false;
#pragma unroll 1
  for (int first = threadIdx.x; first < units; first += kAtOnce * kSlabThreads) {
    uint32_t words[kAtOnce][kWords] = {};
    typename Decoder<kBf16, Format>::Scale scales[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = first + i * kSlabThreads;
      if (unit >= units) continue;
      if constexpr (kWords == 1) {
        words[i][0] = __ldg(reinterpret_cast<const unsigned int*>(from) + unit);
      } else {
        const uint2 two = __ldg(reinterpret_cast<const uint2*>(from) + unit);
        words[i][0] = two.x, words[i][1] = two.y;
      }
      scales[i] = decoder.fetch(unit * 8);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = first + i * kSlabThreads;
      if (unit >= units) continue;
      uint32_t b[4];
      odd |= decoder.decode(words[i], scales[i], b);
      reinterpret_cast<uint4*>(to)[unit] = make_uint4(b[0], b[1], b[2], b[3]);
    }
  }
  return odd;
}

// The matrix is read by the kernel before: nothing is written until that has ended.
template <bool kBf16, class Format>
__global__ void __launch_bounds__(kSlabThreads)
    slab_kernel(const __grid_constant__ SlabJob job, const __grid_constant__ Format format) {
  using Rows = Decoder<kBf16, Format>;
  cuda::wait_previous_kernel();
  cuda::start_next_kernel();  // which waits for this one
  const int64_t row = job.first + blockIdx.x;
  const Rows decoder(format, row);
  [[maybe_unused]] const bool odd = decode_row<kBf16>(job, decoder) || decoder.odd();
  if constexpr (Rows::kFactors) {
    if (threadIdx.x == 0) job.factors[1 + blockIdx.x] = decoder.factor();
    if (threadIdx.x == 0 && blockIdx.x == 0) job.factors[0] = 1;
  }
  if constexpr (Rows::kOdd) {
    const bool any = __syncthreads_or(odd) != 0;
    if (threadIdx.x == 0) job.odd[row] = any ? 1 : 0;
  }
}

__device__ inline bool holds_odd(const uint8_t* odd, const Columns& c) {
  bool any = false;
#pragma unroll
  for (int j = 0; j < 8; ++j) any |= j < c.count && odd[c.first + j] != 0;
  return any;
}

// By all threads of the CTA.
template <bool kBf16, class Format>
__device__ void make_columns_again(const Job& job, const Format& format, const Columns& c) {
  constexpr int kRows = kOddThreads / 8;
  __shared__ __align__(16) float sums[kRows][8];
  const int thread = threadIdx.x, r = thread / 8, column = thread % 8;
#pragma unroll 1
  for (int row = 0; row < job.m; row += kRows) {
    if (row + r < job.m && column < c.count)
      sums[r][column] = slow_sum<kBf16>(job, format, PlainRows{}, row + r, c.first + column);
    __syncthreads();
    if (thread < kRows && row + thread < job.m)
      finish_row<false>(job.epilogue, c, row + thread, 1.0f, sums[thread]);
    __syncthreads();
  }
}

template <bool kBf16, class Format>
__global__ void __launch_bounds__(kOddThreads)
    odd_columns_kernel(const __grid_constant__ Job job, const uint8_t* odd,
                       const __grid_constant__ Format format) {
  __shared__ bool found[kOddThreads];
  cuda::wait_previous_kernel();
  const int groups = (job.n + 7) / 8;
  const auto columns = [&](int group) { return Columns{group * 8, min(8, job.n - group * 8)}; };
#pragma unroll 1
  for (int first = blockIdx.x; first < groups; first += gridDim.x * kOddThreads) {
    const int own = first + threadIdx.x * gridDim.x;
    const bool any = own < groups && holds_odd(odd, columns(own));
    if (__syncthreads_or(any) == 0) continue;
    found[threadIdx.x] = any;
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kOddThreads; ++i)
      if (found[i]) make_columns_again<kBf16>(job, format, columns(first + i * gridDim.x));
    __syncthreads();
  }
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::many_rows
