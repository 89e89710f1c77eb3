// Gradients of attention of f16 by Hopper's kernel for wide heads: the instances.
#include "ops/attention/attention_backward/hopper/attention_backward_wide_start.cuh"

namespace pestle::ops::attention_backward {

Status start_wide_f16(const Call& args, const BackwardCall& call, const BackwardJob& job,
                      const StartFacts& start_facts) {
  return backward_hopper::start_wide_kind<cuda::hopper::WgmmaType::kF16>(args, call, job,
                                                                         start_facts);
}

}  // namespace pestle::ops::attention_backward
