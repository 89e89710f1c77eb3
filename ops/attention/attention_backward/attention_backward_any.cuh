// Gradients of attention in f32, for any dtype, depth, stride and alignment: what no faster kernel
// takes, and tiles that a faster one can't do (infinities and NaN, f16 out of range).
//
// Map      A block of 256 threads makes up to 128 columns of one gradient for 64 outer rows (keys
//          of d_k and d_v, queries of d_q) and goes over tiles of 64 inner rows, of all heads that
//          share the keys. A thread holds 4 x 4 logits of a tile and 4 x 8 sums. Logits are made
//          again for each 128 columns.
// Numerics f32; a factor of 0 adds nothing, to an infinity or NaN either. Sums run over heads, then
//          inner rows, in ascending order.
#pragma once

#include "ops/attention/attention_backward/attention_backward_job.cuh"

namespace pestle::ops::attention_backward {

constexpr int kAnyColumns = 128;  // of a gradient, a block
constexpr int kAnyThreads = 256;
constexpr int kSlice = 32;  // columns of a product, or rows of a sum, in shared memory at once
constexpr int kPitch = kTile + 4;

// What blocks make: a tile's columns, 128 at a time.
PESTLE_HD inline int any_parts(int columns) { return (columns + kAnyColumns - 1) / kAnyColumns; }
PESTLE_HD inline int64_t any_blocks_of_keys(const BackwardJob& job) {
  const AttentionCall& c = job.call;
  return int64_t{c.batches} * c.key_heads * job.key_tiles() *
         (any_parts(c.depth) + any_parts(c.value_depth));
}
PESTLE_HD inline int64_t any_blocks_of_queries(const BackwardJob& job) {
  const AttentionCall& c = job.call;
  return int64_t{c.batches} * c.heads * job.query_tiles() * any_parts(c.depth);
}

#ifdef __CUDACC__

struct alignas(16) AnyShared {  // read by fours
  union {
    struct {
      float a[kSlice][kPitch], b[kSlice][kPitch];  // transposed: rows of a tile side by side
    };
    float x[kSlice][kAnyColumns];
  };
  float weights[kTile][kPitch];  // [inner, outer]
  RowFacts facts[kTile];         // of queries
  SeenKeys seen[kTile];
};

// Rows of one head of a tensor, from `first` on.
struct TileRows {
  const char* data;
  int64_t row, column;
  int count;  // rows that there are
  DType dtype;
  bool aligned;

  __device__ TileRows(const BackwardJob& job, const AttentionRows& t, int b, int h, int first,
                      int all)
      : data(t.at(b, h, first)),
        row(t.row),
        column(t.column),
        count(min(kTile, all - first)),
        dtype(t.dtype),
        aligned(job.aligned) {}
  __device__ float at(int i, int c, int columns) const {
    return i < count && c < columns ? load_element(data + i * row + c * column, dtype, aligned) : 0;
  }
};

// One pair of tiles: 64 queries and 64 keys, one of them outer.
template <bool kKeysAreOuter>
struct AnyPair {
  const BackwardJob& job;
  AnyShared& shared;
  int b, head, key_head;
  int query0, key0;
  int ty, tx;  // a thread has outer rows 4 ty + i and inner rows 4 tx + j

  __device__ AnyPair(const BackwardJob& j, AnyShared& s) : job(j), shared(s) {
    ty = threadIdx.x / 16;
    tx = threadIdx.x % 16;
  }

  __device__ TileRows of_queries(const AttentionRows& t) const {
    return {job, t, b, head, query0, job.call.queries};
  }
  __device__ TileRows of_keys(const AttentionRows& t) const {
    return {job, t, b, key_head, key0, job.call.keys};
  }

  // Neighbouring lanes take 8 columns of 4 rows: whole sectors, and each its bank.
  __device__ static void load_slice(const TileRows& rows, int column0, int columns,
                                    float (&to)[kSlice][kPitch]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int c = i % 4 * 8 + lane % 8;
      const int r = (warp + i / 4 * 8) * 4 + lane / 8;
      to[c][r] = rows.at(r, column0 + c, columns);
    }
  }
  // sums[i][j] = outer row . inner row.
  __device__ void multiply(const TileRows& queries, const TileRows& keys, int columns,
                           float (&sums)[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] = 0;
    for (int column = 0; column < columns; column += kSlice) {
      __syncthreads();
      load_slice(kKeysAreOuter ? keys : queries, column, columns, shared.a);
      load_slice(kKeysAreOuter ? queries : keys, column, columns, shared.b);
      __syncthreads();
#pragma unroll 8
      for (int c = 0; c < kSlice; ++c) {
        const float4 a4 = *reinterpret_cast<const float4*>(&shared.a[c][4 * ty]);
        const float4 b4 = *reinterpret_cast<const float4*>(&shared.b[c][4 * tx]);
        const float a[4] = {a4.x, a4.y, a4.z, a4.w}, b_[4] = {b4.x, b4.y, b4.z, b4.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] = __fmaf_rn(a[i], b_[j], sums[i][j]);
      }
    }
  }

