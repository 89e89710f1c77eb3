// Starting the kernels of ops/attention/sm80/attention_parts.cuh.
#pragma once

#include "core/op.h"

namespace pestle::cuda {

struct AttentionJob;

// Bytes that attention's contract gives to parts of k and v and to a word for each 64 rows.
#define PESTLE_ATTENTION_PARTS_BYTES        \
  PESTLE_F16_PARTS_BYTES("B*Hk", "Sk", "D") \
  "+" PESTLE_F16_PARTS_BYTES("B*Hk", "Sk", "Dv") " + 4*B*Hk*cdiv(Sq*Hq/max(Hk,1),64)"

// f32 of up to 128 columns, as exact as f32. What is left has words, job.left, for the tiles.
Status start_attention_parts(const Call& call, AttentionJob& job);

}  // namespace pestle::cuda
