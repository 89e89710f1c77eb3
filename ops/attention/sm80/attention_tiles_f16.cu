// Attention of f16 by tiles: the instances.
#include "ops/attention/sm80/attention_tiles_start.cuh"

namespace pestle::cuda {

Status start_attention_tiles_f16(const Call& call, AttentionJob job) {
  return attention_tiles::start_tiles<warp::Kind::kF16, false>(call, job);
}

}  // namespace pestle::cuda
