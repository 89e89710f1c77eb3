// Which instance of the tiles a call takes, and its grid.
#pragma once

#include "backends/cuda/host/launch.h"
#include "ops/attention/sm80/attention_tiles.cuh"
#include "ops/attention/sm80/attention_tiles.h"

namespace pestle::cuda::attention_tiles {

// k and v of the heads that are worked on at once should lie in half of the L2 of a GPU of 40 MiB.
inline int heads_at_once(const AttentionCall& c) {
  const int64_t bytes =
      int64_t{dtype_bytes(c.q.dtype)} * std::max(c.keys, 1) * (c.depth + c.value_depth);
  const int64_t heads = int64_t{c.batches} * c.key_heads;
  return static_cast<int>(std::clamp<int64_t>((20 << 20) / bytes, 1, std::max<int64_t>(heads, 1)));
}

// Logits are products with a positive scale.
inline bool is_plain(const AttentionCall& c) {
  return c.mask.dtype == DType::kNone && c.softcap == 0 && c.scale > 0;
}

template <class C>
Status start(const Call& call, AttentionJob job) {
  const AttentionCall& c = job.call;
  job.tiles = static_cast<int>(ceil_div(int64_t{c.group} * c.queries, C::kRows));
  job.last_first = c.right < c.keys;
  job.section = job.last_first ? heads_at_once(c) : 1;
  const Grid grid{.blocks = int64_t{c.batches} * c.key_heads * job.tiles,
                  .threads = kThreads,
                  .shared_bytes = C::kSharedBytes};
  return launch(call, "attention_tiles", grid, attention_tiles_kernel<C>, job);
}

template <Kind kKind, bool kSplit, bool kGeneral>
Status start_columns(const Call& call, const AttentionJob& job) {
  const int columns = std::max(job.call.depth, job.call.value_depth);
  if (columns <= 64) return start<Config<kKind, 64, kGeneral, kSplit>>(call, job);
  if (columns <= 128) return start<Config<kKind, 128, kGeneral, kSplit>>(call, job);
  return start<Config<kKind, 256, kGeneral, kSplit>>(call, job);
}

template <Kind kKind, bool kSplit>
Status start_tiles(const Call& call, const AttentionJob& job) {
  return is_plain(job.call) ? start_columns<kKind, kSplit, false>(call, job)
                            : start_columns<kKind, kSplit, true>(call, job);
}

}  // namespace pestle::cuda::attention_tiles
