// Gradients of attention of f32 with precision=tf32 by tiles: the instances.
#include "ops/attention/attention_backward/attention_backward_tiles_start.cuh"

namespace pestle::ops::attention_backward {

Status start_tiles_tf32(const Call& call, const BackwardJob& job) {
  return start_tiles<Kind::kTf32, false>(call, job);
}

}  // namespace pestle::ops::attention_backward
