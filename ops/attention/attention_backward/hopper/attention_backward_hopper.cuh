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
//          make half each of d_q[queries, columns] = ds . k over all 128 keys, a step later: neither
//          waits for the other, and one's exponentials fall into the other's products. More warps: the
//          loader (copies by the tensor copy engine, a ring of two stages) and two writers (add d_q to
//          f32 sums in the workspace, 16 KiB a bulk copy). Where there is a mask, one writer and two
//          warps that load it (attention_backward_hopper_mask.cuh). Another kernel rounds the sums
//          (attention_backward_hopper_round.cuh), those of d_k and d_v too where blocks divide the
//          heads that share keys.
// Order    Blocks take tickets; keys ascend with them. deterministic: a writer adds to a tile of
//          queries when all tiles of keys below its own have added to it, which a count a tile tells.
//          They have lower tickets, so they run or are done: no block waits for one that can't start.
//          Else tiles are added as they come. A turn takes some 2.8 us, longer than a tile: to see the
//          count, to add, to tell. Two writers hide that. Blocks of a head that run at once follow
//          each other at that distance, so tickets go round as many heads as the L2 allows.
// Traffic  q and d_out once for each 128 keys, d_q's sums read and written as often, in the L2, which
//          holds those of the heads that are worked on at once.
// Numerics f32 sums; p and ds rounded to q's dtype. Of f16 p is taken 2^4 times, ds by a power of two
//          that the largest d_out of a head of k gives. With a soft cap s becomes its tanh, which the
//          slope needs: exponentials follow when dp is there and has been taken times the slope.
// Numbers  As in attention_backward_tiles.cuh: what is not finite marks its 64 keys (queries) for the
//          slow kernel. Keys behind the last that counts are made 0: memory there may hold anything.
#pragma once

#include "ops/attention/attention_backward/hopper/attention_backward_hopper_mask.cuh"
#include "ops/attention/attention_backward/hopper/attention_backward_hopper_parts.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

template <WgmmaType kOf, int kColumnsOf, MaskKind kMaskOf = MaskKind::kNone, bool kCappedOf = false>
struct Config {
  static constexpr WgmmaType kWgmma = kOf;
  static constexpr MaskKind kMask = kMaskOf;  // not kElements
  static constexpr bool kHides = kMask == MaskKind::kBool;
  static constexpr bool kAdds = kMask == MaskKind::kBf16 || kMask == MaskKind::kF16;
  static constexpr bool kMasked = kHides || kAdds, kCapped = kCappedOf;
  static constexpr bool kPacked = false, kWide = false;
  static constexpr bool kF16 = kOf == WgmmaType::kF16;
  static constexpr int kColumns = kColumnsOf;  // of q, k, v at most
  static constexpr int kPieces = (kColumns + 63) / 64;
  static constexpr int kQueries = 128 / kPieces;  // of a tile
  static constexpr int kChunks = kQueries / 64;
  static constexpr int kParts = kPieces * kChunks;  // of d_q, each a consumer's
  static constexpr int kKeys = 128;                 // of a block
  static constexpr int kOutStages = kStages;        // of d_out
  using Plain = Config<kOf, 64 * kPieces>;
};

// Steps take turns with them, so that one's way to the L2 and back is hidden behind the other's. Masks
// leave neither a warp nor shared memory for a second one, tiles of 128 queries no room beside runs.
template <class C>
constexpr int kWriters = C::kMasked || (C::kPacked && C::kChunks == 2) ? 1 : 2;

// Tiles as wgmma wants them: 64 columns, all rows, in rows of 128 bytes (swizzled) are a piece.
template <class C>
struct Memory<C, false> {
  static constexpr int kKeyPiece = C::kKeys * 128, kQueryPiece = C::kQueries * 128;
  char k[C::kPieces][kKeyPiece], v[C::kPieces][kKeyPiece];
  char q[kStages][C::kPieces][kQueryPiece], d_out[kStages][C::kPieces][kQueryPiece];
  // ds of 64 queries each: rows are keys. Read in the step after the one that wrote it, so that no
  // consumer waits for the other.
  char gradients[2][C::kChunks][kKeyPiece];
  // What a consumer hands to a writer: float4 [eight of columns][thread], as in the workspace.
  float4 d_q[kWriters<C>][kConsumers][kSumsOfPart / 4];
  float lse[kStages][C::kQueries], delta[kStages][C::kQueries];  // they come with q
  uint64_t keys_full;                                            // k and v are there
  uint64_t q_full[kStages], q_empty[kStages], d_out_full[kStages], d_out_empty[kStages];
  uint64_t gradients_full[2], gradients_empty[2];
  uint64_t d_q_full[kWriters<C>][kConsumers], d_q_empty[kWriters<C>][kConsumers];
  int ticket;
  MaskSlots<C::kMasked> mask;
  KeyRuns<C::kPacked, C::kKeys> runs;
};

