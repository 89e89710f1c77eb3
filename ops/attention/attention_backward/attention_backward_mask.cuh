// Gradients of the mask and of the sinks, in f32: slow, right, the same bits in every run.
//
// Map      d_mask: a block of 256 threads a tile of 64 x 64 of it, over all batches, heads, queries
//          and keys that share it, in a fixed order; what rows or columns share is added up in
//          shared memory at the end. d_sinks: a block a head, over all its queries.
// Numerics f32, d_sinks in f64.
#pragma once

#include "ops/attention/attention_backward/attention_backward_any.cuh"

namespace pestle::ops::attention_backward {

struct MaskJob {
  BackwardJob backward;
  AttentionRows d_mask;
  int shape[4] = {};

  int64_t tiles(int dim) const { return (shape[dim] + kTile - 1) / kTile; }
  int64_t blocks() const { return int64_t{shape[0]} * shape[1] * tiles(2) * tiles(3); }
};

#ifdef __CUDACC__

struct MaskTile {
  const MaskJob& job;
  const AttentionCall& c;
  AnyPair<false> pair;
  AnyShared& shared;
  float sums[4][4];

  __device__ MaskTile(const MaskJob& j, AnyShared& s)
      : job(j), c(j.backward.call), pair(j.backward, s), shared(s) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int n = 0; n < 4; ++n) sums[i][n] = 0;
  }

  // What of a dimension shares place `at` of the mask.
  __device__ SeenKeys shared_by(int dim, int at, int all, int step) const {
    return job.shape[dim] == all ? SeenKeys{at, min(all, at + step)} : SeenKeys{0, all};
  }

  __device__ void add_head(SeenKeys queries, SeenKeys keys) {
    for (pair.query0 = queries.begin; pair.query0 < queries.end; pair.query0 += kTile)
      for (pair.key0 = keys.begin; pair.key0 < keys.end; pair.key0 += kTile) {
        if (!pair.load_queries()) continue;
        float d[4][4];
        pair.make_weights<true>(false, d);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int n = 0; n < 4; ++n) sums[i][n] += d[i][n];
      }
  }

  // One element of the tile; a dimension that is shared is added up.
  __device__ float total(int row, int column, bool all_rows, bool all_columns) const {
    float sum = 0;
    for (int i = all_rows ? 0 : row; i < (all_rows ? kTile : row + 1); ++i)
      for (int n = all_columns ? 0 : column; n < (all_columns ? kTile : column + 1); ++n)
        sum += shared.weights[n][i];
    return sum;
  }

  __device__ void store(int b, int h, int row0, int column0) {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) shared.weights[4 * pair.tx + n][4 * pair.ty + i] = sums[i][n];
    __syncthreads();
    const bool all_rows = job.shape[2] != c.queries, all_columns = job.shape[3] != c.keys;
    const int rows = min(kTile, job.shape[2] - row0), columns = min(kTile, job.shape[3] - column0);
    for (int i = threadIdx.x; i < rows * columns; i += kAnyThreads) {
      const int row = i / columns, column = i % columns;
      cuda::store_float(job.d_mask.at(b, h, row0 + row) + (column0 + column) * job.d_mask.column,
                        job.d_mask.dtype, total(row, column, all_rows, all_columns));
    }
  }

  __device__ void run() {
    const int columns = (job.shape[3] + kTile - 1) / kTile,
              rows = (job.shape[2] + kTile - 1) / kTile;
    int rest = static_cast<int>(blockIdx.x);
    const int column0 = rest % columns * kTile;
    rest /= columns;
    const int row0 = rest % rows * kTile;
    rest /= rows;
    const int h = rest % job.shape[1], b = rest / job.shape[1];
    const SeenKeys batches = shared_by(0, b, c.batches, 1), heads = shared_by(1, h, c.heads, 1);
    const SeenKeys queries = shared_by(2, row0, c.queries, kTile);
    const SeenKeys keys = shared_by(3, column0, c.keys, kTile);
    for (pair.b = batches.begin; pair.b < batches.end; ++pair.b)
      for (pair.head = heads.begin; pair.head < heads.end; ++pair.head) {
        pair.key_head = pair.head / c.group;
        add_head(queries, keys);
      }
    store(b, h, row0, column0);
  }
};

// Of one head, by all threads of a block.
__device__ inline void sink_gradient(const BackwardJob& job, const cuda::AttentionList& d_sinks,
                                     int head) {
  __shared__ double parts[kAnyThreads];
  const AttentionCall& c = job.call;
  const float sink = cuda::load_float(c.sinks.data + head * c.sinks.stride, c.sinks.dtype) * kLog2E;
  double sum = 0;
  for (int b = 0; b < c.batches; ++b) {
    const RowFacts* facts = job.facts_of(b, head);
    for (int i = threadIdx.x; i < c.queries; i += kAnyThreads) {
      const float p = facts[i].lse == kInfinity ? 0 : bounded_exp2(sink - facts[i].lse);
      if (p != 0) sum -= static_cast<double>(p) * facts[i].delta;
    }
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kAnyThreads; ++i) sum += parts[i];
  cuda::store_float(const_cast<char*>(d_sinks.data) + head * d_sinks.stride, d_sinks.dtype,
                    static_cast<float>(sum));
}

#endif  // __CUDACC__

}  // namespace pestle::ops::attention_backward
