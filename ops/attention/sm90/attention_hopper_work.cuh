// Of attention on Hopper (attention_hopper.cuh): its instances, its shared memory, and which tiles of
// queries a block takes.
#pragma once

#include "backends/cuda/device/ptx/wgmma_registers.cuh"
#include "ops/attention/sm80/attention_row.cuh"
#include "ops/attention/sm90/attention_hopper.h"
#include "ops/attention/sm90/attention_hopper_mask.cuh"

namespace pestle::cuda::attention_hopper {

using hopper::WgmmaType;

// Keys of a tile: what registers (logits, exponentials and sums of a consumer) and shared memory hold.
constexpr int keys_of_tile(int columns, bool general) {
  if (general) return columns == 256 ? 64 : 128;
  switch (columns) {
    case 64: return 128;
    case 96: return 176;
    case 128: return 176;
    case 192: return 112;
    default: return 80;
  }
}

// kGeneral: with a soft cap or a mask, of which a tile lies in registers, too.
template <WgmmaType kOf, int kColumnsOf, bool kGeneralOf>
struct Config {
  static constexpr WgmmaType kWgmma = kOf;
  static constexpr int kColumns = kColumnsOf;  // of q, k, v at most
  static constexpr bool kGeneral = kGeneralOf;
  static constexpr int kConsumers = kColumns == 64 && !kGeneral ? 3 : 2;
  static constexpr int kKeys = keys_of_tile(kColumns, kGeneral);
  static constexpr int kStages = kColumns == 64 ? 3 : 2;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr bool kTurns = true;  // of consumers, to start products
};

// A tile of queries of one head.
struct Work {
  int batch, head, row0;
  int end;        // of the queries of its sequence
  SeenKeys keys;  // of its sequence that count
  int place0;     // of query 0 among the keys
  SeenKeys any;   // by one of the queries
  int tiles;      // of keys; -1: there are no more tiles of queries

#ifdef __CUDACC__
  __device__ SeenKeys seen(const AttentionCall& c, int query) const {
    const int place = place0 + query;
    return {max(keys.begin, place - c.left), min(keys.end, place + c.right + 1)};
  }
#endif
};

// A consumer may still write the results of one tile of queries while the other's next but one is
// announced.
inline constexpr int kWorks = 4;

// Of 64 columns, all rows of a tile, one piece of shared memory in rows of 128 bytes.
template <class C>
struct Memory {
  static constexpr int kPieces = (C::kColumns + 63) / 64;
  static constexpr int kQPiece = 64 * 128, kTilePiece = C::kKeys * 128;
  char q[C::kConsumers][kPieces][kQPiece];
  char k[C::kStages][kPieces][kTilePiece];
  char v[C::kStages][kPieces][kTilePiece];
  Work works[kWorks];
  uint64_t q_full[C::kConsumers], q_empty[C::kConsumers];
  uint64_t k_full[C::kStages], k_empty[C::kStages];
  uint64_t v_full[C::kStages], v_empty[C::kStages];
  uint64_t cut;  // values are there whose last rows become 0
};

struct Job {
  AttentionJob base;  // its tiles: of one head
  BoxedRows q, k, v;
  LogitRule rule;    // of general kernels
  float unit = 1;    // takes logits to those of 2^x
  float slack = 0;   // by which logits may pass the largest before sums get a new scale
  int total = 0;     // tiles of queries
  int sections = 1;  // of heads
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
  __device__ Ring before() const {
    return stage > 0 ? Ring{stage - 1, parity} : Ring{kStages - 1, parity ^ 1};
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
  const int section = index / a_section, rest = index % a_section;
  const int first = section * job.base.section, here = min(job.base.section, heads - first);
  const int head = first + rest % here, tile = rest / here;
  Work w;
  w.batch = head / c.heads;
  w.head = head % c.heads;
  // The last section ends with its shortest tiles, the one before begins with them.
  const bool turned = job.base.last_first && (job.sections - 1 - section) % 2 == 0;
  const int in_order = turned ? job.base.tiles - 1 - tile : tile;
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

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::attention_hopper
