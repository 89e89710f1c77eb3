// Attention of f16 by Hopper's kernel: the instances.
#include "ops/attention/sm90/attention_hopper_start.cuh"

namespace pestle::cuda {

Status start_attention_hopper_f16(const Call& call, const ops::AttentionInputs& in,
                                  const AttentionJob& job) {
  return attention_hopper::start_kind<hopper::WgmmaType::kF16>(call, in, job);
}

}  // namespace pestle::cuda
