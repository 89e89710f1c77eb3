// Gradients of attention of bf16 and f16 on Hopper: wgmma and the tensor copy engine, for heads of up
// to 128 columns. Packed sequences: attention_backward_hopper_packed.cuh.
//
// Map      A block holds 128 keys of one head of k, two consumer warpgroups 64 of them each, and goes
//          over the tiles of 64 queries (128 where heads have up to 64 columns) that see one of them,
//          of all heads that share the keys, the last tile first. A consumer's products are
//            s  [keys, queries] = k . q        dp [keys, queries] = v . d_out
//            d_v[keys, columns] += p . d_out   d_k[keys, columns] += ds . q
//          with p = e^(s - lse) and ds = p (dp - delta) in registers: the sums of one product are the
//          register operand of the next. ds also goes to shared memory, from where both consumers
//          make half each of d_q[queries, columns] = ds . k over all 128 keys. More warps: the loader
//          (copies by the tensor copy engine, a ring of two stages) and two writers (add d_q to f32
//          sums in the workspace, 16 KiB a bulk copy). Where there is a mask, one writer and two warps
//          that load it (attention_backward_hopper_mask.cuh). Another kernel rounds the sums
//          (attention_backward_hopper_round.cuh), those of d_k and d_v too where blocks divide the
//          heads that share keys.
// Order    Blocks take tickets; keys ascend with them. deterministic: a writer adds to a tile of
//          queries when all tiles of keys below its own have added to it, which a count a tile tells.
//          They have lower tickets, so they run or are done: no block waits for one that can't start.
//          Else tiles are added as they come. A turn takes some 2.8 us, longer than a tile: to see the
//          count, to add, to tell. Two writers hide that. Blocks of a head that run at once follow
//          each other at that distance, so tickets go round as many heads as there may be.
// Traffic  q and d_out once for each 128 keys, d_q's sums read and written as often, in the L2, which
//          holds those of the heads that are worked on at once.
// Numerics f32 sums; p and ds rounded to q's dtype. Of f16 p is taken 2^4 times, ds by a power of two
//          that the largest d_out of a head of k gives. With a soft cap s becomes its tanh, which the
//          slope needs: exponentials follow when dp is there and has been taken times the slope.
// Numbers  As in attention_backward_tiles.cuh: what is not finite marks its 64 keys (queries) for the
//          slow kernel. Keys behind the last that counts are made 0: memory there may hold anything.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/device/ptx/bulk_reduce.cuh"
#include "backends/cuda/device/ptx/wgmma_registers.cuh"
#include "ops/attention/attention_backward/attention_backward_hopper_mask.cuh"
#include "ops/attention/attention_backward/attention_backward_hopper_packed.cuh"
#include "ops/attention/attention_backward/attention_backward_job.cuh"
#include "ops/attention/sm90/attention_hopper.h"