#if PESTLE_HOPPER

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

// ---- a writer: a thread ----------------------------------------------------------------------

template <class C>
struct Writer {
  Memory<C>& m;
  const Job& job;
  const int which;            // takes the steps n with n % kWriters == which
  FirstKeyOfQuery first_key;  // of packed sequences
  int n = 0;                  // steps

  __device__ void step(const Work& w, int head, int tile) {
    const uint32_t parity = parity_of<kWriters<C>>(n);
    const int64_t place = (int64_t{w.batch} * job.base.call.heads + head) * job.query_tiles + tile;
    const bool in_turns = job.deterministic && (!C::kPacked || w.ordered);
    if (in_turns) {
      wait_count(&job.counts[place], earlier_tiles<C>(job, w, tile, first_key));
      fence_async_proxy_of_all();  // others' sums, before the copy engine reads them
    }
#pragma unroll
    for (int i = 0; i < kConsumers; ++i) {
      wait(&m.d_q_full[which][i], parity);
      add_floats(job.sums + (place * kConsumers + i) * kSumsOfPart, m.d_q[which][i],
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
      if (n % kWriters<C> == which) step(w, head, tile);
      ++n;
    });
    wait_stores<0>();  // shared memory must outlive what reads it
  }
};

// ---- a consumer: a warpgroup -----------------------------------------------------------------

template <class C>
struct Consumer : KeyRows<C> {
  using M = Memory<C>;
  using Rows = KeyRows<C>;
  using Rows::c, Rows::consumer, Rows::job, Rows::lane, Rows::m, Rows::n, Rows::warp;
  using Rows::first_key, Rows::for_facts, Rows::hide, Rows::k16Rows, Rows::kEights, Rows::kUnits,
      Rows::kWeightScale, Rows::matrix_row, Rows::release, Rows::sees_all, Rows::unit_of;
  static constexpr int kBoth = 1;  // the barrier of both consumers; 2 + consumer: of one
  // The second consumer begins so much later: then one's exponentials fall into the other's products.
  static constexpr int kApart = 1000;  // ns, some third of a step

  float power = 1;  // of f16: ds is so many times too large
  // [own keys, queries]: of every eight n of queries [4 n + 2 h + e] is key 16 warp + lane / 4 + 8 h
  // and query 8 n + lane % 4 * 2 + e (wgmma.cuh); so are d_k and d_v with columns for queries.
  float s[C::kQueries / 2], dp[C::kQueries / 2];
  uint32_t weights[kUnits][4], gradients[kUnits][4];  // p and ds as the register operand
  float d_k[C::kColumns / 2], d_v[C::kColumns / 2];
  float d_q[32];  // 64 x 64: queries are rows

