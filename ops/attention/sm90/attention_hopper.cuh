// Attention of bf16 and f16 on Hopper: wgmma and the tensor copy engine, for heads of up to 256
// columns.
//
// Map      A persistent grid, one block a multiprocessor: a producer warp, which copies tiles of k
//          and v into a ring, and two or three consumer warpgroups of 64 queries of one head each.
//          A consumer has its logits, its exponentials (the register operand of the second product)
//          and its sums in registers. It starts the logits of the next tile and the sums of this
//          one together, and makes the next exponentials while the sums are at work. Consumers take
//          turns to start products, so that one's exponentials lie beside the other's products.
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

#include "backends/cuda/device/ptx/wgmma_registers.cuh"
#include "ops/attention/sm80/attention_row.cuh"
#include "ops/attention/sm90/attention_hopper.h"
#include "ops/attention/sm90/attention_hopper_mask.cuh"

namespace pestle::cuda::attention_hopper {

using hopper::WgmmaType;

// kGeneral: with a soft cap or a mask, of which a tile lies in registers, too.
template <WgmmaType kOf, int kColumnsOf, bool kGeneralOf>
struct Config {
  static constexpr WgmmaType kWgmma = kOf;
  static constexpr int kColumns = kColumnsOf;  // of q, k, v at most
  static constexpr bool kGeneral = kGeneralOf;
  static constexpr int kConsumers = kColumns == 64 && !kGeneral ? 3 : 2;
  static constexpr int kKeys = kColumns == 256 ? 64 : kColumns == 64 || kGeneral ? 128 : 176;
  static constexpr int kStages = kColumns == 64 ? 3 : 2;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
};

// Of 64 columns, all rows of a tile, one piece of shared memory in rows of 128 bytes.
template <class C>
struct Memory {
  static constexpr int kPieces = C::kColumns / 64;
  static constexpr int kQPiece = C::kRows * 128, kTilePiece = C::kKeys * 128;
  char q[kPieces][kQPiece];
  char k[C::kStages][kPieces][kTilePiece];
  char v[C::kStages][kPieces][kTilePiece];
  uint64_t q_full, q_empty;
  uint64_t k_full[C::kStages], k_empty[C::kStages];
  uint64_t v_full[C::kStages], v_empty[C::kStages];
  uint64_t cut;  // values are there whose last rows become 0
};

struct Job {
  AttentionJob base;  // its tiles: of one head
  BoxedRows q, k, v;
  LogitRule rule;  // of general kernels
  int total = 0;   // tiles of queries
};

#if PESTLE_HOPPER

using namespace hopper;

// The place in the ring of tiles, and how often it went round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A tile of queries of one head.
struct Work {
  int batch, head, row0;
  int end;        // of the queries of its sequence
  SeenKeys keys;  // of its sequence that count
  int place0;     // of query 0 among the keys
  SeenKeys any;   // by one of the queries
  int tiles;      // of keys

