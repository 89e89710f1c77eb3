// Which instance of Hopper's kernel a call takes, its grids and what lies where in the workspace.
#pragma once

#include "backends/cuda/host/launch.h"
#include "ops/attention/attention_backward/attention_backward_hopper.cuh"
#include "ops/attention/attention_backward/attention_backward_hopper.h"
#include "ops/attention/attention_backward/attention_backward_hopper_round.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

// Do keys differ in how many queries see them?
inline bool is_uneven(const AttentionCall& c) {
  return c.is_packed() || std::min(c.left, c.right) < std::min(c.queries, c.keys) / 2;
}

// Into how many blocks a tile of keys divides the heads of q that share them: as few as leave the
// longest block some third of what a multiprocessor has to do, so that all end at about the same time.
inline int parts_of(const AttentionCall& c, const Job& job, int multiprocessors) {
  const int64_t tiles = int64_t{c.batches} * c.key_heads * job.key_tiles;
  const int64_t enough = multiprocessors * int64_t{is_uneven(c) ? 6 : 3};
  for (int parts = 1; parts < c.group; ++parts)
    if (c.group % parts == 0 && tiles * parts >= enough) return parts;
  return c.group;
}

// Parts that go through their tiles together: those whose q, d_out and sums of d_q, of a sequence
// where they are packed, lie in half of the L2, but at least so many that few blocks of one part run at
// once. These follow each other through the same tiles of queries, so they need little of the L2.
inline int section_of(const AttentionCall& c, const Job& job) {
  constexpr int64_t kAtLeast = 32;
  const int64_t bytes =
      int64_t{c.group / job.parts} * c.queries / c.sequences() * (6 * c.depth + 2 * c.value_depth);
  const int64_t all = int64_t{c.batches} * c.key_heads * job.parts;
  return static_cast<int>(std::clamp<int64_t>((25 << 20) / std::max<int64_t>(bytes, 1),
                                              std::min(all, kAtLeast), std::max<int64_t>(all, 1)));
}

inline int64_t round_up_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// As PESTLE_BACKWARD_HOPPER_BYTES counts: words that begin as 0, then the sums. What begins as 0 ends
// where `end` says.
template <class C>
void place(const Call& args, Job* job, char** end) {
  const AttentionCall& c = job->base.call;
  const int64_t redo = int64_t{c.batches} * (2 * c.key_heads * job->base.key_tiles() +
                                             c.heads * job->base.query_tiles());
  const int64_t facts = int64_t{8} * c.batches * c.heads * c.queries;
  const int64_t tiles = int64_t{c.batches} * c.heads * job->query_tiles;
  const int64_t key_heads = int64_t{c.batches} * c.key_heads;
  const int64_t key_rows = key_heads * 2 * job->key_tiles;  // 64 keys each
  const int64_t words = 1 + key_heads + tiles + key_rows;
  char* const begin = static_cast<char*>(args.workspace) + round_up_256(facts + 4 * redo);
  job->ticket = reinterpret_cast<uint32_t*>(begin);
  job->largest = job->ticket + 1;
  job->counts = job->largest + key_heads;
  job->key_counts = job->counts + tiles;
  job->sums = reinterpret_cast<float*>(begin + round_up_256(4 * words));
  job->key_sums = job->sums + tiles * kConsumers * kSumsOfConsumer;
  *end = reinterpret_cast<char*>(job->key_sums);
  if (job->parts > 1) *end += key_rows * 2 * kSumsOfKeys<C> * sizeof(float);
}

