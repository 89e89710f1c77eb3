// Attention of f32 as tf32 by tiles: the instances.
#include "ops/attention/sm80/attention_tiles_start.cuh"

namespace pestle::cuda {

Status start_attention_tiles_tf32(const Call& call, AttentionJob job) {
  return attention_tiles::start_tiles<warp::Kind::kTf32, false>(call, job);
}

}  // namespace pestle::cuda
