// Attention of bf16 and f16 on Hopper: wgmma and the tensor copy engine, for heads of up to 256
// columns.
//
// Map      A persistent grid, one block a multiprocessor: a warp that copies tiles of k and v into a
//          ring, another that copies q and announces tiles of queries, and two or three consumer
//          warpgroups of 64 queries of one head each. A consumer has its logits, its exponentials
//          (the register operand of the second product) and its sums in registers. It starts the
//          logits of the next tile and the sums of this one together, and makes the next
//          exponentials while the sums are at work; the next tile may be the first of the next
//          queries, so that products do not pause while results are written. Consumers take turns to
//          start products, so that one's exponentials lie beside the other's products.
// Order    Keys in descending order: tiles that a range cuts come first where it is causal. Blocks
//          of queries that see most come first, and every second round of them in opposite order,
//          so that all multiprocessors get as much. Two runs give the same bits.
// Numerics Products of 16-bit elements summed in f32; exponentials by 2^x with the scale folded in,
//          rounded to q's dtype for the second product (of f16 2^8 times as large), their sum in f32
//          unrounded. They stand on the largest logit so far, or one at most 2^8 (f16: 2^7) below
//          it: sums need no new scale until it grows by more.
// Numbers  As in ops/attention/sm80/attention_tiles.cuh: rows that an infinity, a NaN or the size of
//          their logits may have spoilt are made again by attention_row. Values behind the last key
//          that counts are made 0 in shared memory: memory behind a length may hold anything. Behind
//          a packed sequence the next one's lie: if they are not finite, rows are made again.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/attention/sm90/attention_hopper_load.cuh"

namespace pestle::cuda::attention_hopper {

#if PESTLE_HOPPER

// ---- a consumer: a warpgroup -----------------------------------------------------------------

// Of a thread's two rows, 8 apart.
struct RowSums {
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  unsigned unsafe = 0;  // a bit a row
};

// The same of the four lanes of a row together, each of which keeps a fourth: largest logits, and
// sums, -1 for a row that is to be made again.
struct EndedRows {
  float part;

  __device__ float get(int lane, int which) const {
    return __shfl_sync(kAllLanes, part, (lane & ~3) | which);
  }
  __device__ float largest(int lane, int h) const { return get(lane, h); }
  __device__ float sum(int lane, int h) const { return get(lane, 2 + h); }
};

template <class C>
struct Consumer {
  using M = Memory<C>;
  static constexpr int kEights = C::kKeys / 8, kOutEights = C::kColumns / 8;
  static constexpr bool kF16 = C::kWgmma == WgmmaType::kF16;
  static constexpr float kShift = kF16 ? 8 : 0;  // of exponentials' exponents
  static constexpr float kSafe = 0x1p22f;

  M& m;
  const Job& job;
  const AttentionCall& c;
  const int consumer;
  const int lane = static_cast<int>(threadIdx.x % 32);
  Ring<C::kStages> ring;
  unsigned taken = 0;  // tiles of queries
  // Of the tile of queries:
  int left;        // tiles of keys before this one, none of which has been read
  SeenKeys whole;  // of the tiles, those that all queries of the consumer see
  float logits[C::kKeys / 2];
  uint32_t weights[C::kKeys / 16][4];
  float out[C::kColumns / 2];
  RowSums sums;
  float kept[2];            // of what was summed up before the tile
  bool grew = false;        // is any of the warp's `kept` not 1
  MaskTile<C::kKeys> mask;  // of general kernels

  __device__ Consumer(M& memory, const Job& j, int which)
      : m(memory), job(j), c(j.base.call), consumer(which) {}

  // Consumers start products in turns: 1 + consumer is the barrier of its turn.
  __device__ void await_turn() const {
    if constexpr (C::kTurns) sync_threads(1 + consumer, 256);
  }
  __device__ void pass_turn() const {
    if constexpr (C::kTurns) arrive_threads(consumer + 1 == C::kConsumers ? 1 : 2 + consumer, 256);
  }
  // By each warp, without a branch.
  __device__ void release(uint64_t* barrier) const {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.s32 p, %1, 0;\n"
        "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(shared_address(barrier)),
        "r"(lane)
        : "memory");
  }

