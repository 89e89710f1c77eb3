// Which instance of Hopper's kernel a call of 136 to 256 columns takes.
#pragma once

#include "ops/attention/attention_backward/hopper/attention_backward_hopper_launch.cuh"
#include "ops/attention/attention_backward/hopper/attention_backward_wide.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

template <class C>
Status start_wide(const Call& args, const BackwardCall& call, const BackwardJob& job,
                  const StartFacts& start_facts) {
  if (job.call.is_packed())
    return start_kernel<Packed<C>>(args, call, job, {}, start_facts,
                                   backward_wide_kernel<Packed<C>>);
  return start_kernel<C>(args, call, job, {}, start_facts, backward_wide_kernel<C>);
}

template <WgmmaType kWgmma, bool kCapped>
Status start_wide_columns(const Call& args, const BackwardCall& call, const BackwardJob& job,
                          const StartFacts& start_facts) {
  const int depth = job.call.depth, values = job.call.value_depth;
  if (std::max(depth, values) > 192)
    return start_wide<WideConfig<kWgmma, 256, 256, kCapped>>(args, call, job, start_facts);
  if (values > 128)
    return start_wide<WideConfig<kWgmma, 192, 192, kCapped>>(args, call, job, start_facts);
  return start_wide<WideConfig<kWgmma, 192, 128, kCapped>>(args, call, job, start_facts);
}

// Without a mask.
template <WgmmaType kWgmma>
Status start_wide_kind(const Call& args, const BackwardCall& call, const BackwardJob& job,
                       const StartFacts& start_facts) {
  return job.softcap_log2 != 0 ? start_wide_columns<kWgmma, true>(args, call, job, start_facts)
                               : start_wide_columns<kWgmma, false>(args, call, job, start_facts);
}

}  // namespace pestle::ops::attention_backward::backward_hopper
