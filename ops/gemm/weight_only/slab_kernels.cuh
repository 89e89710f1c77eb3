// A slab of an operand as a matrix of 16 bits, and the rows and columns of out that it can't give.
//
// Map      slab_kernel: a CTA a row, a thread 8 codes at a time, to 16 bytes. odd_kernel: a CTA an SM;
//          32 x 8 of out that hold an odd row or column are made again from the formats' f32 values.
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
  int64_t first = 0;         // row of the operand
  char* matrix = nullptr;    // rows of k
  float* factors = nullptr;  // a 1, then the rows'
  uint8_t* odd = nullptr;    // of all rows of the operand
  int k = 0;
};

// A byte for each row and column of out, where such may be odd; 0: is not.
struct OddFlags {
  const uint8_t* rows = nullptr;
  const uint8_t* columns = nullptr;
};

#ifdef __CUDACC__

template <bool kBf16, bool kPair, class Format>
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
      if constexpr (kPair) odd |= decoder.large(scales[i]);
      reinterpret_cast<uint4*>(to)[unit] = make_uint4(b[0], b[1], b[2], b[3]);
    }
  }
  return odd;
}

// The matrix is read by the kernel before: nothing is written until that has ended. kPair: the other
// operand is decoded, too.
template <bool kBf16, bool kPair, class Format>
__global__ void __launch_bounds__(kSlabThreads)
    slab_kernel(const __grid_constant__ SlabJob job, const __grid_constant__ Format format) {
  using Rows = Decoder<kBf16, Format>;
  cuda::wait_previous_kernel();
  cuda::start_next_kernel();  // which waits for this one
  const int64_t row = job.first + blockIdx.x;
  const Rows decoder(format, row);
  [[maybe_unused]] const bool odd = decode_row<kBf16, kPair>(job, decoder) || decoder.odd();
  if constexpr (Rows::kFactors) {
    if (threadIdx.x == 0) job.factors[1 + blockIdx.x] = decoder.factor();
    if (threadIdx.x == 0 && blockIdx.x == 0) job.factors[0] = 1;
  }
  if constexpr (Rows::kOdd || kPair) {
    const bool any = __syncthreads_or(odd) != 0;
    if (threadIdx.x == 0) job.odd[row] = any ? 1 : 0;
  }
}

// Of `count` flags from a multiple of 8 on: is one set?
__device__ inline bool holds_odd(const uint8_t* flags, int count) {
  bool any = false;
#pragma unroll 4
  for (int i = 0; i < count; i += 8) {
    const auto eight = *reinterpret_cast<const unsigned long long*>(flags + i);
    any |= (count - i < 8 ? eight << 8 * (8 - (count - i)) : eight) != 0;
  }
  return any;
}
// Of all of them, by all threads of the CTA.
__device__ inline bool holds_any_odd(const uint8_t* flags, int count) {
  bool any = false;
#pragma unroll 1
  for (int i = threadIdx.x * 8; i < count; i += kOddThreads * 8)
    any |= holds_odd(flags + i, min(8, count - i));
  return any;
}

constexpr int kOddRows = kOddThreads / 8;

// 32 rows of eight columns, by all threads of the CTA.
template <bool kBf16, class Format, class X>
__device__ void make_again(const Job& job, const Format& format, const X& source, int row,
                           const Columns& c) {
  __shared__ __align__(16) float sums[kOddRows][8];
  const int thread = threadIdx.x, r = thread / 8, column = thread % 8;
  if (row + r < job.m && column < c.count)
    sums[r][column] = slow_sum<kBf16>(job, format, source, row + r, c.first + column);
  __syncthreads();
  if (thread < kOddRows && row + thread < job.m)
    finish_row<false>(job.epilogue, c, row + thread, 1.0f, sums[thread]);
  __syncthreads();
}

// Where blocks of 32 x 8 are odd, those of a row of them are different CTAs'.
template <bool kBf16, class Format, class X>
__global__ void __launch_bounds__(kOddThreads)
    odd_kernel(const __grid_constant__ Job job, const OddFlags odd,
               const __grid_constant__ Format format, const __grid_constant__ X source) {
  __shared__ bool found[kOddThreads];
  cuda::wait_previous_kernel();
  bool any = odd.columns != nullptr && holds_any_odd(odd.columns, job.n);
  any |= odd.rows != nullptr && holds_any_odd(odd.rows, job.m);
  if (__syncthreads_or(any) == 0) return;
  const int64_t groups = (job.n + 7) / 8, blocks = (job.m + kOddRows - 1) / kOddRows * groups;
  const auto row_of = [&](int64_t block) { return static_cast<int>(block / groups) * kOddRows; };
  const auto columns_of = [&](int64_t block) {
    const int first = static_cast<int>(block % groups) * 8;
    return Columns{first, min(8, job.n - first)};
  };
#pragma unroll 1
  for (int64_t first = blockIdx.x; first < blocks; first += int64_t{gridDim.x} * kOddThreads) {
    const int64_t own = first + int64_t{threadIdx.x} * gridDim.x;
    bool is_odd = false;
    if (own < blocks) {
      const Columns c = columns_of(own);
      const int row = row_of(own);
      is_odd = odd.columns != nullptr && holds_odd(odd.columns + c.first, c.count);
      is_odd |= odd.rows != nullptr && holds_odd(odd.rows + row, min(kOddRows, job.m - row));
    }
    if (__syncthreads_or(is_odd) == 0) continue;
    found[threadIdx.x] = is_odd;
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kOddThreads; ++i) {
      const int64_t block = first + int64_t{i} * gridDim.x;
      if (found[i]) make_again<kBf16>(job, format, source, row_of(block), columns_of(block));
    }
    __syncthreads();
  }
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::many_rows