namespace pestle::ops::attention_backward::backward_hopper {

using cuda::BoxedRows;
using cuda::hopper::WgmmaType;

constexpr int kKeys = 128;  // of a block
constexpr int kConsumers = 2, kConsumerKeys = kKeys / kConsumers;
constexpr int kStages = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kSumsOfConsumer = 64 * 64;  // floats of d_q that a consumer makes of a tile
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

template <WgmmaType kOf, int kColumnsOf, MaskKind kMaskOf = MaskKind::kNone, bool kCappedOf = false>
struct Config {
  static constexpr WgmmaType kWgmma = kOf;
  static constexpr MaskKind kMask = kMaskOf;  // not kElements
  static constexpr bool kHides = kMask == MaskKind::kBool;
  static constexpr bool kAdds = kMask == MaskKind::kBf16 || kMask == MaskKind::kF16;
  static constexpr bool kMasked = kHides || kAdds, kCapped = kCappedOf;
  static constexpr bool kPacked = false;
  static constexpr bool kF16 = kOf == WgmmaType::kF16;
  static constexpr int kColumns = kColumnsOf;  // of q, k, v at most
  static constexpr int kPieces = kColumns / 64;
  static constexpr int kQueries = 128 / kPieces;  // of a tile
  static constexpr int kChunks = kQueries / 64;
  // Steps take turns with them, so that one's way to the L2 and back is hidden behind the other's.
  // Masks leave neither a warp nor shared memory for a second one.
  static constexpr int kWriters = kMasked ? 1 : 2;
};

// The same for packed sequences.
template <class C>
struct Packed : C {
  static constexpr bool kPacked = true;
  static constexpr int kWriters =
      C::kChunks == 1 ? 2 : 1;  // 128 queries leave no room for the runs
};

template <class C>
constexpr int kSumsOfKeys = 64 * C::kColumns;  // floats of d_k, as of d_v, that a consumer makes

// Tiles as wgmma wants them: 64 columns, all rows, in rows of 128 bytes (swizzled) are a piece.
template <class C>
struct Memory {
  static constexpr int kKeyPiece = kKeys * 128, kQueryPiece = C::kQueries * 128;
  char k[C::kPieces][kKeyPiece], v[C::kPieces][kKeyPiece];
  char q[kStages][C::kPieces][kQueryPiece], d_out[kStages][C::kPieces][kQueryPiece];
  // ds of 64 queries each: rows are keys. Written in one step while the last one's may be read.
  char gradients[2][C::kChunks][kKeyPiece];
  // What a consumer hands to a writer: float4 [eight of columns][thread], as in the workspace.
  float4 d_q[C::kWriters][kConsumers][kSumsOfConsumer / 4];
  float lse[kStages][C::kQueries], delta[kStages][C::kQueries];  // they come with q
  uint64_t keys_full;                                            // k and v are there
  uint64_t q_full[kStages], q_empty[kStages], d_out_full[kStages], d_out_empty[kStages];
  uint64_t d_q_full[C::kWriters][kConsumers], d_q_empty[C::kWriters][kConsumers];
  int ticket;
  MaskSlots<C::kMasked> mask;
  KeyRuns<C::kPacked, kKeys> runs;
};

struct Job {
  BackwardJob base;
  BoxedRows q, k, v, d_out;
  uint32_t* ticket = nullptr;
  uint32_t* largest = nullptr;  // |d_out|'s bits, [B, Hk]; f16 alone
  uint32_t* counts = nullptr;   // tiles of keys that have added to d_q's sums: [B, Hq, query_tiles]
  float* sums = nullptr;        // [B, Hq, query_tiles][consumer][float4 as in Memory::d_q]
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
  int part, head0, end_head;  // of the group of heads of q
  int length, place0;         // keys that count; the place of query 0 among them, unless packed
  int first, end;             // tiles of queries
  bool ordered;               // packed sequences are, so d_q can be added up by turns
};

template <class C>
__device__ inline Work work_at(Memory<C>& m, const Job& job, int index) {
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
  w.key0 = w.tile * kKeys;
  if constexpr (C::kPacked) {
    const PackedTile t = find_queries(m.runs, c, w.key0);
    w.length = t.end_key;
    w.first = t.queries.begin / C::kQueries;
    w.end = (t.queries.end + C::kQueries - 1) / C::kQueries;
    w.ordered = t.ordered;
    return w;
  }
  w.length = c.key_lengths.present() ? c.key_lengths.integer(w.batch, c.keys) : c.keys;
  w.place0 = c.bottom_right ? w.length - c.queries : 0;
  const SeenKeys run = c.query_range(w.batch, w.key0, min(c.keys, w.key0 + kKeys));
  w.first = run.begin / C::kQueries;
  w.end = run.begin < run.end ? (run.end + C::kQueries - 1) / C::kQueries : w.first;
  return w;
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
  __device__ void step(const Work& w, int head, int tile) {
    const int stage = slot_of<kStages>(n), query0 = tile * C::kQueries;
    const uint32_t parity = parity_of<kStages>(n++) ^ 1;  // of the phase before: passes at first
    wait(&m.q_empty[stage], parity);
    load_facts(w.batch, head, query0, stage);
    __syncwarp();  // the facts of all lanes lie before lane 0's arrival
    if (lane != 0) return;
    arrive_expecting(&m.q_full[stage], sizeof(m.q[stage]));
    load(m.q[stage], job.q, &m.q_full[stage], query0, w.batch, head);
    wait(&m.d_out_empty[stage], parity);
    arrive_expecting(&m.d_out_full[stage], sizeof(m.d_out[stage]));
    load(m.d_out[stage], job.d_out, &m.d_out_full[stage], query0, w.batch, head);
  }
  __device__ void run(const Work& w) {
    if (w.first < w.end) load_keys(w);
    for_steps(w, [&](int head, int tile) {
      step(w, head, tile);
      __syncwarp();
    });
  }
};

// ---- the mask's loaders: two warps -----------------------------------------------------------

template <class C>
__device__ inline void load_mask(Memory<C>& m, const Job& job, const Work& w) {
  const AttentionCall& c = job.base.call;
  MaskLoader<C::kMask == MaskKind::kBool> loader{m.mask, c.mask, job.mask_in_eights, c.queries,
                                                 c.keys};
  for_steps(w, [&](int head, int tile) {
#pragma unroll 1
    for (int chunk = 0; chunk < C::kChunks; ++chunk)
      loader.load(w.batch, head, tile * C::kQueries + chunk * kMaskQueries, w.key0);
  });
  cuda::wait_for_all_copies();  // before the warp ends
}

// ---- a writer: a thread -----------------------------------------------------------------------

template <class C>
struct Writer {
  Memory<C>& m;
  const Job& job;
  const int which;            // takes the steps n with n % kWriters == which
  FirstKeyOfQuery first_key;  // of packed sequences
  int n = 0;                  // steps

