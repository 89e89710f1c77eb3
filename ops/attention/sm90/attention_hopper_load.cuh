// Of attention on Hopper (attention_hopper.cuh): the warps that load. One loads q for each consumer as
// soon as it has read the q before, and says which tile of queries it is; another k and v; a third
// finishes queries that see no key.
#pragma once

#include "ops/attention/sm90/attention_hopper_work.cuh"

namespace pestle::cuda::attention_hopper {

#if PESTLE_HOPPER

// All columns of rows of a tile.
template <int kBytes, int kPieces>
__device__ inline void load_rows(char (&to)[kPieces][kBytes], const BoxedRows& from,
                                 uint64_t* barrier, int row, int batch, int head) {
  arrive_expecting(barrier, kBytes * kPieces);
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    load_box(to[i], &from.map, barrier, i * 64, row, head + batch * from.batch_heads);
}

// One thread.
template <class C>
struct QueryLoader {
  Memory<C>& m;
  const Job& job;
  int slot = 0;
  uint32_t parity = 1;

  template <class F>
  __device__ void announce(const Work& w, F f) {
#pragma unroll 1
    for (int i = 0; i < C::kConsumers; ++i) {
      wait(&m.q_empty[i], parity);
      if (i == 0) m.works[slot] = w;
      f(i);
    }
    parity ^= 1;
    slot = (slot + 1) % kWorks;
  }
  __device__ void run(const Work& w) {
    if (w.tiles == 0) return;
    announce(w, [&](int i) {
      load_rows(m.q[i], job.q, &m.q_full[i], w.row0 + 64 * i, w.batch, w.head);
    });
  }
  __device__ void end() {
    Work none{};
    none.tiles = -1;
    announce(none, [&](int i) { arrive(&m.q_full[i]); });
  }
};

// A warp.
template <class C>
struct KeyLoader {
  using M = Memory<C>;
  M& m;
  const Job& job;
  int lane = static_cast<int>(threadIdx.x % 32);
  Ring<C::kStages> ring;
  uint32_t cut_parity = 0;

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
    if (lane == 0) load_rows(m.v[ring.stage], job.v, cut ? &m.cut : full, key0, w.batch, key_head);
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
    const int key_head = w.head / job.base.call.group;
    for (int t = w.tiles - 1; t >= 0; --t) {
      const int key0 = w.any.begin + t * C::kKeys;
      if (lane == 0) {
        wait(&m.k_empty[ring.stage], ring.parity ^ 1);
        load_rows(m.k[ring.stage], job.k, &m.k_full[ring.stage], key0, w.batch, key_head);
      }
      load_values(w, key_head, key0);
      ring.advance();
    }
  }
};

// What a row's sums, of exponentials of `total` on `base`, are multiplied by; its log-sum-exp.
__device__ inline float end_row(const AttentionCall& c, float largest, float base, float total,
                                int head, float* lse) {
  float part = 1;
  if (c.sinks.present()) {
    const float own = largest == -INFINITY ? largest : base;
    const float sink = load_float(c.sinks.data + head * c.sinks.stride, c.sinks.dtype) * kLog2E;
    const float larger = fmaxf(own, sink);
    base = larger == -INFINITY ? 0 : larger;
    part = quick_exp2(own - base);
    total = total * part + quick_exp2(sink - base);
  }
  *lse = total == 0 ? -INFINITY : (base + log2f(total)) * kLn2;
  return total == 0 ? 0 : part / total;
}
__device__ inline void store_lse(const Job& job, const Work& w, int query, float lse) {
  if (job.base.lse.present())
    *reinterpret_cast<float*>(job.base.lse.at(w.batch, w.head, query)) = lse;
}

// A warp: queries that see no key. Rows of results lie at multiples of 4 bytes and are so long.
template <class C>
__device__ inline void finish_unseeing(const Job& job, const Work& w) {
  if (w.tiles > 0) return;
  const AttentionCall& c = job.base.call;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int bytes = c.value_depth * (job.base.out.dtype == DType::kF32 ? 4 : 2);
  float lse;
  end_row(c, -INFINITY, 0, 0, w.head, &lse);
#pragma unroll 1
  for (int query = w.row0; query < min(w.row0 + C::kRows, w.end); ++query) {
    char* const to = job.base.out.at(w.batch, w.head, query);
#pragma unroll 1
    for (int i = lane * 4; i < bytes; i += 128) *reinterpret_cast<uint32_t*>(to + i) = 0;
    if (lane == 0) store_lse(job, w, query, lse);
  }
}

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::attention_hopper
