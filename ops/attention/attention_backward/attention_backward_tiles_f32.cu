// Gradients of attention of f32 by tiles: the instances.
#include "ops/attention/attention_backward/attention_backward_tiles_start.cuh"

namespace pestle::ops::attention_backward {

Status start_tiles_f32(const Call& call, const BackwardJob& job) {
  return start_tiles<Kind::kTf32, true>(call, job);
}

}  // namespace pestle::ops::attention_backward