  // Tiles of keys below `w.tile` that add to a tile of queries. Those are from the one that holds the
  // first key that the tile's first query sees: both ends of what a query sees ascend with it.
  __device__ uint32_t earlier(const Work& w, int tile) {
    const AttentionCall& c = job.base.call;
    const int first = C::kPacked ? first_key(c, tile * C::kQueries)
                                 : max(0, w.place0 + tile * C::kQueries - c.left);
    return static_cast<uint32_t>(w.tile - first / kKeys);
  }
  __device__ void step(const Work& w, int head, int tile) {
    const uint32_t parity = parity_of<C::kWriters>(n);
    const int64_t place = (int64_t{w.batch} * job.base.call.heads + head) * job.query_tiles + tile;
    const bool in_turns = job.deterministic && (!C::kPacked || w.ordered);
    if (in_turns) {
      wait_count(&job.counts[place], earlier(w, tile));
      fence_async_proxy_of_all();  // others' sums, before the copy engine reads them
    }
#pragma unroll
    for (int i = 0; i < kConsumers; ++i) {
      wait(&m.d_q_full[which][i], parity);
      add_floats(job.sums + (place * kConsumers + i) * kSumsOfConsumer, m.d_q[which][i],
                 sizeof(m.d_q[which][i]));
      commit_stores();
    }
    wait_stores_read<1>();
    arrive(&m.d_q_empty[which][0]);
    wait_stores_read<0>();
    arrive(&m.d_q_empty[which][1]);
    if (!in_turns) return;
    wait_stores<0>();
    fence_async_proxy_of_all();  // the sums, before the count that tells of them
    count_up(&job.counts[place]);
  }
  __device__ void run(const Work& w) {
    for_steps(w, [&](int head, int tile) {
      if (n % C::kWriters == which) step(w, head, tile);
      ++n;
    });
    wait_stores<0>();  // shared memory must outlive what reads it
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

template <class C>
struct Consumer {
  using M = Memory<C>;
  static constexpr int kEights = C::kQueries / 8, kUnits = C::kQueries / 16;
  static constexpr float kWeightScale = C::kF16 ? 16 : 1;
  static constexpr int kExchange = 1;  // the barrier of both consumers; 2 + consumer: of one
  static constexpr int k16Rows = 16 * 128 >> 4;  // of a descriptor: 16 rows of 128 bytes

  M& m;
  const Job& job;
  const AttentionCall& c;
  const int consumer;
  int lane = static_cast<int>(threadIdx.x % 32);
  int warp = static_cast<int>(threadIdx.x % 128 / 32);  // of the warpgroup
  float power = 1;                                      // of f16: ds is so many times too large
  int n = 0;                                            // steps
  // [own keys, queries]: of every eight n of queries [4 n + 2 h + e] is key 16 warp + lane / 4 + 8 h
  // and query 8 n + lane % 4 * 2 + e (wgmma.cuh); so are d_k and d_v with columns for queries.
  float s[C::kQueries / 2], dp[C::kQueries / 2];
  uint32_t weights[kUnits][4], gradients[kUnits][4];  // p and ds as the register operand
  float d_k[C::kColumns / 2], d_v[C::kColumns / 2];
  float d_q[32];  // 64 x 64: queries are rows

  __device__ Consumer(M& memory, const Job& j, int which)
      : m(memory), job(j), c(j.base.call), consumer(which) {
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i) d_k[i] = d_v[i] = 0;
  }

  // By each warp.
  __device__ void release(uint64_t* barrier) const { arrive_if(barrier, lane == 0); }
  __device__ int first_key(const Work& w) const { return w.key0 + consumer * kConsumerKeys; }

  // ---- products ----

  // to = own keys . queries, both along the columns: 16 columns are 32 bytes of each row.
  __device__ void start_products(float (&to)[C::kQueries / 2], const char* keys,
                                 const char* queries) {
    const uint64_t a = describe<true>(keys + consumer * kConsumerKeys * 128, 0);
    const uint64_t b = describe<true>(queries, 0);
#pragma unroll
    for (int i = 0; i < C::kColumns / 16; ++i)
      multiply<C::kWgmma, C::kQueries, true, true>(to, a + i / 4 * (M::kKeyPiece >> 4) + i % 4 * 2,
                                                   b + i / 4 * (M::kQueryPiece >> 4) + i % 4 * 2,
                                                   i > 0);
    commit_wgmma();
  }
  // to += of . rows: `of` [own keys, queries] in registers, rows [queries, columns] across queries.
  __device__ void start_sums(float (&to)[C::kColumns / 2], const uint32_t (&of)[kUnits][4],
                             const char* rows) {
    const uint64_t b = describe<false>(rows, M::kQueryPiece);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      multiply_across<C::kWgmma, C::kColumns>(to, of[i], b + i * k16Rows, 1);
    commit_wgmma();
  }
  // d_q = ds . k over the block's keys, both across them. Of 64 queries consumers take 64 columns
  // each, of 128 queries 64 each.
  __device__ void start_d_q(const char (&ds)[C::kChunks][M::kKeyPiece]) {
    const uint64_t a = describe<false>(ds[C::kChunks == 2 ? consumer : 0], M::kKeyPiece);
    const uint64_t b = describe<false>(m.k[C::kPieces == 2 ? consumer : 0], M::kKeyPiece);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      multiply<C::kWgmma, 64, false, false>(d_q, a + i * k16Rows, b + i * k16Rows, i > 0);
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
  // The mask of 16 queries, once for each unit in turn.
  __device__ MaskTile<16> load_mask(int unit) const {
    const int use = n * C::kChunks + unit / 4, slot = slot_of<kMaskSlots>(use);
    if (unit % 4 == 0) wait(&m.mask.full[slot], parity_of<kMaskSlots>(use));
    const int row = lane / 16 * 8 + lane % 8;  // of 16, for ldmatrix
    const int keys = consumer * (kConsumerKeys / 8) + warp * 2 + lane / 8 % 2;
    MaskTile<16> tile;
    auto& pairs = tile.pairs;
    cuda::warp::load_fragments<true>(shared_address(m.mask.elements[slot]) +
                                         MaskSlots<true>::place_of(row, keys) +
                                         unit % 4 * 16 * kMaskRowBytes,
                                     pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]);
    if (unit % 4 == 3) {
      __syncwarp();  // all lanes have read
      release(&m.mask.empty[slot]);
    }
    return tile;
  }
  // A unit's products, with a soft cap its tanh, to logits as the forward makes them.
  __device__ void add_mask(float (&t)[8], int unit) const {
    const auto add = [outer = job.rule.outer](float of, float by) { return fmaf(of, outer, by); };
    if constexpr (C::kMask == MaskKind::kBf16) load_mask(unit).for_bf16(t, add);
    if constexpr (C::kMask == MaskKind::kF16) load_mask(unit).for_f16(t, add);
  }
  // s to p.
  __device__ void make_weights(int stage) {
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
  // The same under a mask of floats.
  __device__ void make_masked_weights(int stage) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float(&t)[8] = unit_of(s, i);
      add_mask(t, i);
      for_facts(m.lse[stage], i, [&](int e, float lse) {
        t[e] = bounded_exp2(__fmaf_rn(t[e], job.rule.unit, -lse));
      });
    }
  }
  // p and dp to ds.
  __device__ void make_gradients(int stage) {
    const float* const delta = m.delta[stage] + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float2 of = *reinterpret_cast<const float2*>(delta + i * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& d = dp[4 * i + e];
        d = s[4 * i + e] * (d - (e % 2 == 0 ? of.x : of.y));
        if constexpr (C::kF16) d *= power;
      }
    }
  }
  // With a soft cap: its tanh and dp to p and ds, packed. Where p is 0 the slope may be anything.
  __device__ void make_capped(int stage) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float(&t)[8] = unit_of(s, i);
      float(&d)[8] = unit_of(dp, i);
      float slope[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) slope[e] = __fmaf_rn(-t[e], t[e], 1.0f);
      if constexpr (C::kAdds) add_mask(t, i);
      for_facts(m.delta[stage], i, [&](int e, float delta) { d[e] = (d[e] - delta) * slope[e]; });
      for_facts(m.lse[stage], i, [&](int e, float lse) {
        t[e] = bounded_exp2(__fmaf_rn(t[e], job.rule.unit, -lse));
        d[e] = t[e] == 0 ? 0 : t[e] * d[e];
        if constexpr (C::kF16) d[e] *= power;
      });
      pack_unit(i);
    }
  }
  // p and ds as operands.
  __device__ void pack_unit(int i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = 8 * i + 2 * j;
      weights[i][j] = pack<C>(s[at] * kWeightScale, s[at + 1] * kWeightScale);
      gradients[i][j] = pack<C>(dp[at], dp[at + 1]);
    }
  }
  // What a boolean mask hides becomes 0 in both, whatever it is.
  __device__ void hide_masked() {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const MaskTile<16> mask = load_mask(i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        weights[i][j] &= mask.pairs[j / 2][j % 2];
        gradients[i][j] &= mask.pairs[j / 2][j % 2];
      }
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
  __device__ void share_gradients(const char (&to)[C::kChunks][M::kKeyPiece]) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      store_matrices(matrix_row(to, i), gradients[i][0], gradients[i][1], gradients[i][2],
                     gradients[i][3]);
    fence_async_proxy();  // before wgmma reads them
  }
  // To the step's writer, when it has read what it was handed last.
  __device__ void hand_over() const {
    const int writer = slot_of<C::kWriters>(n);
    wait(&m.d_q_empty[writer][consumer], parity_of<C::kWriters>(n) ^ 1);
    float4* const to = m.d_q[writer][consumer] + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      to[i * 128] = make_float4(d_q[4 * i], d_q[4 * i + 1], d_q[4 * i + 2], d_q[4 * i + 3]);
    fence_async_proxy();  // before the copy engine reads them
    __syncwarp();         // all lanes' stores lie before lane 0's arrival
    release(&m.d_q_full[writer][consumer]);
  }
  // Own keys from w.length on become 0, for d_q: 0 times what lies there must be 0.
  __device__ void clear_keys(const Work& w) const {
    const int first = max(0, w.length - first_key(w));
#pragma unroll 1
    for (int piece = 0; piece < C::kPieces; ++piece) {
      uint4* const rows = reinterpret_cast<uint4*>(m.k[piece] + consumer * kConsumerKeys * 128);
#pragma unroll 1
      for (int i = first * 8 + static_cast<int>(threadIdx.x % 128); i < kConsumerKeys * 8; i += 128)
        rows[i] = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    sync_threads(kExchange, 128 * kConsumers);  // both consumers', before either multiplies by them
  }

  // ---- a tile of queries ----

  __device__ void step(const Work& w, int query0) {
    const int stage = slot_of<kStages>(n);
    const uint32_t parity = parity_of<kStages>(n);
    const bool cut = !sees_all(w, query0);
    auto& shared_gradients = m.gradients[n % 2];
    // What follows from them is made again in each step: there is no register to keep it in.
    asm volatile("" : "+r"(lane), "+r"(warp));

    wait(&m.q_full[stage], parity);
    hold(s);
    hold(dp);
    fence_wgmma();
    start_products(s, m.k[0], m.q[stage][0]);
    wait(&m.d_out_full[stage], parity);
    start_products(dp, m.v[0], m.d_out[stage][0]);

    wait_wgmma<1>();  // s is there
    hold(s);
    if constexpr (C::kCapped) {
      cuda::attention_hopper::bend(s, job.rule.inner);
      if (cut) hide(w, query0, s, -kInfinity);
    } else {
      if constexpr (C::kAdds)
        make_masked_weights(stage);
      else
        make_weights(stage);
      if (cut) hide(w, query0, s);
    }
    wait_wgmma<0>();  // dp is there
    hold(dp);
    if constexpr (C::kCapped) {
      make_capped(stage);
    } else {
      make_gradients(stage);
      if (cut) hide(w, query0, dp);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) pack_unit(i);
    }
    if constexpr (C::kHides) hide_masked();
    hold(weights);
    hold(gradients);
    hold(d_v);
    fence_wgmma();
    start_sums(d_v, weights, m.d_out[stage][0]);
    share_gradients(shared_gradients);
    // Both halves of ds are there. It also says that both consumers are done with the products of the
    // step before, which read the other buffer of ds: the next step may write it.
    sync_threads(kExchange, 128 * kConsumers);
    hold(d_q);
    hold(gradients);
    hold(d_k);
    fence_wgmma();
    start_d_q(shared_gradients);
    start_sums(d_k, gradients, m.q[stage][0]);

    wait_wgmma<1>();  // d_v and d_q are there
    hold(d_v);
    hold(weights);
    hold(d_q);
    release(&m.d_out_empty[stage]);
    hand_over();
    wait_wgmma<0>();  // d_k
    hold(d_k);
    hold(gradients);
    release(&m.q_empty[stage]);
    ++n;
  }

  // ---- results ----

  __device__ static bool is_finite(const float (&sums)[C::kColumns / 2]) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i) zero = __fmaf_rn(sums[i], 0.0f, zero);
    return zero == 0;
  }
  // Own keys' rows of d_k or d_v, through own keys' rows of v in shared memory, which nobody reads any
  // more: a warp has 16 rows, so warps need not meet.
  __device__ void store(const Work& w, const float (&sums)[C::kColumns / 2],
                        const AttentionRows& to, int columns, float by, int* redo) const {
    const int key0 = first_key(w);
    if (key0 >= c.keys) return;
    const bool wrong = any_thread(2 + consumer, 128, !is_finite(sums));
    const int64_t head = int64_t{w.batch} * c.key_heads + w.key_head;
    if (threadIdx.x % 128 == 0) redo[head * ((c.keys + kTile - 1) / kTile) + key0 / kTile] = wrong;
    if (wrong) return;
#pragma unroll
    for (int i = 0; i < C::kColumns / 16; ++i) {
      const float* const f = sums + 8 * i;
      store_matrices(matrix_row(m.v, i), pack<C>(f[0] * by, f[1] * by),
                     pack<C>(f[2] * by, f[3] * by), pack<C>(f[4] * by, f[5] * by),
                     pack<C>(f[6] * by, f[7] * by));
    }
    __syncwarp();
    constexpr int kOfRow = C::kColumns / 8;  // of 16 bytes
    const int unit = lane % kOfRow;
#pragma unroll 4
    for (int i = lane / kOfRow; i < 16; i += 32 / kOfRow) {
      const int row = warp * 16 + i, in_block = consumer * kConsumerKeys + row;
      if (key0 + row >= c.keys || unit * 8 >= columns) continue;
      const char* const from = m.v[unit / 8] + in_block * 128 + ((unit % 8) ^ (in_block % 8)) * 16;
      *reinterpret_cast<uint4*>(to.at(w.batch, w.key_head, key0 + row) + unit * 16) =
          *reinterpret_cast<const uint4*>(from);
    }
    __syncwarp();  // the next gradient goes the same way
  }
  __device__ static void add(float* to, const float (&sums)[C::kColumns / 2]) {
#pragma unroll
    for (int i = 0; i < C::kColumns / 8; ++i)
      add_four(to + (i * 128 + threadIdx.x % 128) * 4, sums[4 * i], sums[4 * i + 1],
               sums[4 * i + 2], sums[4 * i + 3]);
  }
  // Own keys' d_k and d_v onto those of the parts before, deterministic: when these are there.
  __device__ void add_part(const Work& w) const {
    const int64_t place =
        (int64_t{w.batch} * c.key_heads + w.key_head) * 2 * job.key_tiles + 2 * w.tile + consumer;
    uint32_t* const count = &job.key_counts[place];
    const bool first = threadIdx.x % 128 == 0;
    if (job.deterministic) {
      if (first) wait_count(count, w.part);
      sync_threads(2 + consumer, 128);
    }
    float* const to = job.key_sums + place * 2 * kSumsOfKeys<C>;
    add(to, d_v);
    add(to + kSumsOfKeys<C>, d_k);
    if (!job.deterministic) return;
    sync_threads(2 + consumer, 128);
    if (first) count_up(count);
  }
  __device__ void run(const Work& w) {
    if constexpr (C::kF16) power = power_of(job, w.batch, w.key_head);
    if (w.first < w.end) {
      wait(&m.keys_full, 0);
      if (w.length < c.keys && w.key0 + kKeys > w.length) clear_keys(w);
    }
    for_steps(w, [&](int, int tile) { step(w, tile * C::kQueries); });
    if (job.parts > 1) {
      if (w.first < w.end) add_part(w);
      return;
    }
    store(w, d_v, job.base.d_v, c.value_depth, 1 / kWeightScale, job.base.redo_v);
    store(w, d_k, job.base.d_k, c.depth, c.scale / power, job.base.redo_k);
  }
};

