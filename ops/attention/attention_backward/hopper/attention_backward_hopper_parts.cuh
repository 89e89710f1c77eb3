// What Hopper's kernels of attention's gradients share, the one for heads of up to 128 columns and
// the one for wider heads: the job, its order, the loader, and what a consumer does with its 64 keys.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/device/ptx/bulk_reduce.cuh"
#include "backends/cuda/device/ptx/wgmma_registers.cuh"
#include "ops/attention/attention_backward/attention_backward_job.cuh"
#include "ops/attention/attention_backward/hopper/attention_backward_hopper_packed.cuh"
#include "ops/attention/sm90/attention_hopper.h"
#include "ops/attention/sm90/attention_hopper_mask.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

using cuda::BoxedRows;
using cuda::attention_hopper::LogitRule;
using cuda::hopper::WgmmaType;

constexpr int kConsumers = 2, kConsumerKeys = 64;  // the latter is a consumer's product's rows
constexpr int kStages = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kSumsOfPart = 64 * 64;  // floats of d_q: 64 queries, 64 columns
template <class C>
constexpr int kSumsOfKeys = kSumsOfPart * C::kPieces;  // of d_k, as of d_v: 64 keys
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

// Shared memory of a kernel of configuration C.
template <class C, bool kWide = C::kWide>
struct Memory;

// The same configuration for packed sequences.
template <class C>
struct Packed : C {
  static constexpr bool kPacked = true;
};

struct Job {
  BackwardJob base;
  BoxedRows q, k, v, d_out;
  uint32_t* ticket = nullptr;
  uint32_t* largest = nullptr;  // |d_out|'s bits, [B, Hk]; f16 alone
  // Tiles of keys that have added to d_q's sums: [B, Hq, query_tiles], in the wide kernel by each
  // consumer.
  uint32_t* counts = nullptr;
  float* sums = nullptr;  // [B, Hq, query_tiles][part][float4 as in Memory::d_q]
  int key_tiles = 0, query_tiles = 0;
  // A block takes one of `parts` of the heads of q that share one of k. Of several parts d_k and d_v
  // are added up in f32: [B, Hk, 2 key_tiles][d_v, d_k][64 columns][float4 as in Memory::d_q],
  // and counted: [B, Hk, 2 key_tiles].
  int parts = 1;
  float* key_sums = nullptr;
  uint32_t* key_counts = nullptr;
  int section = 1;  // parts that go through their tiles together
  bool deterministic = true;
  LogitRule rule;  // with a mask or a soft cap
  bool mask_in_eights = false;
};

#if PESTLE_HOPPER
using namespace cuda::hopper;

// A tile of keys, and the tiles of queries that see one of them.
struct Work {
  int batch, key_head, key0, tile;
  int part, head0, end_head;  // of the heads of q that share the keys
  int length, place0;         // keys that count; the place of query 0 among them, unless packed
  int first, end;             // tiles of queries
  bool ordered;               // packed sequences are, so d_q can be added up by turns
};

template <class C>
__device__ inline Work work_at(KeyRuns<C::kPacked, C::kKeys>& runs, const Job& job, int index) {
  const AttentionCall& c = job.base.call;
  // Sections of parts of heads; in each, all parts' first tiles, then all parts' second ones.
  const int parts = c.batches * c.key_heads * job.parts, a_section = job.section * job.key_tiles;
  const int first = index / a_section * job.section, rest = index % a_section;
  const int here = min(job.section, parts - first), at = first + rest % here;
  Work w;
  w.tile = rest / here;
  w.part = at % job.parts;
  w.batch = at / job.parts / c.key_heads;
  w.key_head = at / job.parts % c.key_heads;
  const int of_part = c.group / job.parts;
  w.head0 = w.key_head * c.group + w.part * of_part;
  w.end_head = w.head0 + of_part;
  w.key0 = w.tile * C::kKeys;
  if constexpr (C::kPacked) {
    const PackedTile t = find_queries(runs, c, w.key0);
    w.length = t.end_key;
    w.first = t.queries.begin / C::kQueries;
    w.end = (t.queries.end + C::kQueries - 1) / C::kQueries;
    w.ordered = t.ordered;
    return w;
  }
  w.length = c.key_lengths.present() ? c.key_lengths.integer(w.batch, c.keys) : c.keys;
  w.place0 = c.bottom_right ? w.length - c.queries : 0;
  const SeenKeys run = c.query_range(w.batch, w.key0, min(c.keys, w.key0 + C::kKeys));
  w.first = run.begin / C::kQueries;
  w.end = run.begin < run.end ? (run.end + C::kQueries - 1) / C::kQueries : w.first;
  return w;
}

