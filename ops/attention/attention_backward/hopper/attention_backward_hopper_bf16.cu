// Gradients of attention of bf16 by Hopper's kernel: the instances.
#include "ops/attention/attention_backward/hopper/attention_backward_hopper_start.cuh"

namespace pestle::ops::attention_backward {

Status start_hopper_bf16(const Call& args, const BackwardCall& call, const BackwardJob& job,
                         const StartFacts& start_facts) {
  return backward_hopper::start_kind<cuda::hopper::WgmmaType::kBf16>(args, call, job, start_facts);
}

}  // namespace pestle::ops::attention_backward
