// Gradients of attention of bf16 and f16 on Hopper for heads of 136 to 256 columns: wgmma and the
// tensor copy engine, as attention_backward_hopper.cuh, with another split of the work.
//
// Map      A block holds 64 keys of one head of k. Sums of d_k and d_v are [64, 256] floats each, all
//          that two warpgroups' registers hold, so each has one:
//            values  s [keys, queries] = k . q, p = e^(s - lse), d_v += p . d_out
//            keys    dp = v . d_out, ds = p (dp - delta), d_k += ds . q
//          p and ds are the register operand of their product. p goes to the other consumer through
//          shared memory in f32, thread to thread; ds in q's dtype, from where each consumer makes
//          half of the columns of d_q = ds . k, 64 at a time. The values' consumer starts the next
//          tile's s before it waits for ds. Three more warps: the loader and a writer for each
//          consumer's part of d_q.
// Budget   256 columns, a tile of 64 queries, in cycles: the five products 2,560 of the tensor cores;
//          shared memory 512 for each of s and dp (64 x 64 x 16, both operands there), 256 for each of
//          d_k and d_v, 512 for d_q, 512 + 512 that d_q goes through, 512 loads, 400 p and ds: 4,000.
//          From and to the L2 128 KiB a tile, half of it f32 sums: at 350 TFLOP/s 4.3 TB/s.
//          Shared memory: k, v 64 KiB, q 64, d_out 32 (one stage; of narrower heads two), p 16,
//          ds 16, d_q 32. Registers: 128 of sums, 32 of s or dp, 16 of the operand or 32 of d_q.
// Order, numerics, numbers: as in attention_backward_hopper.cuh; turns are of each consumer's part.
#pragma once

#include "ops/attention/attention_backward/hopper/attention_backward_hopper_parts.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

// Columns of q and k, and of v, at most.
template <WgmmaType kOf, int kColumnsOf, int kValueColumnsOf, bool kCappedOf = false>
struct WideConfig {
  static constexpr WgmmaType kWgmma = kOf;
  static constexpr bool kMasked = false, kCapped = kCappedOf, kPacked = false, kWide = true;
  static constexpr bool kF16 = kOf == WgmmaType::kF16;
  static constexpr int kColumns = kColumnsOf, kPieces = kColumns / 64;
  static constexpr int kValueColumns = kValueColumnsOf, kValuePieces = kValueColumns / 64;
  static constexpr int kParts = kPieces;                                           // of d_q
  static constexpr int kKeys = 64;                                                 // of a block
  static constexpr int kQueries = 64;                                              // of a tile
  static constexpr int kOutStages = kColumns + kValueColumns > 384 ? 1 : kStages;  // of d_out
  using Plain = WideConfig<kOf, kColumnsOf, kColumnsOf>;
};

constexpr int kValues = 0, kKeysOwner = 1;  // which consumer

// Tiles as in the other kernel's memory: 64 columns, all rows, in rows of 128 bytes are a piece.
template <class C>
struct Memory<C, true> {
  static constexpr int kKeyPiece = C::kKeys * 128, kQueryPiece = C::kQueries * 128;
  char k[C::kPieces][kKeyPiece], v[C::kValuePieces][kKeyPiece];
  char q[kStages][C::kPieces][kQueryPiece], d_out[C::kOutStages][C::kValuePieces][kQueryPiece];
  // ds: rows are keys. Written in one step while the last one's may be read.
  char gradients[2][1][kKeyPiece];
  float4 weights[C::kQueries / 8][128];  // p, with a soft cap times its slope: [eight][thread]
  // What a consumer hands to its writer: float4 [eight of columns][thread], as in the workspace.
  float4 d_q[kConsumers][kSumsOfPart / 4];
  float lse[kStages][C::kQueries], delta[kStages][C::kQueries];  // they come with q
  uint64_t keys_full;                                            // k and v are there
  uint64_t q_full[kStages], q_empty[kStages];
  uint64_t d_out_full[C::kOutStages], d_out_empty[C::kOutStages];
  uint64_t weights_full, gradients_full[2];
  uint64_t d_q_full[kConsumers], d_q_empty[kConsumers];
  int ticket;
  KeyRuns<C::kPacked, C::kKeys> runs;
};

