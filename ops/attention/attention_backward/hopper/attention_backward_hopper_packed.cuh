// Packed sequences in the gradients of attention on Hopper. Tiles lie on the grid of the packed
// tensors, whatever sequences they hold: a key sees a run of queries, those of its sequence within
// the window, and both ends of the runs ascend with the keys. So a tile of keys goes over the tiles
// of queries between the first run's begin and the last one's end, and hides what is outside of each
// key's run; nothing is stored but on the grid. A sequence costs about a tile more than if it had
// tiles of its own, and sequences shorter than a tile share it.
#pragma once

#include "ops/attention/sm80/attention_call.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

using cuda::AttentionCall;
using cuda::AttentionList;
using cuda::SeenKeys;

// The queries that see each key of a block's tile.
template <bool kPacked, int kKeysOfTile>
struct KeyRuns {};
template <int kKeysOfTile>
struct KeyRuns<true, kKeysOfTile> {
  SeenKeys of[kKeysOfTile];
};

#ifdef __CUDACC__

// A sequence: its queries, its keys, the place of query 0 among them.
struct PackedSequence {
  SeenKeys queries, keys;
  int place0 = 0;

  PackedSequence() = default;
  // Sequence i of those that there are.
  __device__ PackedSequence(const AttentionCall& c, int i) {
    queries.begin = c.q_offsets.integer(i, c.queries);
    queries.end = max(queries.begin, c.q_offsets.integer(i + 1, c.queries));
    keys.begin = c.k_offsets.integer(i, c.keys);
    keys.end = max(keys.begin, c.k_offsets.integer(i + 1, c.keys));
    place0 = c.bottom_right ? keys.end - queries.end : keys.begin - queries.begin;
  }
};

__device__ inline int clamp_to(int value, SeenKeys range) {
  return min(max(value, range.begin), range.end);
}

// From the first sequence's first key to the last one's end.
__device__ inline SeenKeys packed_keys(const AttentionCall& c) {
  return {c.k_offsets.integer(0, c.keys), c.k_offsets.integer(c.k_offsets.count - 1, c.keys)};
}

// The run of queries that see a key, empty where none does; within packed_keys its ends ascend. A key
// before them has no queries before all others, one behind them none behind all others.
__device__ inline SeenKeys queries_of_key(const AttentionCall& c, int key) {
  const int begun = AttentionCall::count_below(c.k_offsets, key + 1, c.keys);
  if (begun == 0) return {0, 0};
  if (begun == c.k_offsets.count) return {c.queries, c.queries};
  const PackedSequence s(c, begun - 1);
  return {clamp_to(key - c.right - s.place0, s.queries),
          clamp_to(key + c.left - s.place0 + 1, s.queries)};
}

// Of packed_keys the first whose run ends behind a query; queries are asked for in turn, so that the
// sequence is mostly the one of the query before.
struct FirstKeyOfQuery {
  PackedSequence sequence;  // empty at first

  __device__ int operator()(const AttentionCall& c, int query) {
    if (query < sequence.queries.begin || query >= sequence.queries.end) {
      // The first sequence that ends behind the query; c has one, as the caller's key is of it or of
      // a later one.
      const int begun = AttentionCall::count_below(c.q_offsets, query + 1, c.queries);
      sequence = PackedSequence(c, max(min(begun, c.q_offsets.count - 1), 1) - 1);
    }
    if (query < sequence.queries.begin) return sequence.keys.begin;
    return clamp_to(sequence.place0 + query - c.left, sequence.keys);
  }
};

// Are a thread's part of the offsets in order? What waits for its turn relies on it.
__device__ inline bool ascend(const AttentionList& offsets, int most) {
  bool in_order = true;
  for (int i = static_cast<int>(threadIdx.x) + 1; i < offsets.count;
       i += static_cast<int>(blockDim.x))
    in_order = in_order && offsets.integer(i - 1, most) <= offsets.integer(i, most);
  return in_order;
}

// What a tile of keys needs to know.
struct PackedTile {
  // From the first run's begin to the last one's end. Both ascend from tile to tile, also where no
  // query sees a key of the tile: FirstKeyOfQuery counts such a tile if the two differ by a tile.
  SeenKeys queries;
  int end_key;   // of all sequences
  bool ordered;  // the offsets ascend
};
// By all threads of a block.
template <int kKeysOfTile>
__device__ inline PackedTile find_queries(KeyRuns<true, kKeysOfTile>& runs, const AttentionCall& c,
                                          int key0) {
  const bool ordered = ascend(c.q_offsets, c.queries) && ascend(c.k_offsets, c.keys);
  if (threadIdx.x < kKeysOfTile)
    runs.of[threadIdx.x] = queries_of_key(c, key0 + static_cast<int>(threadIdx.x));
  PackedTile t;
  t.ordered = __syncthreads_and(ordered) != 0;
  const SeenKeys all = packed_keys(c);
  const SeenKeys own{max(all.begin, key0), min(all.end, key0 + kKeysOfTile)};
  t.end_key = all.end;
  if (own.begin < own.end)
    t.queries = {runs.of[own.begin - key0].begin, runs.of[own.end - 1 - key0].end};
  return t;
}

#endif  // __CUDACC__

}  // namespace pestle::ops::attention_backward::backward_hopper
