// What starting Hopper's kernels of attention's gradients share: grids, and what lies where in the
// workspace.
#pragma once

#include "backends/cuda/host/launch.h"
#include "ops/attention/attention_backward/hopper/attention_backward_hopper.h"
#include "ops/attention/attention_backward/hopper/attention_backward_hopper_round.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

// Into how many blocks a tile of keys divides the heads of q that share them: as few as make 16 parts,
// which take their turns beside each other, and three blocks for two multiprocessors, which then end at
// about the same time. Of more there are more sums of d_k and d_v to add up.
inline int parts_of_heads(const AttentionCall& c, int key_tiles, int multiprocessors) {
  const int64_t key_heads = int64_t{c.batches} * c.key_heads;
  for (int parts = 1; parts < c.group; ++parts)
    if (c.group % parts == 0 && key_heads * parts >= 16 &&
        key_heads * parts * key_tiles >= multiprocessors * int64_t{3} / 2)
      return parts;
  return c.group;
}

// Parts that go through their tiles together. 32: then few blocks of a part run at once, which wait for
// each other. But these are to find in the L2 what another one has read, and drift apart by some tenth
// of their way: so q, d_out and sums of d_q of all parts, those of a sequence where they are packed,
// are 256 MiB at most, ten times half of the L2 (wide heads, whose tiles of keys are half as large: 64).
// Or all that the half holds. Sections are about even.
inline int section_of(const AttentionCall& c, int parts, bool wide) {
  const int64_t all = std::max<int64_t>(int64_t{c.batches} * c.key_heads * parts, 1);
  const int64_t of_part =
      int64_t{c.group / parts} * c.queries / c.sequences() * (6 * c.depth + 2 * c.value_depth);
  const int64_t bytes = std::max<int64_t>(of_part, 1);
  const int64_t most =
      std::max((25 << 20) / bytes, std::min<int64_t>((wide ? 64 << 20 : 256 << 20) / bytes, 32));
  const int64_t sections = cuda::ceil_div(all, std::clamp<int64_t>(most, 1, all));
  return static_cast<int>(cuda::ceil_div(all, sections));
}

inline int64_t round_up_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// As PESTLE_BACKWARD_HOPPER_BYTES counts: words that begin as 0, then the sums, which do too.
template <class C>
Zeros place(const Call& args, Job* job) {
  const AttentionCall& c = job->base.call;
  const int64_t redo = int64_t{c.batches} * (2 * c.key_heads * job->base.key_tiles() +
                                             c.heads * job->base.query_tiles());
  const int64_t facts = int64_t{8} * c.batches * c.heads * c.queries;
  const int64_t tiles = int64_t{c.batches} * c.heads * job->query_tiles;
  const int64_t counts = tiles * (C::kWide ? kConsumers : 1);
  const int64_t key_heads = int64_t{c.batches} * c.key_heads;
  const int64_t key_rows = C::kWide ? 0 : key_heads * 2 * job->key_tiles;  // 64 keys each
  char* const begin = static_cast<char*>(args.workspace) + round_up_256(facts + 4 * redo);
  job->ticket = reinterpret_cast<uint32_t*>(begin);
  job->largest = job->ticket + 1;
  job->counts = job->largest + key_heads;
  job->key_counts = job->counts + counts;
  job->sums =
      reinterpret_cast<float*>(begin + round_up_256(4 * (1 + key_heads + counts + key_rows)));
  job->key_sums = job->sums + tiles * C::kParts * kSumsOfPart;
  const float* const end = job->key_sums + (job->parts > 1 ? key_rows * 2 * kSumsOfKeys<C> : 0);
  return {reinterpret_cast<uint4*>(job->sums), (end - job->sums) / 4};
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
  if (!C::kWide)
    job.parts = parts_of_heads(c, job.key_tiles, cuda::multiprocessors(cuda::device_index(args)));
  job.section = section_of(c, job.parts, C::kWide);
  job.deterministic = call.in.deterministic;
  if (C::kMasked || C::kCapped) job.rule = cuda::attention_hopper::logit_rule(c);
  const Zeros sums = place<C>(args, &job);
  auto* const words = reinterpret_cast<uint4*>(job.ticket);
  const int64_t cleared = sums.begin - words;
  PESTLE_TRY(cuda::launch(args, "attention_backward_clear", {cuda::ceil_div(cleared, 256)},
                          clear_kernel, words, cleared));
  PESTLE_TRY(start_facts(C::kF16 ? job.largest : nullptr, sums));
  const int64_t heads = int64_t{c.batches} * c.heads, key_heads = int64_t{c.batches} * c.key_heads;
  PESTLE_TRY(cuda::launch(args, "attention_backward_hopper",
                          {key_heads * job.parts * job.key_tiles, kThreads, sizeof(Memory<C>)},
                          kernel, job));
  if constexpr (!C::kWide)
    if (job.parts > 1)
      PESTLE_TRY(cuda::launch(args, "attention_backward_d_k_d_v",
                              {2 * key_heads * base.key_tiles(), 256},
                              backward_d_k_d_v_kernel<typename C::Plain>, job));
  return cuda::launch(args, "attention_backward_d_q", {heads * base.query_tiles(), 256},
                      backward_d_q_kernel<typename C::Plain>, job);
}

}  // namespace pestle::ops::attention_backward::backward_hopper