#if PESTLE_HOPPER

// Of d_q's pieces of 64 columns the values' consumer makes the first ones, of three two.
template <class C>
__device__ constexpr int first_part(int consumer) {
  return consumer == kValues ? 0 : (C::kPieces + 1) / 2;
}
template <class C>
__device__ constexpr int parts_of(int consumer) {
  return consumer == kValues ? (C::kPieces + 1) / 2 : C::kPieces / 2;
}

// ---- the writers: a thread each --------------------------------------------------------------

template <class C>
struct WideWriter {
  Memory<C>& m;
  const Job& job;
  const int consumer;
  FirstKeyOfQuery first_key;  // of packed sequences
  int n = 0;                  // pieces

  __device__ void step(const Work& w, int head, int tile) {
    const int64_t place = (int64_t{w.batch} * job.base.call.heads + head) * job.query_tiles + tile;
    const bool in_turns = job.deterministic && (!C::kPacked || w.ordered);
    uint32_t* const count = &job.counts[place * kConsumers + consumer];
    if (in_turns) {
      wait_count(count, earlier_tiles<C>(job, w, tile, first_key));
      fence_async_proxy_of_all();  // others' sums, before the copy engine reads them
    }
    float* const to = job.sums + (place * C::kParts + first_part<C>(consumer)) * kSumsOfPart;
    for (int i = 0; i < parts_of<C>(consumer); ++i) {
      wait(&m.d_q_full[consumer], parity_of<1>(n++));
      add_floats(to + i * kSumsOfPart, m.d_q[consumer], sizeof(m.d_q[consumer]));
      commit_stores();
      wait_stores_read<0>();
      arrive(&m.d_q_empty[consumer]);
    }
    if (!in_turns) return;
    wait_stores<0>();
    fence_async_proxy_of_all();  // the sums, before the count that tells of them
    count_up(count);
  }
  __device__ void run(const Work& w) {
    for_steps(w, [&](int head, int tile) { step(w, head, tile); });
    wait_stores<0>();  // shared memory must outlive what reads it
  }
};

// ---- the consumers: a warpgroup each ---------------------------------------------------------

template <class C>
struct WideConsumer : KeyRows<C> {
  using M = Memory<C>;
  using Rows = KeyRows<C>;
  using Rows::c, Rows::job, Rows::k16Rows, Rows::lane, Rows::m, Rows::n, Rows::warp;
  using Rows::release;
  static constexpr int kBoth = 1, kOne = 2;  // barriers: of both consumers, of the first one
  static constexpr int kFloats = C::kQueries / 2;

  int handed = 0;  // pieces of d_q
  float d_q[32];   // 64 x 64: queries are rows

  __device__ WideConsumer(M& memory, const Job& j) : Rows(memory, j, 0) {}