// The next block's work, for all threads; init() makes its barriers ready, by one.
template <class C, class Init>
__device__ Work take_work(Memory<C>& m, const Job& job, const Init& init) {
  if (threadIdx.x == 0) {
    init();
    m.ticket = static_cast<int>(atomicAdd(job.ticket, 1));
  }
  __syncthreads();
  return work_at<C>(m.runs, job, m.ticket);
}

// What every role goes through, in this order: f(head of q, tile of queries).
template <class F>
__device__ inline void for_steps(const Work& w, F f) {
  for (int head = w.head0; head < w.end_head; ++head)
    for (int tile = w.end - 1; tile >= w.first; --tile) f(head, tile);
}

// The n-th use of a ring of kSlots barriers: which, and the parity that its n-th phase ends with.
template <int kSlots>
__device__ inline int slot_of(int n) {
  return n % kSlots;
}
template <int kSlots>
__device__ inline uint32_t parity_of(int n) {
  return n / kSlots & 1;
}

// Tiles of keys below `w.tile` that add to a tile of queries. Those are from the one that holds the
// first key that the tile's first query sees: both ends of what a query sees ascend with it.
template <class C>
__device__ inline uint32_t earlier_tiles(const Job& job, const Work& w, int tile,
                                         FirstKeyOfQuery& first_key) {
  const AttentionCall& c = job.base.call;
  const int first = C::kPacked ? first_key(c, tile * C::kQueries)
                               : max(0, w.place0 + tile * C::kQueries - c.left);
  return static_cast<uint32_t>(w.tile - first / C::kKeys);
}

// ---- the loader: a warp ----------------------------------------------------------------------

template <class C>
struct Loader {
  Memory<C>& m;
  const Job& job;
  const AttentionCall& c;
  const int lane = static_cast<int>(threadIdx.x % 32);
  int n = 0;  // steps

  __device__ Loader(Memory<C>& memory, const Job& j) : m(memory), job(j), c(j.base.call) {}

  template <int kBytes, int kPieces>
  __device__ static void load(char (&to)[kPieces][kBytes], const BoxedRows& from, uint64_t* barrier,
                              int row, int batch, int head) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      load_box(to[i], &from.map, barrier, i * 64, row, head + batch * from.batch_heads);
  }
  __device__ void load_keys(const Work& w) {
    if (lane != 0) return;
    arrive_expecting(&m.keys_full, sizeof(m.k) + sizeof(m.v));
    load(m.k, job.k, &m.keys_full, w.key0, w.batch, w.key_head);
    load(m.v, job.v, &m.keys_full, w.key0, w.batch, w.key_head);
  }
  // Queries behind the last one: their lse makes p 0.
  __device__ void load_facts(int batch, int head, int query0, int stage) {
    const RowFacts* facts = job.base.facts_of(batch, head);
#pragma unroll
    for (int i = lane; i < C::kQueries; i += 32) {
      RowFacts f{kInfinity, 0};
      if (query0 + i < c.queries) f = facts[query0 + i];
      m.lse[stage][i] = f.lse;
      m.delta[stage][i] = f.delta;
    }
  }
  __device__ void load_d_out(const Work& w, int head, int query0, int stage, uint32_t parity) {
    wait(&m.d_out_empty[stage], parity);
    arrive_expecting(&m.d_out_full[stage], sizeof(m.d_out[stage]));
    load(m.d_out[stage], job.d_out, &m.d_out_full[stage], query0, w.batch, head);
  }
  __device__ void step(const Work& w, int head, int tile) {
    const int stage = slot_of<kStages>(n), query0 = tile * C::kQueries;
    const uint32_t parity = parity_of<kStages>(n++) ^ 1;  // of the phase before: passes at first
    wait(&m.q_empty[stage], parity);
    load_facts(w.batch, head, query0, stage);
    __syncwarp();  // the facts of all lanes lie before lane 0's arrival
    if (lane != 0) return;
    arrive_expecting(&m.q_full[stage], sizeof(m.q[stage]));
    load(m.q[stage], job.q, &m.q_full[stage], query0, w.batch, head);
    if constexpr (C::kOutStages == kStages)
      load_d_out(w, head, query0, stage, parity);
    else
      load_d_out(w, head, query0, 0, parity_of<1>(n - 1) ^ 1);
  }
  __device__ void run(const Work& w) {
    if (w.first < w.end) load_keys(w);
    for_steps(w, [&](int head, int tile) {
      step(w, head, tile);
      __syncwarp();
    });
  }
};