  __device__ SeenKeys seen(const AttentionCall& c, int query) const {
    const int place = place0 + query;
    return {max(keys.begin, place - c.left), min(keys.end, place + c.right + 1)};
  }
};

// Which of packed sequences a tile is of. Queries before the first sequence and behind the last are
// a sequence without keys each. Sequence i, so counted, begins at tile begin / rows + i: that leaves
// it the tiles it needs, and sometimes an empty one.
struct Sequence {
  int row0, begin, end;  // of the tile; of the queries
  SeenKeys keys;
};
__device__ inline Sequence find_sequence(const AttentionCall& c, int tile, int rows) {
  const auto begin_of = [&](int i) { return i == 0 ? 0 : c.q_offsets.integer(i - 1, c.queries); };
  const int count = c.q_offsets.count;
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begin_of(middle) / rows + middle <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  Sequence s{.begin = begin_of(low), .end = low == count ? c.queries : begin_of(low + 1)};
  s.row0 = s.begin + (tile - s.begin / rows - low) * rows;
  if (low > 0 && low < count) {
    s.keys.begin = c.k_offsets.integer(low - 1, c.keys);
    s.keys.end = max(s.keys.begin, c.k_offsets.integer(low, c.keys));
  }
  return s;
}

template <class C>
__device__ inline Work work_at(const Job& job, int index) {
  const AttentionCall& c = job.base.call;
  // Sections of heads, in each all heads' tiles in turns.
  const int heads = c.batches * c.heads, a_section = job.base.section * job.base.tiles;
  const int first = index / a_section * job.base.section, rest = index % a_section;
  const int here = min(job.base.section, heads - first);
  const int head = first + rest % here, tile = rest / here;
  Work w;
  w.batch = head / c.heads;
  w.head = head % c.heads;
  const int in_order = job.base.last_first ? job.base.tiles - 1 - tile : tile;
  if (c.q_offsets.present()) {
    const Sequence s = find_sequence(c, in_order, C::kRows);
    w.row0 = s.row0;
    w.end = s.end;
    w.keys = s.keys;
    w.place0 = c.bottom_right ? s.keys.end - s.end : s.keys.begin - s.begin;
  } else {
    w.row0 = in_order * C::kRows;
    w.end = c.queries;
    w.keys = {0, c.key_lengths.present() ? c.key_lengths.integer(w.batch, c.keys) : c.keys};
    w.place0 = c.bottom_right ? w.keys.end - c.queries : 0;
  }
  // Both ends of what a query sees ascend with it.
  w.any = {w.seen(c, w.row0).begin, w.seen(c, min(w.row0 + C::kRows, w.end) - 1).end};
  if (C::kGeneral) w.any.begin &= ~7;  // where pairs of a mask begin
  w.tiles = w.row0 < w.end ? max(0, w.any.end - w.any.begin + C::kKeys - 1) / C::kKeys : 0;
  return w;
}

// The block's tiles of queries, one after the other.
template <class C, class F>
__device__ inline void for_works(const Job& job, F f) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  bool back = false;
  for (int first = 0; first < job.total; first += blocks, back = !back) {
    const int index = first + (back ? blocks - 1 - block : block);
    if (index < job.total) f(work_at<C>(job, index));
  }
}

// ---- the producer: a warp --------------------------------------------------------------------

template <class C>
struct Producer {
  using M = Memory<C>;
  M& m;
  const Job& job;
  int lane = static_cast<int>(threadIdx.x % 32);
  Ring<C::kStages> ring;
  uint32_t q_parity = 0, cut_parity = 0;

  template <int kRows, int kPieces>
  __device__ void load(char (&to)[kPieces][kRows], const BoxedRows& from, uint64_t* barrier,
                       int row, int batch, int head) const {
    arrive_expecting(barrier, kRows * kPieces);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      load_box(to[i], &from.map, barrier, i * 64, row, head + batch * from.batch_heads);
  }
  // Rows of values from `first` on become 0.
  __device__ void clear_values(int first) const {
    uint4* to = reinterpret_cast<uint4*>(m.v[ring.stage]);
#pragma unroll 1
    for (int piece = 0; piece < M::kPieces; ++piece)
#pragma unroll 1
      for (int i = first * 8 + lane; i < C::kKeys * 8; i += 32)
        to[piece * (M::kTilePiece / 16) + i] = make_uint4(0, 0, 0, 0);
  }
  // Behind its keys nothing is that counts, though there is memory.
  __device__ bool ends_keys(const Work& w) const {
    const AttentionCall& c = job.base.call;
    if (w.keys.end == c.keys) return false;
    return !c.q_offsets.present() ||
           w.keys.end == c.k_offsets.integer(c.k_offsets.count - 1, c.keys);
  }
  __device__ void load_values(const Work& w, int key_head, int key0) {
    wait(&m.v_empty[ring.stage], ring.parity ^ 1);
    const bool cut = key0 + C::kKeys > w.keys.end && ends_keys(w);
    uint64_t* const full = &m.v_full[ring.stage];
    if (lane == 0) load(m.v[ring.stage], job.v, cut ? &m.cut : full, key0, w.batch, key_head);
    if (!cut) return;
    __syncwarp();
    wait(&m.cut, cut_parity);
    cut_parity ^= 1;
    clear_values(w.keys.end - key0);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) arrive(full);
  }
  __device__ void run(const Work& w) {
    if (w.tiles == 0) return;
    const int key_head = w.head / job.base.call.group;
    if (lane == 0) {
      wait(&m.q_empty, q_parity ^ 1);
      load(m.q, job.q, &m.q_full, w.row0, w.batch, w.head);
    }
    q_parity ^= 1;
    for (int t = w.tiles - 1; t >= 0; --t) {
      const int key0 = w.any.begin + t * C::kKeys;
      if (lane == 0) {
        wait(&m.k_empty[ring.stage], ring.parity ^ 1);
        load(m.k[ring.stage], job.k, &m.k_full[ring.stage], key0, w.batch, key_head);
      }
      load_values(w, key_head, key0);
      ring.advance();
    }
  }
};