  // The same behind make_exponentials: ptxas would put the wait for the sums before them, but not
  // before an arrival, and it doesn't know that their sum is never below 0.
  __device__ void release_behind_exponentials(uint64_t* barrier) const {
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.lt.f32 q, %2, 0f00000000;\nsetp.eq.and.s32 p, %1, 0, !q;\n"
        "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(shared_address(barrier)),
        "r"(lane), "f"(sums.sum[0] + sums.sum[1])
        : "memory");
  }

  // ---- products ----

  __device__ void start_logits() {
    const uint64_t q = describe<true>(m.q[consumer][0], 0);
    const uint64_t k = describe<true>(m.k[ring.stage][0], 0);
#pragma unroll
    for (int i = 0; i < C::kColumns / 16; ++i) {
      const uint64_t a = q + i / 4 * (M::kQPiece >> 4) + i % 4 * 2;
      const uint64_t b = k + i / 4 * (M::kTilePiece >> 4) + i % 4 * 2;
      multiply_rows<C::kWgmma, C::kKeys>(logits, a, b, i > 0);
    }
    commit_wgmma();
  }
  __device__ void start_sums(int stage) {
    const uint64_t v = describe<false>(m.v[stage][0], M::kTilePiece);
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i)
      multiply_across<C::kWgmma, C::kColumns>(out, weights[i], v + i * (16 * 128 >> 4), 1);
    commit_wgmma();
  }
  __device__ void hold_all() {
    hold(logits);
    hold(weights);
    hold(out);
    fence_wgmma();
  }

  // ---- logits of general kernels ----

  __device__ const char* mask_row(const Work& w, int h) const {
    return c.mask_row(w.batch, w.head, min(first_row(w) + 8 * h, w.end - 1));
  }
  __device__ void load_mask(const Work& w) {
    const MaskKind kind = job.rule.mask;
    if (kind == MaskKind::kNone || kind == MaskKind::kElements) return;
    const int key = first_key(w) + lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      mask.load_row(kind, h, mask_row(w, h) + key * c.mask.column, c.keys - key);
  }
  // A mask of any strides: f(logit, where the key's element is).
  template <class F>
  __device__ void for_elements(const Work& w, F f) {
    const int key0 = first_key(w);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const char* const from = mask_row(w, h);
#pragma unroll
      for (int n = 0; n < kEights; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = min(key0 + n * 8 + lane % 4 * 2 + e, c.keys - 1);
          float& logit = logits[4 * n + 2 * h + e];
          logit = f(logit, from + key * c.mask.column);
        }
    }
  }
  __device__ void add_elements(const Work& w) {
    const float outer = job.rule.outer;
    switch (c.mask.dtype) {
      case DType::kBool:
        return for_elements(w, [](float t, const char* at) { return *at ? t : -INFINITY; });
      case DType::kF32:
        return for_elements(w, [outer](float t, const char* at) {
          return fmaf(t, outer, *reinterpret_cast<const float*>(at));
        });
      default:
        return for_elements(w,
                            [outer, bf16 = c.mask.dtype == DType::kBF16](float t, const char* at) {
                              const auto bits = *reinterpret_cast<const unsigned short*>(at);
                              return fmaf(t, outer,
                                          bf16 ? __uint_as_float(uint32_t{bits} << 16)
                                               : __half2float(__ushort_as_half(bits)));
                            });
    }
  }
  __device__ void add_mask(const Work& w) {
    const auto add = [outer = job.rule.outer](float t, float by) { return fmaf(t, outer, by); };
    switch (job.rule.mask) {
      case MaskKind::kNone: return;
      case MaskKind::kBf16: return mask.for_bf16(logits, add);
      case MaskKind::kF16: return mask.for_f16(logits, add);
      case MaskKind::kBool: return mask.hide(logits);
      case MaskKind::kElements: return add_elements(w);
    }
  }
  __device__ void make_logits(const Work& w) {
    if constexpr (C::kGeneral) {
      if (job.rule.inner != 0) bend(logits, job.rule.inner);
      add_mask(w);
    }
    hide_keys(w);
  }

  // ---- softmax ----

  __device__ void hide_keys(const Work& w) {
    if (left >= whole.begin && left < whole.end) return;
    const int key0 = first_key(w);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const SeenKeys seen = w.seen(c, first_row(w) + 8 * h);
      const int before = key0 + lane % 4 * 2;
      const int begin = seen.begin - before, end = seen.end - before;
#pragma unroll
      for (int n = 0; n < kEights; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = n * 8 + e;
          float& logit = logits[4 * n + 2 * h + e];
          logit = at >= begin && at < end ? logit : -INFINITY;
        }
    }
  }
  // Under logits below -kSafe, which masks make, sums stay 0: a larger one may follow, and if none
  // does, the row is made again.
  __device__ float base_of(float most) const {
    const float base = fmaf(most, job.unit, -kShift);
    if constexpr (C::kGeneral) return base > -kSafe ? base : 0;
    return most == -INFINITY ? 0 : base;
  }
  // Logits to exponentials.
  __device__ void make_exponentials() {
    bool mine = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = fmaxf(logits[2 * h], logits[2 * h + 1]);
#pragma unroll
      for (int n = 1; n < kEights; ++n)
        most = fmaxf(most, fmaxf(logits[4 * n + 2 * h], logits[4 * n + 2 * h + 1]));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      const float old = sums.largest[h];
      const bool more = most > old + job.slack;
      if (more) sums.largest[h] = most;
      mine |= more;
      const float base = base_of(sums.largest[h]);
      kept[h] = more ? quick_exp2(fmaf(old, job.unit, -kShift) - base) : 1;
      if (!C::kGeneral && fabsf(base) >= kSafe) sums.unsafe |= 1u << h;
      float added[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < kEights; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& logit = logits[4 * n + 2 * h + e];
          logit = quick_exp2(fmaf(logit, job.unit, -base));
          added[e] += logit;
        }
      sums.sum[h] = fmaf(sums.sum[h], kept[h], added[0] + added[1]);
    }
    grew = __any_sync(kAllLanes, mine);
  }
  __device__ static uint32_t pack(float low, float high) {
    if constexpr (kF16) {
      const __half2 pair = __floats2half2_rn(low, high);
      return *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      return *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
  __device__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        weights[i][j] = pack(logits[8 * i + 2 * j], logits[8 * i + 2 * j + 1]);
  }
  __device__ void scale_out() {
    if (!grew) return;
#pragma unroll
    for (int n = 0; n < kOutEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[4 * n + e] *= kept[e / 2];
  }

  // ---- tiles of queries ----

  __device__ int first_row(const Work& w) const {
    return w.row0 + consumer * 64 + static_cast<int>(threadIdx.x % 128 / 32) * 16 + lane / 4;
  }
  __device__ const Work& work() const { return m.works[(taken - 1) % kWorks]; }
  __device__ const Work& work_before() const { return m.works[(taken - 2) % kWorks]; }
  __device__ int first_key(const Work& w) const { return w.any.begin + left * C::kKeys; }
  // The next tile of queries. False: there is none.
  __device__ bool take() {
    wait(&m.q_full[consumer], taken & 1);
    const Work& w = m.works[taken++ % kWorks];
    if (w.tiles < 0) return false;
    begin(w);
    return true;
  }
  __device__ void begin(const Work& w) {
    const int row0 = w.row0 + consumer * 64, last = w.end - 1;
    const int begin = w.seen(c, min(row0 + 63, last)).begin - w.any.begin;
    const int end = w.seen(c, min(row0, last)).end - w.any.begin;
    whole = {(begin + C::kKeys - 1) / C::kKeys, max(0, end) / C::kKeys};
    left = w.tiles - 1;
    sums = {};
  }
  __device__ void clear_out() {
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i) out[i] = 0;
  }
  // q is needed no more where these were the last logits.
  __device__ void release_queries() {
    if (left == 0) release(&m.q_empty[consumer]);
  }
  __device__ void run() {
    if (!take()) return;
    first_exponentials();
    for (;;) {
      while (left > 0) {
        --left;
        go_on<false>();
      }
      const EndedRows last = end_rows();
      if (!take()) return last_sums(last);
      go_on<true>();
      finish(work_before(), last);
      clear_out();
    }
  }
  // The exponentials of a tile and the sums of the one before it, whose queries are others if kFresh.
  // Two copies: in one loop with a branch the compiler takes places in the ring for a thread's own,
  // and makes descriptors outside of uniform registers.
  template <bool kFresh>
  __device__ __forceinline__ void go_on() {
    const Ring<C::kStages> values = ring.before();
    wait(&m.k_full[ring.stage], ring.parity);
    await_turn();
    hold_all();
    start_logits();
    wait(&m.v_full[values.stage], values.parity);
    start_sums(values.stage);
    pass_turn();
    if constexpr (C::kGeneral) load_mask(work());
    wait_wgmma<1>();
    hold(logits);
    release_queries();
    make_logits(work());
    make_exponentials();
    release_behind_exponentials(&m.k_empty[ring.stage]);
    wait_wgmma<0>();
    hold(out);
    hold(weights);
    release(&m.v_empty[values.stage]);
    if constexpr (!kFresh) scale_out();
    pack_weights();
    ring.advance();
  }
  __device__ void first_exponentials() {
    if constexpr (C::kGeneral) load_mask(work());
    wait(&m.k_full[ring.stage], ring.parity);
    hold_all();
    start_logits();
    wait_wgmma<0>();
    hold(logits);
    release_queries();
    release(&m.k_empty[ring.stage]);
    make_logits(work());
    make_exponentials();
    pack_weights();
    clear_out();
    ring.advance();
  }
  // There is no next tile of queries.
  __device__ __forceinline__ void last_sums(EndedRows last) {
    const Ring<C::kStages> values = ring.before();
    wait(&m.v_full[values.stage], values.parity);
    hold_all();
    start_sums(values.stage);
    wait_wgmma<0>();
    hold(out);
    finish(work_before(), last);
  }

  // ---- results ----

  // Is the largest logit so large that folding the scale in lost what it should keep?
  __device__ bool is_unsafe(int h) const {
    if constexpr (!C::kGeneral) return (sums.unsafe >> h & 1) != 0;
    const float base = fmaf(sums.largest[h], job.unit, -kShift);
    return sums.largest[h] != -INFINITY && !(fabsf(base) < kSafe - 1024);
  }
  __device__ __forceinline__ EndedRows end_rows() const {
    EndedRows ended{};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = sums.sum[h];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      const bool again = (__ballot_sync(kAllLanes, is_unsafe(h)) >> (lane & ~3) & 15) != 0;
      // Else the compiler chooses by address, and what has one leaves the registers.
      float most = sums.largest[h];
      asm("" : "+f"(most));
      if (lane % 4 == h) ended.part = most;
      if (lane % 4 == 2 + h) ended.part = again ? -1 : total;
    }
    return ended;
  }
  __device__ bool is_finite(int h) const {
    float zero = 0;
#pragma unroll
    for (int n = 0; n < kOutEights; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) zero = fmaf(out[4 * n + 2 * h + e], 0.0f, zero);
    return zero == 0;
  }
  template <class Store>
  __device__ void store_columns(int h, float factor, Store store) const {
#pragma unroll
    for (int n = 0; n < kOutEights; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      if (column < c.value_depth)
        store(column, out[4 * n + 2 * h] * factor, out[4 * n + 2 * h + 1] * factor);
    }
  }
  __device__ void store_row(int h, char* to, float factor) const {
    switch (job.base.out.dtype) {
      case DType::kF32:
        return store_columns(h, factor, [to](int column, float a, float b) {
          *reinterpret_cast<float2*>(to + column * 4) = make_float2(a, b);
        });
      case DType::kBF16:
        return store_columns(h, factor, [to](int column, float a, float b) {
          *reinterpret_cast<__nv_bfloat162*>(to + column * 2) = __floats2bfloat162_rn(a, b);
        });
      default:
        return store_columns(h, factor, [to](int column, float a, float b) {
          *reinterpret_cast<__half2*>(to + column * 2) = __floats2half2_rn(a, b);
        });
    }
  }
  __device__ __forceinline__ void finish(const Work& w, EndedRows ended) {
    const int row0 = first_row(w);
    unsigned again = 0;  // rows of the warp
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = row0 + 8 * h;
      const float largest = ended.largest(lane, h), total = ended.sum(lane, h);
      const bool is_nan = total != total;
      const bool wrong = total < 0 || (total != 0 && !is_nan && !is_finite(h));
      const unsigned wrong_lanes = __ballot_sync(kAllLanes, wrong && query < w.end);
      const bool redo = (wrong_lanes >> (lane & ~3) & 15) != 0;
      again |= __reduce_or_sync(kAllLanes, redo ? 1u << (lane / 4 + 8 * h) : 0);
      if (query >= w.end || redo) continue;
      if (total == 0) {  // nothing is seen, and v may have been anything
#pragma unroll
        for (int n = 0; n < kOutEights; ++n) out[4 * n + 2 * h] = out[4 * n + 2 * h + 1] = 0;
      }
      float lse;
      const float factor = end_row(c, largest, base_of(largest), total, w.head, &lse);
      store_row(h, job.base.out.at(w.batch, w.head, query), factor);
      if (lane % 4 == 0) store_lse(job, w, query, lse);
    }
    for (; again != 0; again &= again - 1)
      attention_row(job.base, w.batch, w.head,
                    row0 - lane / 4 + __ffs(static_cast<int>(again)) - 1);
  }
};