// ---- a consumer: a warpgroup -----------------------------------------------------------------

// A power of two that brings ds of f16 into the middle of its range: |dp| is at most the sum of
// |d_out| |v|, and some 2^4 of the largest d_out where v is about 1.
__device__ inline float power_of(const Job& job, int batch, int key_head) {
  const uint32_t bits = job.largest[int64_t{batch} * job.base.call.key_heads + key_head];
  const int exponent = bits == 0 ? 0 : min(max(127 + 4 - static_cast<int>(bits >> 23), -100), 100);
  return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}

template <class C>
__device__ inline uint32_t pack(float low, float high) {
  if constexpr (C::kF16) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// Rows of a consumer's products are its 64 keys; so are those of its sums.
template <class C>
struct KeyRows {
  using M = Memory<C>;
  static constexpr int kEights = C::kQueries / 8, kUnits = C::kQueries / 16;
  static constexpr float kWeightScale = C::kF16 ? 16 : 1;
  static constexpr int k16Rows = 16 * 128 >> 4;  // of a descriptor: 16 rows of 128 bytes

  M& m;
  const Job& job;
  const AttentionCall& c;
  const int consumer;  // which 64 of the block's keys
  int lane = static_cast<int>(threadIdx.x % 32);
  int warp = static_cast<int>(threadIdx.x % 128 / 32);  // of the warpgroup
  int n = 0;                                            // steps

  __device__ KeyRows(M& memory, const Job& j, int which)
      : m(memory), job(j), c(j.base.call), consumer(which) {}

  // By each warp.
  __device__ void release(uint64_t* barrier) const { arrive_if(barrier, lane == 0); }
  __device__ int first_key(const Work& w) const { return w.key0 + consumer * kConsumerKeys; }

  // ---- products ----

  // to = own keys . queries, both along the columns: 16 columns are 32 bytes of each row.
  template <int kColumns>
  __device__ void start_products(float (&to)[C::kQueries / 2], const char* keys,
                                 const char* queries) const {
    const uint64_t a = describe<true>(keys + consumer * kConsumerKeys * 128, 0);
    const uint64_t b = describe<true>(queries, 0);
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i)
      multiply<C::kWgmma, C::kQueries, true, true>(to, a + i / 4 * (M::kKeyPiece >> 4) + i % 4 * 2,
                                                   b + i / 4 * (M::kQueryPiece >> 4) + i % 4 * 2,
                                                   i > 0);
    commit_wgmma();
  }
  // to += of . rows: `of` [own keys, queries] in registers, rows [queries, columns] across queries.
  template <int kCount>
  __device__ void start_sums(float (&to)[kCount], const uint32_t (&of)[kUnits][4],
                             const char* rows) const {
    const uint64_t b = describe<false>(rows, M::kQueryPiece);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      multiply_across<C::kWgmma, 2 * kCount>(to, of[i], b + i * k16Rows, 1);
    commit_wgmma();
  }
  // ---- weights ----

  __device__ bool sees_all(const Work& w, int query0) const {
    if constexpr (C::kPacked) {
      const SeenKeys* const own = m.runs.of + consumer * kConsumerKeys;
      return own[kConsumerKeys - 1].begin <= query0 && own[0].end >= query0 + C::kQueries;
    }
    const int first = first_key(w), last = first + kConsumerKeys - 1;
    return last < w.length && last - c.right - w.place0 <= query0 &&
           first + c.left - w.place0 >= query0 + C::kQueries - 1;
  }
  // `by` where the query does not see the key.
  __device__ void hide(const Work& w, int query0, float (&values)[C::kQueries / 2],
                       float by = 0) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = first_key(w) + warp * 16 + lane / 4 + 8 * h;
      int begin, end;  // of this thread's queries that see it
      if constexpr (C::kPacked) {
        const SeenKeys run = m.runs.of[key - w.key0];
        const int before = query0 + lane % 4 * 2;
        begin = run.begin - before;
        end = run.end - before;
      } else {
        const int before = w.place0 + query0 + lane % 4 * 2;
        begin = key - c.right - before;
        end = key < w.length ? key + c.left - before + 1 : INT_MIN;
      }
#pragma unroll
      for (int i = 0; i < kEights; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = i * 8 + e;
          float& value = values[4 * i + 2 * h + e];
          value = at >= begin && at < end ? value : by;
        }
    }
  }
  __device__ static float (&unit_of(float (&of)[C::kQueries / 2], int i))[8] {
    return reinterpret_cast<float(&)[8]>(of[8 * i]);
  }
  // f(element of a unit's eight, its query's fact).
  template <class F>
  __device__ void for_facts(const float (&facts)[C::kQueries], int unit, F f) const {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 of =
          *reinterpret_cast<const float2*>(facts + unit * 16 + eight * 8 + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) f(4 * eight + e, e % 2 == 0 ? of.x : of.y);
    }
  }
  // s to p.
  __device__ void make_weights(float (&s)[C::kQueries / 2], int stage) const {
    const float* const lse = m.lse[stage] + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float2 of = *reinterpret_cast<const float2*>(lse + i * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[4 * i + e] =
            bounded_exp2(__fmaf_rn(s[4 * i + e], job.base.factor, e % 2 == 0 ? -of.x : -of.y));
    }
  }
  // ---- shared memory ----

  // Where a lane's row of the four matrices of 8 keys x 8 elements lies that are 16 keys of a warp
  // and elements 16 i and on: first the upper keys, then the lower, then both of the next eight. Its
  // 16 bytes are swizzled by the row, as the copy engine and wgmma do.
  template <int kPieces>
  __device__ uint32_t matrix_row(const char (&pieces)[kPieces][M::kKeyPiece], int i) const {
    const int row = consumer * kConsumerKeys + warp * 16 + lane / 8 % 2 * 8 + lane % 8;
    const int unit = 2 * i + lane / 16;
    return shared_address(pieces[i / 4]) + row * 128 + ((unit % 8) ^ (row % 8)) * 16;
  }

  // ---- results ----

  template <int kCount>
  __device__ static bool is_finite(const float (&sums)[kCount]) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) zero = __fmaf_rn(sums[i], 0.0f, zero);
    return zero == 0;
  }
  // Own keys' rows of d_k or d_v, through own keys' rows of pieces of shared memory, which nobody
  // reads any more when the warpgroup has met at its barrier: a warp has 16 rows, so warps need not
  // meet again.
  template <int kCount, int kPieces>
  __device__ void store(const Work& w, const float (&sums)[kCount],
                        char (&through)[kPieces][M::kKeyPiece], int barrier,
                        const AttentionRows& to, int columns, float by, int* redo) const {
    const int key0 = first_key(w);
    if (key0 >= c.keys) return;
    const bool wrong = any_thread(barrier, 128, !is_finite(sums));
    const int64_t head = int64_t{w.batch} * c.key_heads + w.key_head;
    if (threadIdx.x % 128 == 0) redo[head * ((c.keys + kTile - 1) / kTile) + key0 / kTile] = wrong;
    if (wrong) return;
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
      const float* const f = sums + 8 * i;
      store_matrices(matrix_row(through, i), pack<C>(f[0] * by, f[1] * by),
                     pack<C>(f[2] * by, f[3] * by), pack<C>(f[4] * by, f[5] * by),
                     pack<C>(f[6] * by, f[7] * by));
    }
    __syncwarp();
    constexpr int kOfRow = kCount / 4, kRowsAtOnce = 32 / kOfRow;  // of 16 bytes
    const int unit = lane % kOfRow;
    const bool spare = 32 % kOfRow != 0 && lane >= kOfRow * kRowsAtOnce;
#pragma unroll 4
    for (int i = lane / kOfRow; i < 16; i += kRowsAtOnce) {
      const int row = warp * 16 + i, in_block = consumer * kConsumerKeys + row;
      if (key0 + row >= c.keys || unit * 8 >= columns || spare) continue;
      const char* const from =
          through[unit / 8] + in_block * 128 + ((unit % 8) ^ (in_block % 8)) * 16;
      *reinterpret_cast<uint4*>(to.at(w.batch, w.key_head, key0 + row) + unit * 16) =
          *reinterpret_cast<const uint4*>(from);
    }
    __syncwarp();  // the next gradient goes the same way
  }
};

#endif  // PESTLE_HOPPER

}  // namespace pestle::ops::attention_backward::backward_hopper
