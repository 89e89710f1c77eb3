// RowFacts of all queries: lse in units of ln 2 and d_out . out, before the kernels that need them, and
// zeros where Hopper's kernels add up.
//
// Map      Rows of 16-bit elements of up to 256 columns, all at multiples of 16 bytes: a lane loads 8
//          columns, 8, 16 or 32 lanes a row, four rows at once, a block's all of one head. Others: a
//          warp a query, an element a lane.
// Traffic  d_out and out once; the zeros are written while these come.
// Numerics f32, a lane's columns in ascending order, then lanes by halves: two runs give the same bits.
#pragma once

#include <cuda_fp16.h>

#include <cfloat>

#include "backends/cuda/device/row/block_sums.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/launch.h"
#include "ops/attention/attention_backward/attention_backward_job.cuh"
#include "ops/attention/attention_backward/hopper/attention_backward_hopper.h"

namespace pestle::ops::attention_backward {

constexpr int kFactThreads = 256, kFactRows = 4;  // the latter are on their way to a lane at once

struct FactsJob {
  AttentionRows d_out, out, lse;
  RowFacts* facts;
  uint32_t* largest;  // of d_out, bits of the finite ones' sizes: [B, Hk], if wanted
  Zeros zeros;
  int batches, heads, key_heads, queries, columns;
  bool aligned;

  // Do 16 bytes of both hold 8 columns?
  bool in_eights() const {
    if (d_out.dtype != out.dtype || (out.dtype != DType::kBF16 && out.dtype != DType::kF16))
      return false;
    if (columns == 0 || columns % 8 != 0 || columns > 256) return false;
    for (const AttentionRows* t : {&d_out, &out})
      if (t->column != 2 || reinterpret_cast<uintptr_t>(t->data) % 16 != 0 ||
          (t->batch | t->head | t->row) % 16 != 0)
        return false;
    return true;
  }
};

// +infinity for a query that does not count; a finite lse stays finite: its query counts.
__device__ inline float lse_in_log2(float lse) {
  if (!(fabsf(lse) < kInfinity)) return fabsf(lse);
  return fminf(fmaxf(lse * kLog2E, -FLT_MAX), FLT_MAX);
}

__device__ inline void clear(const Zeros& zeros) {
  const int64_t step = int64_t{gridDim.x} * kFactThreads;
  for (int64_t i = int64_t{blockIdx.x} * kFactThreads + threadIdx.x; i < zeros.count; i += step)
    zeros.begin[i] = make_uint4(0, 0, 0, 0);
}

__device__ inline void find_largest(uint32_t& largest, float value) {
  if (fabsf(value) < kInfinity) largest = max(largest, __float_as_uint(fabsf(value)));
}
// By a warp. The bits of floats that are not negative ascend with them.
__device__ inline void note_largest(const FactsJob& job, int batch, int head, uint32_t bits) {
  if (job.largest == nullptr) return;
  const int key_head = head / (job.heads / job.key_heads);
  uint32_t* const to = job.largest + int64_t{batch} * job.key_heads + key_head;
  bits = __reduce_max_sync(~0u, bits);
  if (threadIdx.x % 32 == 0 && bits > *static_cast<volatile uint32_t*>(to)) atomicMax(to, bits);
}

__device__ inline void store_facts(const FactsJob& job, int batch, int head, int query, float sum) {
  const float lse = cuda::load_float(job.lse.at(batch, head, query), DType::kF32);
  job.facts[(int64_t{batch} * job.heads + head) * job.queries + query] = {lse_in_log2(lse), sum};
}

// A warp a query.
static __global__ void __launch_bounds__(kFactThreads)
    facts_kernel(const __grid_constant__ FactsJob job) {
  clear(job.zeros);
  const int64_t row = int64_t{blockIdx.x} * (kFactThreads / 32) + threadIdx.x / 32;
  if (row >= int64_t{job.batches} * job.heads * job.queries) return;
  const int query = static_cast<int>(row % job.queries);
  const int64_t head = row / job.queries;
  const int b = static_cast<int>(head / job.heads), h = static_cast<int>(head % job.heads);
  const char* d_out = job.d_out.at(b, h, query);
  const char* out = job.out.at(b, h, query);
  float sum = 0;
  uint32_t largest = 0;
  for (int c = threadIdx.x % 32; c < job.columns; c += 32) {
    const float d = load_element(d_out + c * job.d_out.column, job.d_out.dtype, job.aligned);
    sum = __fmaf_rn(d, load_element(out + c * job.out.column, job.out.dtype, job.aligned), sum);
    find_largest(largest, d);
  }
  note_largest(job, b, h, largest);
  sum = cuda::add_lanes(sum);
  if (threadIdx.x % 32 == 0) store_facts(job, b, h, query, sum);
}

template <bool kF16>
__device__ inline float2 two_of(uint32_t word) {
  if constexpr (kF16) return __half22float2(*reinterpret_cast<const __half2*>(&word));
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000));
}
// A lane's eight columns of a row.
template <bool kF16>
__device__ inline float multiply_eights(const uint4& d_out, const uint4& out, uint32_t& largest) {
  const uint32_t d_words[4] = {d_out.x, d_out.y, d_out.z, d_out.w};
  const uint32_t words[4] = {out.x, out.y, out.z, out.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 d = two_of<kF16>(d_words[i]), o = two_of<kF16>(words[i]);
    sum = __fmaf_rn(d.y, o.y, __fmaf_rn(d.x, o.x, sum));
    if constexpr (kF16) {
      find_largest(largest, d.x);
      find_largest(largest, d.y);
    }
  }
  return sum;
}

