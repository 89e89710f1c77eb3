#include "ops/attention/attention_backward/attention_backward_tiles_start.cuh"

namespace pestle::ops::attention_backward {

Status start_tiles_f16(const Call& call, const BackwardJob& job) {
  return start_tiles<Kind::kF16>(call, job);
}

}  // namespace pestle::ops::attention_backward