// ---- a consumer: a warpgroup -----------------------------------------------------------------

template <class C>
struct Consumer {
  using M = Memory<C>;
  static constexpr int kEights = C::kKeys / 8, kOutEights = C::kColumns / 8;
  static constexpr bool kF16 = C::kWgmma == WgmmaType::kF16;
  static constexpr float kShift = kF16 ? 8 : 0;  // of exponentials' exponents
  static constexpr float kSlack = kF16 ? 7 : 8;
  static constexpr float kSafe = 0x1p22f;

  M& m;
  const Job& job;
  const AttentionCall& c;
  const int consumer;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float scale;  // of the logits to those of 2^x
  const float slack;  // of logits
  Ring<C::kStages> ring;
  uint32_t q_parity = 0;
  // Of the tile of queries:
  int row;  // the first of this thread's two, 8 apart
  SeenKeys all;
  float logits[C::kKeys / 2];
  uint32_t weights[C::kKeys / 16][4];
  float out[C::kColumns / 2];
  float largest[2], sum[2];
  float kept[2];      // of what was summed up before the tile
  bool grew = false;  // is any of the warp's `kept` not 1
  unsigned unsafe = 0;
  MaskTile<C::kKeys> mask;  // of general kernels

  __device__ static float unit_of(const Job& j) {
    return C::kGeneral ? j.rule.unit : j.base.call.scale * kLog2E;
  }
  __device__ Consumer(M& memory, const Job& j, int which)
      : m(memory),
        job(j),
        c(j.base.call),
        consumer(which),
        scale(unit_of(j)),
        slack(fminf(kSlack / unit_of(j), 0x1p127f)) {}