template <int kLanes>
constexpr int kFactRowsOfBlock = kFactRows * kFactThreads / kLanes;

// kLanes a query, by 16 bytes; only f16 wants the largest.
template <bool kF16, int kLanes>
__global__ void __launch_bounds__(kFactThreads)
    facts_of_eights_kernel(const __grid_constant__ FactsJob job) {
  constexpr int kRows = kFactRowsOfBlock<kLanes>;
  const int blocks = (job.queries + kRows - 1) / kRows;  // of a head
  const int head = blocks == 0 ? INT_MAX : static_cast<int>(blockIdx.x) / blocks;
  if (head / job.heads >= job.batches) {  // more blocks than rows need
    clear(job.zeros);
    return;
  }
  const int b = head / job.heads, h = head % job.heads;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int query0 = static_cast<int>(blockIdx.x) % blocks * kRows + threadIdx.x / kLanes;
  const auto query_of = [&](int i) { return query0 + i * (kFactThreads / kLanes); };
  uint4 d_out[kFactRows], out[kFactRows];
#pragma unroll
  for (int i = 0; i < kFactRows; ++i) {
    d_out[i] = out[i] = make_uint4(0, 0, 0, 0);
    if (query_of(i) >= job.queries || lane * 8 >= job.columns) continue;
    d_out[i] = cuda::load16(job.d_out.at(b, h, query_of(i)) + lane * 16);
    out[i] = cuda::load16(job.out.at(b, h, query_of(i)) + lane * 16);
  }
  clear(job.zeros);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kFactRows; ++i) {
    float sum = multiply_eights<kF16>(d_out[i], out[i], largest);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == i && query_of(i) < job.queries) store_facts(job, b, h, query_of(i), sum);
  }
  if constexpr (kF16) note_largest(job, b, h, largest);
}

// ---- host ----

// Enough for the rows, and for the zeros where there are few rows.
inline int64_t fact_blocks(const FactsJob& job, int64_t of_rows) {
  return std::max(of_rows, std::min<int64_t>(cuda::ceil_div(job.zeros.count, kFactThreads), 1024));
}
template <int kLanes>
Status start_facts_of_eights(const Call& args, const FactsJob& job) {
  const int64_t blocks =
      int64_t{job.batches} * job.heads * cuda::ceil_div(job.queries, kFactRowsOfBlock<kLanes>);
  return cuda::launch(args, "attention_backward_facts", {fact_blocks(job, blocks), kFactThreads},
                      job.out.dtype == DType::kF16 ? facts_of_eights_kernel<true, kLanes>
                                                   : facts_of_eights_kernel<false, kLanes>,
                      job);
}
inline Status start_facts(const Call& args, const FactsJob& job) {
  if (job.in_eights()) {
    if (job.columns <= 64) return start_facts_of_eights<8>(args, job);
    if (job.columns <= 128) return start_facts_of_eights<16>(args, job);
    return start_facts_of_eights<32>(args, job);
  }
  const int64_t rows = int64_t{job.batches} * job.heads * job.queries;
  return cuda::launch(args, "attention_backward_facts",
                      {fact_blocks(job, cuda::ceil_div(rows, kFactThreads / 32)), kFactThreads},
                      facts_kernel, job);
}

}  // namespace pestle::ops::attention_backward
