// Which instance of Hopper's kernel a call takes, and its grid.
#pragma once

#include "backends/cuda/host/launch.h"
#include "ops/attention/sm90/attention_hopper.cuh"

namespace pestle::cuda::attention_hopper {

// Heads of q whose k and v, those of a sequence where they are packed, lie in half of the L2
// together, or are few enough that several blocks read each at once.
inline int64_t heads_at_once(const AttentionCall& c) {
  const int64_t bytes =
      2 * ceil_div(std::max(c.keys, 1), c.sequences()) * (c.depth + c.value_depth);
  return std::max<int64_t>(32, (25 << 20) / bytes) * c.group;
}

// Where queries see differently many keys the longest tiles come first, dealt out in turns, of all
// heads or in equal sections of them. Packed sequences get a block a tile: of their lengths the host
// knows nothing.
template <class C>
Grid deal_out(int multiprocessors, Job* job) {
  const AttentionCall& c = job->base.call;
  const int64_t heads = int64_t{c.batches} * c.heads, at_once = heads_at_once(c);
  // Packed: as find_sequence counts them.
  job->base.tiles = static_cast<int>(c.is_packed() ? c.queries / C::kRows + c.q_offsets.count + 1
                                                   : ceil_div(c.queries, C::kRows));
  job->total = static_cast<int>(heads * job->base.tiles);
  job->base.last_first = c.right < c.keys;
  const int64_t sections =
      job->base.last_first ? std::max<int64_t>(1, (heads + at_once / 2) / at_once) : heads;
  job->base.section = static_cast<int>(ceil_div(heads, sections));
  job->sections = static_cast<int>(ceil_div(heads, job->base.section));
  return {.blocks = c.is_packed() ? job->total : std::min(job->total, multiprocessors),
          .threads = C::kThreads,
          .shared_bytes = sizeof(Memory<C>)};
}

template <class C>
Status start(const Call& call, const ops::AttentionInputs& in, const AttentionJob& base) {
  static_assert(sizeof(Memory<C>) <= 227 * 1024);
  Job job;
  job.base = base;
  if (C::kGeneral) job.rule = logit_rule(base.call);
  job.unit = C::kGeneral ? job.rule.unit : base.call.scale * kLog2E;
  job.slack = std::min((C::kWgmma == WgmmaType::kF16 ? 7 : 8) / job.unit, 0x1p127f);
  PESTLE_TRY(box_rows(in.q, 64, &job.q));
  PESTLE_TRY(box_rows(in.k, C::kKeys, &job.k));
  PESTLE_TRY(box_rows(in.v, C::kKeys, &job.v));
  const Grid grid = deal_out<C>(multiprocessors(device_index(call)), &job);
  return launch(call, "attention_hopper", grid, attention_hopper_kernel<C>, job);
}

template <WgmmaType kWgmma, bool kGeneral>
Status start_columns(const Call& call, const ops::AttentionInputs& in, const AttentionJob& job) {
  const int columns = std::max(job.call.depth, job.call.value_depth);
  if (columns <= 64) return start<Config<kWgmma, 64, kGeneral>>(call, in, job);
  if constexpr (!kGeneral) {
    if (columns > 64 && columns <= 96) return start<Config<kWgmma, 96, false>>(call, in, job);
    if (columns > 128 && columns <= 192) return start<Config<kWgmma, 192, false>>(call, in, job);
  }
  if (columns <= 128) return start<Config<kWgmma, 128, kGeneral>>(call, in, job);
  return start<Config<kWgmma, 256, kGeneral>>(call, in, job);
}

template <WgmmaType kWgmma>
Status start_kind(const Call& call, const ops::AttentionInputs& in, const AttentionJob& job) {
  return in.has_mask() || in.softcap != 0 ? start_columns<kWgmma, true>(call, in, job)
                                          : start_columns<kWgmma, false>(call, in, job);
}

}  // namespace pestle::cuda::attention_hopper
