// Which instances of the tiles a call takes, and their grids.
#pragma once

#include "backends/cuda/host/launch.h"
#include "ops/attention/attention_backward/attention_backward_tiles.cuh"
#include "ops/attention/attention_backward/attention_backward_tiles.h"

namespace pestle::ops::attention_backward {

template <class C>
Status start(const Call& call, const char* name, const BackwardJob& job) {
  const AttentionCall& c = job.call;
  const int64_t heads = C::kKeysAreOuter ? int64_t{c.key_heads} : int64_t{c.heads};
  const int64_t tiles = C::kKeysAreOuter ? job.key_tiles() : job.query_tiles();
  return cuda::launch(call, name, {c.batches * heads * tiles, kFastThreads, C::kSharedBytes},
                      backward_tiles_kernel<C>, job);
}

template <Kind kKind, int kColumns, bool kGeneral, bool kSplit>
Status start_columns(const Call& call, const BackwardJob& job) {
  if constexpr (kColumns <= 128) {
    PESTLE_TRY((start<Config<kKind, kColumns, Gives::kKeys, kGeneral, kSplit>>(
        call, "attention_backward_keys", job)));
  } else {
    PESTLE_TRY((start<Config<kKind, kColumns, Gives::kOnlyK, kGeneral, kSplit>>(
        call, "attention_backward_d_k", job)));
    PESTLE_TRY((start<Config<kKind, kColumns, Gives::kOnlyV, kGeneral, kSplit>>(
        call, "attention_backward_d_v", job)));
  }
  return start<Config<kKind, kColumns, Gives::kQueries, kGeneral, kSplit>>(
      call, "attention_backward_queries", job);
}

// f32 of more than 128 columns is refused.
template <Kind kKind, bool kGeneral, bool kSplit>
Status start_kind(const Call& call, const BackwardJob& job) {
  const int columns = std::max(job.call.depth, job.call.value_depth);
  if (columns <= 64) return start_columns<kKind, 64, kGeneral, kSplit>(call, job);
  if (kKind == Kind::kTf32 || columns <= 128)
    return start_columns<kKind, 128, kGeneral, kSplit>(call, job);
  if constexpr (kKind != Kind::kTf32) return start_columns<kKind, 256, kGeneral, kSplit>(call, job);
  return {};
}

template <Kind kKind, bool kSplit = false>
Status start_tiles(const Call& call, const BackwardJob& job) {
  const bool general = job.call.mask.dtype != DType::kNone || job.softcap_log2 != 0;
  return general ? start_kind<kKind, true, kSplit>(call, job)
                 : start_kind<kKind, false, kSplit>(call, job);
}

}  // namespace pestle::ops::attention_backward