template <class C>
__device__ inline void init(Memory<C>& m) {
  constexpr int kWarps = 4 * kConsumers;
  init_barrier(&m.keys_full, 1);
  for (int i = 0; i < kStages; ++i) {
    init_barrier(&m.q_full[i], 1);
    init_barrier(&m.q_empty[i], kWarps);
    init_barrier(&m.d_out_full[i], 1);
    init_barrier(&m.d_out_empty[i], kWarps);
  }
  for (int writer = 0; writer < C::kWriters; ++writer) {
    for (int i = 0; i < kConsumers; ++i) {
      init_barrier(&m.d_q_full[writer][i], 4);   // a consumer's warps
      init_barrier(&m.d_q_empty[writer][i], 1);  // the writer
    }
  }
  if constexpr (C::kMasked) {
    for (int i = 0; i < kMaskSlots; ++i) {
      init_barrier(&m.mask.full[i], kMaskThreads);
      init_barrier(&m.mask.empty[i], kWarps);
    }
  }
  publish_barriers();
}

#endif  // PESTLE_HOPPER

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    backward_hopper_kernel(const __grid_constant__ Job job) {
#if PESTLE_HOPPER
  extern __shared__ __align__(1024) char raw[];
  Memory<C>& m = *reinterpret_cast<Memory<C>*>(raw);
  if (threadIdx.x == 0) {
    init(m);
    m.ticket = static_cast<int>(atomicAdd(job.ticket, 1));
  }
  __syncthreads();
  const Work w = work_at(m, job, m.ticket);
  // By a shuffle: the compiler knows it for the same in a warp.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x / 32 == 0) Loader<C>(m, job).run(w);
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (warp >= 1 && warp <= C::kWriters && threadIdx.x % 32 == 0)
      Writer<C>{m, job, warp - 1}.run(w);
    if constexpr (C::kMasked)
      if (threadIdx.x >= 128 - kMaskThreads) load_mask(m, job, w);
  } else {
    take_registers<kConsumerRegisters>();
    Consumer<C>(m, job, warpgroup - 1).run(w);
  }
#endif
}

}  // namespace pestle::ops::attention_backward::backward_hopper