  // Consumers start products in turns: 1 + consumer is the barrier of its turn.
  __device__ void await_turn() const { sync_threads(1 + consumer, 256); }
  __device__ void pass_turn() const {
    arrive_threads(consumer + 1 == C::kConsumers ? 1 : 2 + consumer, 256);
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
        "r"(lane), "f"(sum[0] + sum[1])
        : "memory");
  }

  // ---- products ----

  __device__ void start_logits() {
    const uint64_t q = describe<true>(m.q[0] + consumer * 64 * 128, 0);
    const uint64_t k = describe<true>(m.k[ring.stage][0], 0);
#pragma unroll
    for (int i = 0; i < C::kColumns / 16; ++i) {
      const uint64_t a = q + i / 4 * (M::kQPiece >> 4) + i % 4 * 2;
      const uint64_t b = k + i / 4 * (M::kTilePiece >> 4) + i % 4 * 2;
      if constexpr (C::kKeys == 176)
        multiply_176<C::kWgmma>(logits, a, b, i > 0);
      else
        multiply<C::kWgmma, C::kKeys, true, true>(logits, a, b, i > 0);
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
    return c.mask_row(w.batch, w.head, min(row + 8 * h, w.end - 1));
  }
  __device__ void load_mask(const Work& w, int key0) {
    const MaskKind kind = job.rule.mask;
    if (kind == MaskKind::kNone || kind == MaskKind::kElements) return;
    const int key = key0 + lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      mask.load_row(kind, h, mask_row(w, h) + key * c.mask.column, c.keys - key);
  }
  // A mask of any strides: f(logit, where the key's element is).
  template <class F>
  __device__ void for_elements(const Work& w, int key0, F f) {
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
  __device__ void add_elements(const Work& w, int key0) {
    const float outer = job.rule.outer;
    switch (c.mask.dtype) {
      case DType::kBool:
        return for_elements(w, key0, [](float t, const char* at) { return *at ? t : -INFINITY; });
      case DType::kF32:
        return for_elements(w, key0, [outer](float t, const char* at) {
          return fmaf(t, outer, *reinterpret_cast<const float*>(at));
        });
      default:
        return for_elements(w, key0,
                            [outer, bf16 = c.mask.dtype == DType::kBF16](float t, const char* at) {
                              const auto bits = *reinterpret_cast<const unsigned short*>(at);
                              return fmaf(t, outer,
                                          bf16 ? __uint_as_float(uint32_t{bits} << 16)
                                               : __half2float(__ushort_as_half(bits)));
                            });
    }
  }
  __device__ void add_mask(const Work& w, int key0) {
    const auto add = [outer = job.rule.outer](float t, float by) { return fmaf(t, outer, by); };
    switch (job.rule.mask) {
      case MaskKind::kNone: return;
      case MaskKind::kBf16: return mask.for_bf16(logits, add);
      case MaskKind::kF16: return mask.for_f16(logits, add);
      case MaskKind::kBool: return mask.hide(logits);
      case MaskKind::kElements: return add_elements(w, key0);
    }
  }
  __device__ void make_logits(const Work& w, int key0) {
    if constexpr (C::kGeneral) {
      if (job.rule.inner != 0) bend(logits, job.rule.inner);
      add_mask(w, key0);
    }
    hide_keys(w, key0);
  }

  // ---- softmax ----

  __device__ void hide_keys(const Work& w, int key0) {
    if (key0 >= all.begin && key0 + C::kKeys <= all.end) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const SeenKeys seen = w.seen(c, row + 8 * h);
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
    const float base = fmaf(most, scale, -kShift);
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
      const float old = largest[h];
      const bool more = most > old + slack;
      if (more) largest[h] = most;
      mine |= more;
      const float base = base_of(largest[h]);
      kept[h] = more ? quick_exp2(fmaf(old, scale, -kShift) - base) : 1;
      if (!C::kGeneral && fabsf(base) >= kSafe) unsafe |= 1u << h;
      float added[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < kEights; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& logit = logits[4 * n + 2 * h + e];
          logit = quick_exp2(fmaf(logit, scale, -base));
          added[e] += logit;
        }
      sum[h] = fmaf(sum[h], kept[h], added[0] + added[1]);
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

  // ---- a tile of queries ----

  __device__ void begin(const Work& w) {
    const int row0 = w.row0 + consumer * 64, last = w.end - 1;
    row = row0 + static_cast<int>(threadIdx.x % 128 / 32) * 16 + lane / 4;
    all = {w.seen(c, min(row0 + 63, last)).begin, w.seen(c, min(row0, last)).end};
#pragma unroll
    for (int h = 0; h < 2; ++h) largest[h] = -INFINITY, sum[h] = 0;
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i) out[i] = 0;
    unsafe = 0;
  }
  __device__ void run(const Work& w) {
    begin(w);
    if (w.tiles > 0) sum_up(w);
    finish(w);
  }
  __device__ void sum_up(const Work& w) {
    int key0 = w.any.begin + (w.tiles - 1) * C::kKeys;
    if constexpr (C::kGeneral) load_mask(w, key0);
    wait(&m.q_full, q_parity);
    q_parity ^= 1;
    wait(&m.k_full[ring.stage], ring.parity);
    hold_all();
    start_logits();
    wait_wgmma<0>();
    hold(logits);
    release(&m.k_empty[ring.stage]);
    make_logits(w, key0);
    make_exponentials();
    pack_weights();
    Ring<C::kStages> values = ring;
    ring.advance();
    for (int t = w.tiles - 1; t > 0; --t) {
      key0 -= C::kKeys;
      wait(&m.k_full[ring.stage], ring.parity);
      await_turn();
      hold_all();
      start_logits();
      wait(&m.v_full[values.stage], values.parity);
      start_sums(values.stage);
      pass_turn();
      if constexpr (C::kGeneral) load_mask(w, key0);
      wait_wgmma<1>();
      hold(logits);
      make_logits(w, key0);
      make_exponentials();
      release_behind_exponentials(&m.k_empty[ring.stage]);
      wait_wgmma<0>();
      hold(out);
      hold(weights);
      release(&m.v_empty[values.stage]);
      scale_out();
      pack_weights();
      values = ring;
      ring.advance();
    }
    release(&m.q_empty);
    wait(&m.v_full[values.stage], values.parity);
    hold_all();
    start_sums(values.stage);
    wait_wgmma<0>();
    hold(out);
    release(&m.v_empty[values.stage]);
  }

  // ---- results ----

  // What the row's sums are multiplied by; its log-sum-exp.
  __device__ float finish_row(float most, float total, int head, float* lse) const {
    float base = base_of(most), part = 1;
    if (c.sinks.present()) {
      const float own = most == -INFINITY ? most : base;
      const float sink = load_float(c.sinks.data + head * c.sinks.stride, c.sinks.dtype) * kLog2E;
      const float larger = fmaxf(own, sink);
      base = larger == -INFINITY ? 0 : larger;
      part = quick_exp2(own - base);
      total = total * part + quick_exp2(sink - base);
    }
    *lse = total == 0 ? -INFINITY : (base + log2f(total)) * kLn2;
    return total == 0 ? 0 : part / total;
  }
  // Is the largest logit so large that folding the scale in lost what it should keep?
  __device__ bool is_unsafe(int h) const {
    if constexpr (!C::kGeneral) return (unsafe >> h & 1) != 0;
    const float base = fmaf(largest[h], scale, -kShift);
    return largest[h] != -INFINITY && !(fabsf(base) < kSafe - 1024);
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
  __device__ void finish(const Work& w) {
    unsigned again = 0;  // rows of the warp
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = row + 8 * h;
      float total = sum[h];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      const bool is_nan = total != total;
      const bool wrong = is_unsafe(h) || (total != 0 && !is_nan && !is_finite(h));
      const unsigned wrong_lanes = __ballot_sync(kAllLanes, wrong && query < w.end);
      const bool redo = (wrong_lanes >> (lane & ~3) & 15) != 0;
      again |= __reduce_or_sync(kAllLanes, redo ? 1u << (lane / 4 + 8 * h) : 0);
      if (query >= w.end || redo) continue;
      if (total == 0) {  // nothing is seen, and v may have been anything
#pragma unroll
        for (int n = 0; n < kOutEights; ++n) out[4 * n + 2 * h] = out[4 * n + 2 * h + 1] = 0;
      }
      float lse;
      const float factor = finish_row(largest[h], total, w.head, &lse);
      store_row(h, job.base.out.at(w.batch, w.head, query), factor);
      if (job.base.lse.present() && lane % 4 == 0)
        *reinterpret_cast<float*>(job.base.lse.at(w.batch, w.head, query)) = lse;
    }
    const int row0 = row - lane / 4;
    for (; again != 0; again &= again - 1)
      attention_row(job.base, w.batch, w.head, row0 + __ffs(static_cast<int>(again)) - 1);
  }
};

template <class C>
__device__ inline void init(Memory<C>& m) {
  constexpr int kWarps = 4 * C::kConsumers;
  init_barrier(&m.q_full, 1);
  init_barrier(&m.q_empty, kWarps);
  init_barrier(&m.cut, 1);
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
    if (threadIdx.x / 32 != 0) return;
    Producer<C> producer{m, job};
    for_works<C>(job, [&](const Work& w) { producer.run(w); });
  } else {
    take_registers<C::kConsumerRegisters>();
    Consumer<C> consumer(m, job, warpgroup - 1);
    if (warpgroup == C::kConsumers) arrive_threads(1, 256);
    for_works<C>(job, [&](const Work& w) { consumer.run(w); });
  }
#endif
}

}  // namespace pestle::cuda::attention_hopper
