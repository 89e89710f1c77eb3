// f32 rows of attention's tensors as pairs of f16, for products on tensor cores at twice the rate of
// tf32 parts (attention_parts.cuh, attention_backward_parts.cuh).
//
//   x * 2^s = high + low * 2^-11, both rounded to nearest; 2^s brings the largest of 32 rows of a head
//   to [2^14, 2^15).
//
// Map      A block of 128 threads takes 32 rows of a head and all their columns in registers.
// Traffic  Each element once, 4 bytes of parts for it; 4 bytes for each 32 rows.
// Range    high * high + high * low + low * high keeps an error of 2^-21 of the product where no
//          element but 0 is below 2^-28 of the largest, and 2^-19 down to 2^-30. Where one is
//          smaller, or the largest is outside 2^-60 to 2^61, NaN is the factor of the 32 rows:
//          who would multiply them takes tf32 parts instead.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/device/ptx/mma.cuh"
#include "backends/cuda/host/launch.h"
#include "ops/attention/sm80/attention_call.cuh"

namespace pestle::cuda {

constexpr int kPartsRows = 32;  // that share a factor
constexpr int kPartsThreads = 128;
constexpr int kMostPartsColumns = 128;

#ifdef __CUDACC__
// high += a.b of high parts, low += the products of one low part, of two eights of b's columns.
__device__ inline void multiply_f16_parts(float (&high)[2][4], float (&low)[2][4],
                                          const uint32_t (&a_high)[4], const uint32_t (&a_low)[4],
                                          const uint32_t (&b_high)[4], const uint32_t (&b_low)[4]) {
  const auto multiply = [](float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) {
    warp::multiply<warp::Kind::kF16>(d, a[0], a[1], a[2], a[3], b0, b1);
  };
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    multiply(low[j], a_low, b_high[2 * j], b_high[2 * j + 1]);
    multiply(high[j], a_high, b_high[2 * j], b_high[2 * j + 1]);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) multiply(low[j], a_high, b_low[2 * j], b_low[2 * j + 1]);
}
#endif

// A tensor's parts: of a row the high ones of all columns, then the low ones.
struct F16Parts {
  char* data = nullptr;
  float* factors = nullptr;  // of each 32 rows of a head: 2^-s, or NaN
  int rows = 0, columns = 0;

  int64_t row_bytes() const { return 4 * int64_t{columns}; }
#ifdef __CUDACC__
  __device__ int blocks() const { return (rows + kPartsRows - 1) / kPartsRows; }
  __device__ const char* at(int head, int row) const {
    return data + (int64_t{head} * rows + row) * 4 * columns;
  }
  __device__ const float* factors_of(int head) const { return factors + int64_t{head} * blocks(); }
#endif
};

// Contracts' bytes of parts of [heads, rows, columns], a multiple of 16.
#define PESTLE_F16_PARTS_BYTES(HEADS, ROWS, COLUMNS) \
  "(4*" HEADS "*" ROWS "*" COLUMNS " + 16*cdiv(" HEADS "*cdiv(" ROWS ",32),4))"

struct SplitRows {
  AttentionRows from;
  F16Parts to;
  int heads = 0;  // of a batch
  int first_block = 0;
};
struct SplitRowsJob {
  SplitRows tensors[4];
  int count = 0, blocks = 0;
};

#ifdef __CUDACC__

// The power of two that brings `largest`, a float's bits, to [2^14, 2^15).
struct PartsScale {
  float up = 1, down = 1;
  uint32_t tiny_below = 0;
  bool serves = true;

  __device__ explicit PartsScale(uint32_t largest) {
    if (largest == 0) return;
    const uint32_t exponent = largest >> 23;
    serves = exponent >= 127 - 60 && exponent <= 127 + 60;
    if (!serves) return;
    up = __uint_as_float((127 + 14 + 127 - exponent) << 23);
    down = __uint_as_float((exponent - 14) << 23);
    tiny_below = largest - (30u << 23);
  }
  __device__ bool serves_for(float x) const {
    const uint32_t size = __float_as_uint(x) & 0x7FFFFFFFu;
    return size == 0 || size >= tiny_below;
  }
};

constexpr float kOfLowParts = 0x1p-11f;

struct F16PartsPair {
  uint32_t high, low;
};
__device__ inline F16PartsPair f16_parts(float a, float b) {
  const __half2 high = __floats2half2_rn(a, b);
  const float2 left = __half22float2(high);
  const __half2 low = __floats2half2_rn((a - left.x) * 2048.0f, (b - left.y) * 2048.0f);
  return {*reinterpret_cast<const uint32_t*>(&high), *reinterpret_cast<const uint32_t*>(&low)};
}

#endif  // __CUDACC__

// ---- on the host --------------------------------------------------------------------------------

// Adds a tensor of f32 [batches, heads, rows, columns] whose rows begin at multiples of 16 bytes;
// its parts lie at `*memory`, which goes behind them.
inline F16Parts add_split_rows(SplitRowsJob& job, const AttentionRows& from, int batches, int heads,
                               int rows, int columns, char** memory) {
  const int64_t all = int64_t{batches} * heads,
                blocks = all * ((rows + kPartsRows - 1) / kPartsRows);
  F16Parts to{.data = *memory, .rows = rows, .columns = columns};
  to.factors = reinterpret_cast<float*>(*memory + all * rows * to.row_bytes());
  *memory = reinterpret_cast<char*>(to.factors) + (blocks + 3) / 4 * 16;
  job.tensors[job.count++] = {from, to, heads, job.blocks};
  job.blocks += static_cast<int>(blocks);
  return to;
}

// Makes the parts of all tensors of the job.
Status start_split_rows(const Call& call, const SplitRowsJob& job);

}  // namespace pestle::cuda
