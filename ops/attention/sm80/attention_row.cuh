// Attention of one query by one warp, in f32, for any dtype, stride, alignment and depth: what no
// faster kernel takes, and single rows that a faster kernel can't do safely.
//
// Map      Lanes take keys for the logits and columns for the sum. Logits are made twice.
// Numerics f32; exponentials below 2^-126 of the largest are 0, and 0 times v is left out, so that
//          an infinity or a NaN of a key that does not count reaches nothing.
#pragma once

#include "ops/attention/sm80/attention_call.cuh"

namespace pestle::cuda {

struct AttentionJob {
  AttentionCall call;
  AttentionRows out, lse;  // lse: absent without a dtype
  int tiles = 0;           // of one head of k
  int section = 1;         // heads of k that go through their tiles together
  bool last_first = false;
  // Of each 64 rows of each head of k, if a faster kernel came before: 1 where it left them.
  int* left = nullptr;
};

#ifdef __CUDACC__

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

struct AttentionRow {
  const AttentionCall& c;
  const char *q, *mask;
  int batch, key_head;

  __device__ AttentionRow(const AttentionCall& call, int b, int h, int i)
      : c(call),
        q(call.q.at(b, h, i)),
        mask(call.mask_row(b, h, i)),
        batch(b),
        key_head(h / call.group) {}

  __device__ float logit(int key) const {
    const char* k = c.k.at(batch, key_head, key);
    float product = 0;
    for (int d = 0; d < c.depth; ++d)
      product = fmaf(load_float(q + d * c.q.column, c.q.dtype),
                     load_float(k + d * c.k.column, c.k.dtype), product);
    return c.logit(product, mask, key);
  }
};

__device__ inline float warp_largest(float v) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, lanes));
  return v;
}
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(kAllLanes, v, lanes);
  return v;
}

// e^(t - base), 0 for a key that is not there.
__device__ inline float attention_weight(float t, float base) {
  return t == -INFINITY ? 0 : quick_exp(t - base);
}

// Largest logit (0 for none) and the sum of exponentials below it, the sink's included.
__device__ inline float2 attention_sums(const AttentionJob& job, const AttentionRow& row,
                                        SeenKeys seen, int head) {
  float largest = -INFINITY, sum = 0;
  for (int key = seen.begin + threadIdx.x % 32; key < seen.end; key += 32) {
    const float t = row.logit(key);
    if (t > largest) {
      sum *= attention_weight(largest, t);
      largest = t;
    }
    sum += attention_weight(t, largest);
  }
  const AttentionList& sinks = job.call.sinks;
  const float sink =
      sinks.present() ? load_float(sinks.data + head * sinks.stride, sinks.dtype) : -INFINITY;
  const float all = fmaxf(warp_largest(largest), sink);
  const float base = all == -INFINITY ? 0 : all;
  sum = warp_sum(sum * attention_weight(largest, base));
  return make_float2(base, sum + attention_weight(sink, base));
}

// Columns from `first` on, eight a lane.
__device__ inline void attention_columns(const AttentionJob& job, const AttentionRow& row,
                                         SeenKeys seen, float2 base_and_sum, char* out, int first) {
  const AttentionCall& c = job.call;
  const int lane = threadIdx.x % 32;
  float sums[8] = {};
  for (int key0 = seen.begin; key0 < seen.end; key0 += 32) {
    const int key = key0 + lane;
    const float mine = key < seen.end ? attention_weight(row.logit(key), base_and_sum.x) : 0;
    for (int j = 0; j < min(32, seen.end - key0); ++j) {
      const float weight = __shfl_sync(kAllLanes, mine, j);
      if (weight == 0) continue;
      const char* v = c.v.at(row.batch, row.key_head, key0 + j);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int column = first + n * 32 + lane;
        if (column < c.value_depth)
          sums[n] = fmaf(weight, load_float(v + column * c.v.column, c.v.dtype), sums[n]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int column = first + n * 32 + lane;
    if (column < c.value_depth)
      store_float(out + column * job.out.column, job.out.dtype,
                  base_and_sum.y == 0 ? 0 : sums[n] / base_and_sum.y);
  }
}

// All lanes of a warp together.
__device__ __noinline__ inline void attention_row(const AttentionJob& job, int b, int h, int i) {
  const SeenKeys seen = job.call.key_range(b, i);
  const AttentionRow row(job.call, b, h, i);
  const float2 base_and_sum = attention_sums(job, row, seen, h);
  for (int first = 0; first < job.call.value_depth; first += 256)
    attention_columns(job, row, seen, base_and_sum, job.out.at(b, h, i), first);
  if (job.lse.present() && threadIdx.x % 32 == 0) {
    const float lse = base_and_sum.y == 0 ? -INFINITY : base_and_sum.x + logf(base_and_sum.y);
    store_float(job.lse.at(b, h, i), DType::kF32, lse);
  }
}

#endif  // __CUDACC__

}  // namespace pestle::cuda