  // A piece of d_q = ds . k, both across the block's keys.
  __device__ void start_d_q(int piece) {
    hold(d_q);
    fence_wgmma();
    const uint64_t a = describe<false>(m.gradients[n % 2][0], M::kKeyPiece);
    const uint64_t b = describe<false>(m.k[piece], M::kKeyPiece);
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i)
      multiply<C::kWgmma, 64, false, false>(d_q, a + i * k16Rows, b + i * k16Rows, i > 0);
    commit_wgmma();
  }
  // To the writer, when it has read what was there.
  __device__ void hand_over(int consumer) {
    wait(&m.d_q_empty[consumer], parity_of<1>(handed++) ^ 1);
    float4* const to = m.d_q[consumer] + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      to[i * 128] = make_float4(d_q[4 * i], d_q[4 * i + 1], d_q[4 * i + 2], d_q[4 * i + 3]);
    fence_async_proxy();  // before the copy engine reads them
    __syncwarp();         // all lanes' stores lie before lane 0's arrival
    release(&m.d_q_full[consumer]);
  }
  // Until ds of this step is there, of all warps.
  __device__ void await_gradients() const { wait(&m.gradients_full[n % 2], parity_of<2>(n)); }
  __device__ int steps(const Work& w) const { return c.group * (w.end - w.first); }
  // k and v are there; keys from w.length on become 0, for d_q: 0 times what lies there must be 0.
  __device__ void await_keys(const Work& w) const {
    wait(&m.keys_full, 0);
    if (w.length >= c.keys || w.key0 + C::kKeys <= w.length) return;
    constexpr int kThreadsOfBoth = 128 * kConsumers;
    const int first = max(0, w.length - w.key0);
#pragma unroll 1
    for (int piece = 0; piece < C::kPieces; ++piece) {
      uint4* const rows = reinterpret_cast<uint4*>(m.k[piece]);
#pragma unroll 1
      for (int i = first * 8 + static_cast<int>(threadIdx.x) - 128; i < C::kKeys * 8;
           i += kThreadsOfBoth)
        rows[i] = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    sync_threads(kBoth, kThreadsOfBoth);  // both consumers', before either multiplies by them
  }
};

// s, p, d_v and the first part of d_q.
template <class C>
struct ValuesConsumer : WideConsumer<C> {
  using Base = WideConsumer<C>;
  using Base::c, Base::d_q, Base::job, Base::lane, Base::m, Base::n, Base::warp;
  using Base::for_facts, Base::hide, Base::kFloats, Base::kUnits, Base::kWeightScale, Base::release,
      Base::unit_of;

  float s[kFloats];
  uint32_t weights[kUnits][4];  // p as the register operand
  float d_v[C::kValueColumns / 2];

  __device__ ValuesConsumer(Memory<C>& memory, const Job& j) : Base(memory, j) {
#pragma unroll
    for (float& sum : d_v) sum = 0;
  }

  // Of step `of`, when its queries are there.
  __device__ void start_logits(int of) {
    const int stage = slot_of<kStages>(of);
    wait(&m.q_full[stage], parity_of<kStages>(of));
    hold(s);
    fence_wgmma();
    this->template start_products<C::kColumns>(s, m.k[0], m.q[stage][0]);
  }
  // To the other consumer; it has read the last step's, as it has made ds of them.
  __device__ void share(const float (&of)[kFloats]) const {
    float4* const to = m.weights[0] + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < kFloats / 4; ++i)
      to[i * 128] = make_float4(of[4 * i], of[4 * i + 1], of[4 * i + 2], of[4 * i + 3]);
    __syncwarp();
    release(&m.weights_full);
  }
  __device__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        weights[i][j] =
            pack<C>(s[8 * i + 2 * j] * kWeightScale, s[8 * i + 2 * j + 1] * kWeightScale);
  }
  // s to p, which is packed, and p times the soft cap's slope, which is shared. Where p is 0 the
  // slope may be anything.
  __device__ void make_capped(const Work& w, int query0, int stage, bool cut) {
    cuda::attention_hopper::bend(s, job.rule.inner);
    if (cut) hide(w, query0, s, -kInfinity);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float(&t)[8] = unit_of(s, i);
      float p[8];
      for_facts(m.lse[stage], i, [&](int e, float lse) {
        p[e] = bounded_exp2(__fmaf_rn(t[e], job.rule.unit, -lse));
        t[e] = p[e] == 0 ? 0 : p[e] * __fmaf_rn(-t[e], t[e], 1.0f);
      });
#pragma unroll
      for (int j = 0; j < 4; ++j)
        weights[i][j] = pack<C>(p[2 * j] * kWeightScale, p[2 * j + 1] * kWeightScale);
    }
  }

  __device__ void step(const Work& w, int query0, bool is_last) {
    const int stage = slot_of<kStages>(n), out_stage = slot_of<C::kOutStages>(n);
    const bool cut = !this->sees_all(w, query0);
    // What follows from them is made again in each step: there is no register to keep it in.
    asm volatile("" : "+r"(lane), "+r"(warp));

    wait_wgmma<0>();  // s is there
    hold(s);
    if constexpr (C::kCapped) {
      make_capped(w, query0, stage, cut);
      share(s);
    } else {
      this->make_weights(s, stage);
      if (cut) hide(w, query0, s);
      share(s);
      pack_weights();
    }
    release(&m.q_empty[stage]);

    wait(&m.d_out_full[out_stage], parity_of<C::kOutStages>(n));
    hold(weights);
    hold(d_v);
    fence_wgmma();
    this->start_sums(d_v, weights, m.d_out[out_stage][0]);
    if (!is_last)
      start_logits(n + 1);
    else
      commit_wgmma();  // no group more or less
    wait_wgmma<1>();   // d_v is there
    hold(d_v);
    hold(weights);
    release(&m.d_out_empty[out_stage]);

    this->await_gradients();
#pragma unroll
    for (int i = 0; i < parts_of<C>(kValues); ++i) {
      this->start_d_q(first_part<C>(kValues) + i);
      wait_wgmma<0>();
      hold(d_q);
      hold(s);
      this->hand_over(kValues);
    }
    ++n;
  }
  __device__ void run(const Work& w) {
    const int all = this->steps(w);
    if (all > 0) {
      this->await_keys(w);
      start_logits(0);
    }
    for_steps(w, [&](int, int tile) { step(w, tile * C::kQueries, n + 1 == all); });
    wait_wgmma<0>();  // nothing is under way: said here, the compiler needn't
    hold(s);
    // Through v: whoever has ds of the last step knows that dp of all steps has been made.
    this->store(w, d_v, m.v, Base::kOne + kValues, job.base.d_v, c.value_depth, 1 / kWeightScale,
                job.base.redo_v);
  }
};

