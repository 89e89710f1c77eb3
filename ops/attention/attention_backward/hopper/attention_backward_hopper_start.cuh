// Which instance of Hopper's kernel a call of up to 128 columns takes.
#pragma once

#include "ops/attention/attention_backward/hopper/attention_backward_hopper.cuh"
#include "ops/attention/attention_backward/hopper/attention_backward_hopper_launch.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

template <class C>
Status start(const Call& args, const BackwardCall& call, const BackwardJob& base,
             const StartFacts& start_facts) {
  Job job;
  if (C::kMasked) job.mask_in_eights = lies_in_eights(base.call.mask, base.call.keys);
  return start_kernel<C>(args, call, base, job, start_facts, backward_hopper_kernel<C>);
}

// The columns of a call's instance. 96 are for calls without a mask or a soft cap.
template <bool kHas96>
int columns_of(const BackwardJob& job) {
  const int columns = std::max(job.call.depth, job.call.value_depth);
  return columns <= 64 ? 64 : columns <= 96 && kHas96 ? 96 : 128;
}

template <WgmmaType kWgmma, MaskKind kMask, bool kCapped>
Status start_columns(const Call& args, const BackwardCall& call, const BackwardJob& job,
                     const StartFacts& start_facts) {
  constexpr bool kHas96 = kMask == MaskKind::kNone && !kCapped;
  const int columns = columns_of<kHas96>(job);
  if constexpr (kHas96)
    if (columns == 96) return start<Config<kWgmma, 96>>(args, call, job, start_facts);
  return columns == 64 ? start<Config<kWgmma, 64, kMask, kCapped>>(args, call, job, start_facts)
                       : start<Config<kWgmma, 128, kMask, kCapped>>(args, call, job, start_facts);
}

// Without a mask.
template <WgmmaType kWgmma, bool kCapped>
Status start_packed(const Call& args, const BackwardCall& call, const BackwardJob& job,
                    const StartFacts& start_facts) {
  constexpr MaskKind kNone = MaskKind::kNone;
  const int columns = columns_of<!kCapped>(job);
  if constexpr (!kCapped)
    if (columns == 96) return start<Packed<Config<kWgmma, 96>>>(args, call, job, start_facts);
  return columns == 64
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