  // What is known of the tile's queries. False: none of them sees one of the keys.
  __device__ bool load_queries() {
    __syncthreads();
    bool any = false;
    if (threadIdx.x < kTile) {
      const int query = query0 + static_cast<int>(threadIdx.x);
      RowFacts facts{kInfinity, 0};
      SeenKeys seen;
      if (query < job.call.queries) {
        facts = job.facts_of(b, head)[query];
        seen = job.call.key_range(b, query);
      }
      shared.facts[threadIdx.x] = facts;
      shared.seen[threadIdx.x] = seen;
      any = max(seen.begin, key0) < min(seen.end, key0 + kTile);
    }
    return __syncthreads_or(any) != 0;
  }

  // Exponentials; with kGradients those of the logits, times the slope of the soft cap if
  // `of_products`.
  template <bool kGradients>
  __device__ void make_weights(bool of_products, float (&w)[4][4]) {
    multiply(of_queries(job.call.q), of_keys(job.call.k), job.call.depth, w);
    float d_p[4][4];
    if (kGradients) multiply(of_queries(job.d_out), of_keys(job.call.v), job.call.value_depth, d_p);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int outer = 4 * ty + i, inner = 4 * tx + j;
        const int query = kKeysAreOuter ? inner : outer;
        const int key = key0 + (kKeysAreOuter ? outer : inner);
        const SeenKeys seen = shared.seen[query];
        if (key < seen.begin || key >= seen.end) {
          w[i][j] = 0;
          continue;
        }
        const AttentionRows& mask = job.call.mask;
        const Logit logit =
            logit_of(job, w[i][j], mask.at(b, head, query0 + query) + key * mask.column);
        const RowFacts facts = shared.facts[query];
        const float p = weight_of(logit.t, facts.lse);
        w[i][j] = p;
        if (kGradients && p != 0) {
          w[i][j] = p * (d_p[i][j] - facts.delta);
          if (of_products) w[i][j] *= logit.slope;
        }
      }
  }
};

// Up to 128 columns of a gradient of 64 outer rows.
template <bool kKeysAreOuter>
struct AnyGradient {
  AnyPair<kKeysAreOuter> pair;
  AnyShared& shared;
  const AttentionRows* x;  // what inner rows bring: d_out for d_v, q for d_k, k for d_q
  int column0, columns;
  bool of_values;  // d_v
  float sums[4][8];

  __device__ AnyGradient(const BackwardJob& job, AnyShared& s) : pair(job, s), shared(s) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = 0;
  }

  template <bool kSkip>
  __device__ void add_slice(int row0) {
#pragma unroll 4
    for (int r = 0; r < kSlice; ++r) {
      const float4 w4 = *reinterpret_cast<const float4*>(&shared.weights[row0 + r][4 * pair.ty]);
      const float4 low = *reinterpret_cast<const float4*>(&shared.x[r][4 * pair.tx]);
      const float4 high = *reinterpret_cast<const float4*>(&shared.x[r][64 + 4 * pair.tx]);
      const float w[4] = {w4.x, w4.y, w4.z, w4.w};
      const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          if (!kSkip || w[i] != 0) sums[i][j] = __fmaf_rn(w[i], v[j], sums[i][j]);
    }
  }

  __device__ void add_tile() {
    if (!pair.load_queries()) return;
    float w[4][4];
    if (of_values)
      pair.template make_weights<false>(true, w);
    else
      pair.template make_weights<true>(true, w);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      *reinterpret_cast<float4*>(&shared.weights[4 * pair.tx + j][4 * pair.ty]) =
          make_float4(w[0][j], w[1][j], w[2][j], w[3][j]);
    const TileRows rows = kKeysAreOuter ? pair.of_queries(*x) : pair.of_keys(*x);
    for (int row0 = 0; row0 < kTile; row0 += kSlice) {
      __syncthreads();
      bool odd = false;
      for (int i = threadIdx.x; i < kSlice * kAnyColumns; i += kAnyThreads) {
        const int r = i / kAnyColumns, c = i % kAnyColumns;
        const float v = rows.at(row0 + r, column0 + c, columns);
        odd |= fabsf(v) == kInfinity || v != v;
        shared.x[r][c] = v;
      }
      if (__syncthreads_or(odd))
        add_slice<true>(row0);
      else
        add_slice<false>(row0);
    }
  }

  __device__ void store(const AttentionRows& to, int head, int row0, int rows, float factor) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = row0 + 4 * pair.ty + i;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int c = column0 + j / 4 * 64 + 4 * pair.tx + j % 4;
        if (row < rows && c < columns)
          cuda::store_float(to.at(pair.b, head, row) + c * to.column, to.dtype,
                            sums[i][j] * factor);
      }
    }
  }
};