// dp, ds, d_k and the rest of d_q.
template <class C>
struct KeysConsumer : WideConsumer<C> {
  using Base = WideConsumer<C>;
  using Base::c, Base::d_q, Base::job, Base::lane, Base::m, Base::n, Base::warp;
  using Base::hide, Base::kFloats, Base::kUnits, Base::release;

  float power = 1;  // of f16: ds is so many times too large
  float dp[kFloats];
  uint32_t gradients[kUnits][4];  // ds as the register operand
  float d_k[C::kColumns / 2];

  __device__ KeysConsumer(Memory<C>& memory, const Job& j) : Base(memory, j) {
#pragma unroll
    for (float& sum : d_k) sum = 0;
  }

  // dp to ds, by the other consumer's p.
  __device__ void make_gradients(int stage) {
    const float4* const weights = m.weights[0] + threadIdx.x % 128;
    const float* const delta = m.delta[stage] + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kFloats / 4; ++i) {
      const float4 p = weights[i * 128];
      const float2 of = *reinterpret_cast<const float2*>(delta + i * 8);
      float* const d = dp + 4 * i;
      d[0] = p.x * (d[0] - of.x);
      d[1] = p.y * (d[1] - of.y);
      d[2] = p.z * (d[2] - of.x);
      d[3] = p.w * (d[3] - of.y);
      if constexpr (C::kF16) {
#pragma unroll
        for (int e = 0; e < 4; ++e) d[e] *= power;
      }
    }
  }
  __device__ void share_gradients() {
    char(&to)[1][Memory<C>::kKeyPiece] = m.gradients[n % 2];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        gradients[i][j] = pack<C>(dp[8 * i + 2 * j], dp[8 * i + 2 * j + 1]);
      store_matrices(this->matrix_row(to, i), gradients[i][0], gradients[i][1], gradients[i][2],
                     gradients[i][3]);
    }
    fence_async_proxy();  // before wgmma reads them
    __syncwarp();         // all lanes' stores lie before lane 0's arrival
    release(&m.gradients_full[n % 2]);
  }

  __device__ void step(const Work& w, int query0) {
    const int stage = slot_of<kStages>(n), out_stage = slot_of<C::kOutStages>(n);
    const bool cut = !this->sees_all(w, query0);
    constexpr int kFirst = first_part<C>(kKeysOwner), kOwn = parts_of<C>(kKeysOwner);
    static_assert(kOwn == 1 || kOwn == 2);
    asm volatile("" : "+r"(lane), "+r"(warp));

    wait(&m.d_out_full[out_stage], parity_of<C::kOutStages>(n));
    hold(dp);
    fence_wgmma();
    this->template start_products<C::kValueColumns>(dp, m.v[0], m.d_out[out_stage][0]);
    wait(&m.q_full[stage], parity_of<kStages>(n));  // q and delta
    wait_wgmma<0>();                                // dp is there
    hold(dp);
    release(&m.d_out_empty[out_stage]);
    wait(&m.weights_full, parity_of<1>(n));
    make_gradients(stage);
    if (cut) hide(w, query0, dp);
    share_gradients();
    this->await_gradients();

    this->start_d_q(kFirst);
    hold(gradients);
    hold(d_k);
    fence_wgmma();
    this->start_sums(d_k, gradients, m.q[stage][0]);
    wait_wgmma<1>();  // d_q is there
    hold(d_q);
    this->hand_over(kKeysOwner);
    if constexpr (kOwn == 2) {
      this->start_d_q(kFirst + 1);
      wait_wgmma<1>();  // d_k is there
    } else {
      wait_wgmma<0>();
    }
    hold(d_k);
    hold(gradients);
    release(&m.q_empty[stage]);
    if constexpr (kOwn == 2) {
      wait_wgmma<0>();
      hold(d_q);
      this->hand_over(kKeysOwner);
    }
    ++n;
  }
  __device__ void run(const Work& w) {
    if constexpr (C::kF16) power = power_of(job, w.batch, w.key_head);
    if (this->steps(w) > 0) this->await_keys(w);
    for_steps(w, [&](int, int tile) { step(w, tile * C::kQueries); });
    // Through q: the other consumer has made s of all steps when p is there, and so is d_k when the
    // own warps have met.
    this->store(w, d_k, m.q[0], Base::kOne + kKeysOwner, job.base.d_k, c.depth, c.scale / power,
                job.base.redo_k);
  }
};

