// What starting Hopper's kernels of attention's gradients share: grids, and what lies where in the
// workspace.
#pragma once

#include "backends/cuda/host/launch.h"
#include "ops/attention/attention_backward/hopper/attention_backward_hopper.h"
#include "ops/attention/attention_backward/hopper/attention_backward_hopper_parts.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

// Heads of k whose q, d_out and sums of d_q, those of a sequence where they are packed, lie in half
// of the L2 together.
inline int heads_at_once(const AttentionCall& c) {
  const int64_t bytes =
      int64_t{c.group} * c.queries / c.sequences() * (6 * c.depth + 2 * c.value_depth);
  const int64_t heads = int64_t{c.batches} * c.key_heads;
  return static_cast<int>(std::clamp<int64_t>((25 << 20) / std::max<int64_t>(bytes, 1), 1,
                                              std::max<int64_t>(heads, 1)));
}

inline int64_t round_up_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// As PESTLE_BACKWARD_HOPPER_BYTES counts: words that begin as 0, then the sums.
inline void place(const Call& args, int counts_of_tile, Job* job) {
  const AttentionCall& c = job->base.call;
  const int64_t redo = int64_t{c.batches} * (2 * c.key_heads * job->base.key_tiles() +
                                             c.heads * job->base.query_tiles());
  const int64_t facts = int64_t{8} * c.batches * c.heads * c.queries;
  const int64_t tiles = int64_t{c.batches} * c.heads * job->query_tiles;
  const int64_t words = 1 + int64_t{c.batches} * c.key_heads + tiles * counts_of_tile;
  char* const begin = static_cast<char*>(args.workspace) + round_up_256(facts + 4 * redo);
  job->ticket = reinterpret_cast<uint32_t*>(begin);
  job->largest = job->ticket + 1;
  job->counts = job->largest + int64_t{c.batches} * c.key_heads;
  job->sums = reinterpret_cast<float*>(begin + round_up_256(4 * words));
}

// `job`: what only one of the kernels wants is there.
template <class C>
Status start_kernel(const Call& args, const BackwardCall& call, const BackwardJob& base, Job job,
                    const StartFacts& start_facts, void (*kernel)(Job)) {
  static_assert(sizeof(Memory<C>) <= 227 * 1024);
  job.base = base;
  const AttentionCall& c = job.base.call;
  PESTLE_TRY(cuda::box_rows(call.in.q, C::kQueries, &job.q));
  PESTLE_TRY(cuda::box_rows(call.d_out, C::kQueries, &job.d_out));
  PESTLE_TRY(cuda::box_rows(call.in.k, C::kKeys, &job.k));
  PESTLE_TRY(cuda::box_rows(call.in.v, C::kKeys, &job.v));
  job.key_tiles = static_cast<int>(cuda::ceil_div(c.keys, C::kKeys));
  job.query_tiles = static_cast<int>(cuda::ceil_div(c.queries, C::kQueries));
  job.section = heads_at_once(c);
  job.deterministic = call.in.deterministic;
  if (C::kMasked || C::kCapped) job.rule = cuda::attention_hopper::logit_rule(c);
  place(args, C::kWide ? kConsumers : 1, &job);
  const int64_t heads = int64_t{c.batches} * c.heads;
  auto* const begin = reinterpret_cast<uint4*>(job.ticket);
  const auto* const end =
      reinterpret_cast<const uint4*>(job.sums + heads * job.query_tiles * C::kParts * kSumsOfPart);
  PESTLE_TRY(cuda::launch(args, "attention_backward_clear",
                          {std::min<int64_t>(cuda::ceil_div(end - begin, 256), 2048)}, clear_kernel,
                          begin, int64_t{end - begin}));
  PESTLE_TRY(start_facts(C::kF16 ? job.largest : nullptr));
  PESTLE_TRY(
      cuda::launch(args, "attention_backward_hopper",
                   {int64_t{c.batches} * c.key_heads * job.key_tiles, kThreads, sizeof(Memory<C>)},
                   kernel, job));
  return cuda::launch(args, "attention_backward_d_q", {heads * base.query_tiles(), 256},
                      backward_d_q_kernel<typename C::Plain>, job);
}

}  // namespace pestle::ops::attention_backward::backward_hopper
