// Starting the tiles of ops/attention/sm80/attention_tiles.cuh: one file of instances a dtype.
#pragma once

#include "core/op.h"

namespace pestle::cuda {

struct AttentionJob;

Status start_attention_tiles_bf16(const Call& call, AttentionJob job);
Status start_attention_tiles_f16(const Call& call, AttentionJob job);
Status start_attention_tiles_f32(const Call& call, AttentionJob job);
// f32 with precision=tf32.
Status start_attention_tiles_tf32(const Call& call, AttentionJob job);

}  // namespace pestle::cuda