// Columns of d_k or d_v of a tile of keys.
__device__ inline void any_keys(const BackwardJob& job, int64_t block, AnyShared& shared) {
  const AttentionCall& c = job.call;
  const int k_parts = any_parts(c.depth), parts = k_parts + any_parts(c.value_depth);
  const int part = static_cast<int>(block % parts);
  const int tiles = job.key_tiles(), tile_of_all = static_cast<int>(block / parts);
  const int tile = tile_of_all % tiles, head = tile_of_all / tiles;
  AnyGradient<true> g(job, shared);
  g.of_values = part >= k_parts;
  g.x = g.of_values ? &job.d_out : &c.q;
  g.column0 = (part - (g.of_values ? k_parts : 0)) * kAnyColumns;
  g.columns = g.of_values ? c.value_depth : c.depth;
  g.pair.b = head / c.key_heads;
  g.pair.key_head = head % c.key_heads;
  g.pair.key0 = tile * kTile;
  const SeenKeys run = c.query_range(g.pair.b, g.pair.key0, min(c.keys, g.pair.key0 + kTile));
  for (int i = 0; i < c.group; ++i) {
    g.pair.head = g.pair.key_head * c.group + i;
    for (g.pair.query0 = run.begin / kTile * kTile; g.pair.query0 < run.end; g.pair.query0 += kTile)
      g.add_tile();
  }
  g.store(g.of_values ? job.d_v : job.d_k, g.pair.key_head, g.pair.key0, c.keys,
          g.of_values ? 1 : c.scale);
}
// Has a fast kernel left them?
__device__ inline bool keys_are_left(const BackwardJob& job, int64_t block) {
  const int k_parts = any_parts(job.call.depth), parts = k_parts + any_parts(job.call.value_depth);
  return (block % parts >= k_parts ? job.redo_v : job.redo_k)[block / parts] != 0;
}

// Columns of d_q of a tile of queries.
__device__ inline void any_queries(const BackwardJob& job, int64_t block, AnyShared& shared) {
  const AttentionCall& c = job.call;
  const int parts = any_parts(c.depth), tiles = job.query_tiles();
  const int tile_of_all = static_cast<int>(block / parts);
  AnyGradient<false> g(job, shared);
  g.of_values = false;
  g.x = &c.k;
  g.column0 = static_cast<int>(block % parts) * kAnyColumns;
  g.columns = c.depth;
  const int head = tile_of_all / tiles;
  g.pair.b = head / c.heads;
  g.pair.head = head % c.heads;
  g.pair.key_head = g.pair.head / c.group;
  g.pair.query0 = tile_of_all % tiles * kTile;
  for (g.pair.key0 = 0; g.pair.key0 < c.keys; g.pair.key0 += kTile) g.add_tile();
  g.store(job.d_q, g.pair.head, g.pair.query0, c.queries, c.scale);
}
__device__ inline bool queries_are_left(const BackwardJob& job, int64_t block) {
  return job.redo_q[block / any_parts(job.call.depth)] != 0;
}

// make(i) for 0 <= i < count with is_left(i), by any number of blocks, each of which looks at as many
// at once as it has threads.
template <class IsLeft, class Make>
__device__ inline void for_left(int64_t count, IsLeft is_left, Make make) {
  for (int64_t first = blockIdx.x; first < count; first += int64_t{gridDim.x} * kAnyThreads) {
    const int64_t own = first + int64_t{threadIdx.x} * gridDim.x;
    if (!__syncthreads_or(own < count && is_left(own))) continue;
    for (int i = 0; i < kAnyThreads; ++i) {
      const int64_t block = first + int64_t{i} * gridDim.x;
      if (block < count && is_left(block)) make(block);
    }
  }
}
__device__ inline void make_left(const BackwardJob& job, AnyShared& shared) {
  for_left(
      any_blocks_of_keys(job), [&](int64_t i) { return keys_are_left(job, i); },
      [&](int64_t i) { any_keys(job, i, shared); });
  for_left(
      any_blocks_of_queries(job), [&](int64_t i) { return queries_are_left(job, i); },
      [&](int64_t i) { any_queries(job, i, shared); });
}

#endif  // __CUDACC__

}  // namespace pestle::ops::attention_backward