  __device__ Consumer(M& memory, const Job& j, int which) : Rows(memory, j, which) {
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i) d_k[i] = d_v[i] = 0;
  }

  // ---- products ----

  // d_q = ds . k over the block's keys, both across them. Of 64 queries consumers take 64 columns
  // each, of 128 queries 64 each. Of the step before; in the first one it is nothing that counts.
  __device__ void start_d_q() {
    const auto& ds = m.gradients[slot_of<2>(n + 1)];
    wait(&m.gradients_full[slot_of<2>(n + 1)], (n - 1) >> 1 & 1);
    const uint64_t a = describe<false>(ds[C::kChunks == 2 ? consumer : 0], M::kKeyPiece);
    const uint64_t b = describe<false>(m.k[C::kPieces == 2 ? consumer : 0], M::kKeyPiece);
    hold(d_q);
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i)
      multiply<C::kWgmma, 64, false, false>(d_q, a + i * k16Rows, b + i * k16Rows, i > 0);
    commit_wgmma();
  }
  // When it is there.
  __device__ void finish_d_q(int step) const {
    release(&m.gradients_empty[slot_of<2>(step)]);
    hand_over(step);
  }

  // ---- weights ----

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

  // For both consumers' products of the next step, when they are done with those of the step before.
  __device__ void share_gradients() const {
    const int to = slot_of<2>(n);
    wait(&m.gradients_empty[to], parity_of<2>(n) ^ 1);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      store_matrices(matrix_row(m.gradients[to], i), gradients[i][0], gradients[i][1],
                     gradients[i][2], gradients[i][3]);
    fence_async_proxy();  // before wgmma reads them
    __syncwarp();         // all lanes' stores lie before lane 0's arrival
    release(&m.gradients_full[to]);
  }
  // d_q of a step to its writer, when it has read what it was handed last.
  __device__ void hand_over(int step) const {
    const int writer = slot_of<kWriters<C>>(step);
    wait(&m.d_q_empty[writer][consumer], parity_of<kWriters<C>>(step) ^ 1);
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
    sync_threads(kBoth, 128 * kConsumers);  // both consumers', before either multiplies by them
  }

  // ---- a tile of queries ----

  __device__ void step(const Work& w, int query0) {
    const int stage = slot_of<kStages>(n);
    const uint32_t parity = parity_of<kStages>(n);
    const bool cut = !sees_all(w, query0);
    // What follows from them is made again in each step: there is no register to keep it in.
    asm volatile("" : "+r"(lane), "+r"(warp));

    wait(&m.q_full[stage], parity);
    hold(s);
    hold(dp);
    fence_wgmma();
    this->template start_products<C::kColumns>(s, m.k[0], m.q[stage][0]);
    wait(&m.d_out_full[stage], parity);
    this->template start_products<C::kColumns>(dp, m.v[0], m.d_out[stage][0]);

    wait_wgmma<1>();  // s is there
    hold(s);
    if constexpr (C::kCapped) {
      cuda::attention_hopper::bend(s, job.rule.inner);
      if (cut) hide(w, query0, s, -kInfinity);
    } else {
      if constexpr (C::kAdds)
        make_masked_weights(stage);
      else
        this->make_weights(s, stage);
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
    this->start_sums(d_v, weights, m.d_out[stage][0]);
    share_gradients();
    start_d_q();
    hold(gradients);
    hold(d_k);
    fence_wgmma();
    this->start_sums(d_k, gradients, m.q[stage][0]);

    wait_wgmma<1>();  // d_v is there, and d_q of the step before
    hold(d_v);
    hold(weights);
    release(&m.d_out_empty[stage]);
    hold(d_q);
    if (n > 0) finish_d_q(n - 1);
    wait_wgmma<0>();  // d_k
    hold(d_k);
    hold(gradients);
    release(&m.q_empty[stage]);
    ++n;
  }

  // d_q of the last step.
  __device__ void finish() {
    if (n == 0) return;
    start_d_q();
    wait_wgmma<0>();
    hold(d_q);
    finish_d_q(n - 1);
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
      if (w.length < c.keys && w.key0 + C::kKeys > w.length) clear_keys(w);
    }
    if (consumer == 1) __nanosleep(kApart);
    for_steps(w, [&](int, int tile) { step(w, tile * C::kQueries); });
    finish();
    if (job.parts > 1) {
      if (w.first < w.end) add_part(w);
      return;
    }
    this->store(w, d_v, m.v, 2 + consumer, job.base.d_v, c.value_depth, 1 / kWeightScale,
                job.base.redo_v);
    this->store(w, d_k, m.v, 2 + consumer, job.base.d_k, c.depth, c.scale / power, job.base.redo_k);
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
  for (int i = 0; i < 2; ++i) {
    init_barrier(&m.gradients_full[i], kWarps);
    init_barrier(&m.gradients_empty[i], kWarps);
  }
  for (int writer = 0; writer < kWriters<C>; ++writer) {
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
  const Work w = take_work<C>(m, job, [&] { init(m); });
  // By a shuffle: the compiler knows it for the same in a warp.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (warp == 0) Loader<C>(m, job).run(w);
    if (warp >= 1 && warp <= kWriters<C> && threadIdx.x % 32 == 0)
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
