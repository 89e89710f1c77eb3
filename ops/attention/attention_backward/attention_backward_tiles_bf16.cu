#include "ops/attention/attention_backward/attention_backward_tiles_start.cuh"

namespace pestle::ops::attention_backward {

Status start_tiles_bf16(const Call& call, const BackwardJob& job) {
  return start_tiles<Kind::kBf16>(call, job);
}

}  // namespace pestle::ops::attention_backward