template <class C>
Status start(const Call& args, const BackwardCall& call, const BackwardJob& base,
             const StartFacts& start_facts) {
  static_assert(sizeof(Memory<C>) <= 227 * 1024);
  Job job;
  job.base = base;
  const AttentionCall& c = job.base.call;
  PESTLE_TRY(cuda::box_rows(call.in.q, C::kQueries, &job.q));
  PESTLE_TRY(cuda::box_rows(call.d_out, C::kQueries, &job.d_out));
  PESTLE_TRY(cuda::box_rows(call.in.k, kKeys, &job.k));
  PESTLE_TRY(cuda::box_rows(call.in.v, kKeys, &job.v));
  job.key_tiles = static_cast<int>(cuda::ceil_div(c.keys, kKeys));
  job.query_tiles = static_cast<int>(cuda::ceil_div(c.queries, C::kQueries));
  job.parts = parts_of(c, job, cuda::multiprocessors(cuda::device_index(args)));
  job.section = section_of(c, job);
  job.deterministic = call.in.deterministic;
  if (C::kMasked || C::kCapped) job.rule = cuda::attention_hopper::logit_rule(c);
  if (C::kMasked) job.mask_in_eights = lies_in_eights(c.mask, c.keys);
  char* end;
  place<C>(args, &job, &end);
  const int64_t heads = int64_t{c.batches} * c.heads, key_heads = int64_t{c.batches} * c.key_heads;
  auto* const begin = reinterpret_cast<uint4*>(job.ticket);
  const int64_t cleared = (end - reinterpret_cast<char*>(begin)) / int64_t{sizeof(uint4)};
  PESTLE_TRY(cuda::launch(args, "attention_backward_clear",
                          {std::min<int64_t>(cuda::ceil_div(cleared, 256), 2048)}, clear_kernel,
                          begin, cleared));
  PESTLE_TRY(start_facts(C::kF16 ? job.largest : nullptr));
  PESTLE_TRY(cuda::launch(args, "attention_backward_hopper",
                          {key_heads * job.parts * job.key_tiles, kThreads, sizeof(Memory<C>)},
                          backward_hopper_kernel<C>, job));
  using Plain = Config<C::kWgmma, C::kColumns>;
  if (job.parts > 1)
    PESTLE_TRY(cuda::launch(args, "attention_backward_d_k_d_v",
                            {2 * key_heads * base.key_tiles(), 256}, backward_d_k_d_v_kernel<Plain>,
                            job));
  return cuda::launch(args, "attention_backward_d_q", {heads * base.query_tiles(), 256},
                      backward_d_q_kernel<Plain>, job);
}

template <WgmmaType kWgmma, MaskKind kMask, bool kCapped>
Status start_columns(const Call& args, const BackwardCall& call, const BackwardJob& job,
                     const StartFacts& start_facts) {
  return std::max(job.call.depth, job.call.value_depth) <= 64
             ? start<Config<kWgmma, 64, kMask, kCapped>>(args, call, job, start_facts)
             : start<Config<kWgmma, 128, kMask, kCapped>>(args, call, job, start_facts);
}

// Without a mask.
template <WgmmaType kWgmma, bool kCapped>
Status start_packed(const Call& args, const BackwardCall& call, const BackwardJob& job,
                    const StartFacts& start_facts) {
  constexpr MaskKind kNone = MaskKind::kNone;
  return std::max(job.call.depth, job.call.value_depth) <= 64
             ? start<Packed<Config<kWgmma, 64, kNone, kCapped>>>(args, call, job, start_facts)
             : start<Packed<Config<kWgmma, 128, kNone, kCapped>>>(args, call, job, start_facts);
}

template <WgmmaType kWgmma, MaskKind kMask>
Status start_mask(const Call& args, const BackwardCall& call, const BackwardJob& job,
                  const StartFacts& start_facts) {
  return job.softcap_log2 != 0 ? start_columns<kWgmma, kMask, true>(args, call, job, start_facts)
                               : start_columns<kWgmma, kMask, false>(args, call, job, start_facts);
}

// A mask of floats has q's dtype, another one is refused, and any of packed sequences.
template <WgmmaType kWgmma>
Status start_kind(const Call& args, const BackwardCall& call, const BackwardJob& job,
                  const StartFacts& start_facts) {
  constexpr MaskKind kFloats = kWgmma == WgmmaType::kBf16 ? MaskKind::kBf16 : MaskKind::kF16;
  if (job.call.is_packed())
    return job.softcap_log2 != 0 ? start_packed<kWgmma, true>(args, call, job, start_facts)
                                 : start_packed<kWgmma, false>(args, call, job, start_facts);
  switch (job.call.mask.dtype) {
    case DType::kNone: return start_mask<kWgmma, MaskKind::kNone>(args, call, job, start_facts);
    case DType::kBool: return start_mask<kWgmma, MaskKind::kBool>(args, call, job, start_facts);
    default: return start_mask<kWgmma, kFloats>(args, call, job, start_facts);
  }
}

}  // namespace pestle::ops::attention_backward::backward_hopper