template <class C>
__device__ inline void init_wide(Memory<C>& m) {
  constexpr int kWarps = 4;  // of a consumer
  init_barrier(&m.keys_full, 1);
  for (int i = 0; i < kStages; ++i) {
    init_barrier(&m.q_full[i], 1);
    init_barrier(&m.q_empty[i], kWarps * kConsumers);
  }
  for (int i = 0; i < C::kOutStages; ++i) {
    init_barrier(&m.d_out_full[i], 1);
    init_barrier(&m.d_out_empty[i], kWarps * kConsumers);
  }
  init_barrier(&m.weights_full, kWarps);
  for (int i = 0; i < 2; ++i) init_barrier(&m.gradients_full[i], kWarps);
  for (int i = 0; i < kConsumers; ++i) {
    init_barrier(&m.d_q_full[i], kWarps);
    init_barrier(&m.d_q_empty[i], 1);  // the writer
  }
  publish_barriers();
}

#endif  // PESTLE_HOPPER

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    backward_wide_kernel(const __grid_constant__ Job job) {
#if PESTLE_HOPPER
  extern __shared__ __align__(1024) char raw[];
  Memory<C>& m = *reinterpret_cast<Memory<C>*>(raw);
  const Work w = take_work<C>(m, job, [&] { init_wide(m); });
  // By a shuffle: the compiler knows it for the same in a warp.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x / 32 == 0) Loader<C>(m, job).run(w);
    if (threadIdx.x == 32) WideWriter<C>{m, job, kValues}.run(w);
    if (threadIdx.x == 64) WideWriter<C>{m, job, kKeysOwner}.run(w);
  } else if (warpgroup == 1) {
    take_registers<kConsumerRegisters>();
    ValuesConsumer<C>(m, job).run(w);
  } else {
    take_registers<kConsumerRegisters>();
    KeysConsumer<C>(m, job).run(w);
  }
#endif
}

}  // namespace pestle::ops::attention_backward::backward_hopper
