// Attention of f32 by f16 parts: the instances, and what comes before them.
#include "ops/attention/sm80/attention_parts.cuh"
#include "ops/attention/sm80/attention_parts.h"
#include "ops/attention/sm80/attention_tiles_start.cuh"

namespace pestle::cuda {
namespace attention_parts {
namespace {

template <class C>
Status start(const Call& call, const PartsJob& job) {
  const Grid grid{.blocks = int64_t{job.call.batches} * job.call.key_heads * job.tiles,
                  .threads = C::kThreads,
                  .shared_bytes = C::kSharedBytes};
  return launch(call, "attention_parts", grid, attention_parts_kernel<C>, job);
}

template <bool kGeneral>
Status start_columns(const Call& call, const PartsJob& job) {
  if (std::max(job.call.depth, job.call.value_depth) <= 64)
    return start<Config<64, kGeneral, 1>>(call, job);
  return start<Config<128, kGeneral, 2>>(call, job);
}

}  // namespace
}  // namespace attention_parts

Status start_attention_parts(const Call& call, AttentionJob& job) {
  const AttentionCall& c = job.call;
  job.tiles = static_cast<int>(ceil_div(int64_t{c.group} * c.queries, attention_tiles::kLeftRows));
  auto* memory = static_cast<char*>(call.workspace);
  SplitRowsJob split;
  const F16Parts k = add_split_rows(split, c.k, c.batches, c.key_heads, c.keys, c.depth, &memory);
  const F16Parts v =
      add_split_rows(split, c.v, c.batches, c.key_heads, c.keys, c.value_depth, &memory);
  job.left = reinterpret_cast<int*>(memory);
  attention_parts::PartsJob with_parts{job, k, v};
  with_parts.last_first = c.right < c.keys;
  with_parts.section = with_parts.last_first ? attention_tiles::heads_at_once(c) : 1;
  PESTLE_TRY(start_split_rows(call, split));
  return attention_tiles::is_plain(c) ? attention_parts::start_columns<false>(call, with_parts)
                                      : attention_parts::start_columns<true>(call, with_parts);
}

}  // namespace pestle::cuda