template <class C>
__device__ inline void init(Memory<C>& m) {
  constexpr int kWarps = 4 * C::kConsumers;
  init_barrier(&m.cut, 1);
  for (int i = 0; i < C::kConsumers; ++i) {
    init_barrier(&m.q_full[i], 1);
    init_barrier(&m.q_empty[i], 4);
  }
  for (int i = 0; i < C::kStages; ++i) {
    init_barrier(&m.k_full[i], 1);
    init_barrier(&m.k_empty[i], kWarps);
    init_barrier(&m.v_full[i], 1);
    init_barrier(&m.v_empty[i], kWarps);
  }
  publish_barriers();
}

#endif  // PESTLE_HOPPER

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_hopper_kernel(const __grid_constant__ Job job) {
#if PESTLE_HOPPER
  extern __shared__ __align__(1024) char raw[];
  Memory<C>& m = *reinterpret_cast<Memory<C>*>(raw);
  if (threadIdx.x == 0) init(m);
  __syncthreads();
  // By a shuffle: the compiler knows it for the same in a warp.
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    give_registers<C::kProducerRegisters>();
    if (threadIdx.x < 32) {
      KeyLoader<C> loader{m, job};
      for_works<C>(job, [&](const Work& w) { loader.run(w); });
    } else if (threadIdx.x == 32) {
      QueryLoader<C> loader{m, job};
      for_works<C>(job, [&](const Work& w) { loader.run(w); });
      loader.end();
    } else if (threadIdx.x >= 64 && threadIdx.x < 96) {
      for_works<C>(job, [&](const Work& w) { finish_unseeing<C>(job, w); });
    }
  } else {
    take_registers<C::kConsumerRegisters>();
    Consumer<C> consumer(m, job, warpgroup - 1);
    if (warpgroup == C::kConsumers) consumer.pass_turn();
    consumer.run();
  }
#endif
}

}  // namespace pestle::cuda::attention_hopper
