// Starting the tiles of attention_backward_tiles.cuh: one file of instances a dtype.
#pragma once

#include "core/op.h"

namespace pestle::ops::attention_backward {

struct BackwardJob;

Status start_tiles_bf16(const Call& call, const BackwardJob& job);
Status start_tiles_f16(const Call& call, const BackwardJob& job);
// f32 of up to 128 columns, as exact as f32; with precision=tf32.
Status start_tiles_f32(const Call& call, const BackwardJob& job);
Status start_tiles_tf32(const Call& call, const BackwardJob& job);
// As exact as f32, by f16 parts in the workspace from `memory` on, a multiple of 16 bytes
// (attention_backward_parts.cu); what has no parts by start_tiles_f32.
Status start_parts(const Call& call, BackwardJob& job, void* memory);

}  // namespace pestle::ops::attention_backward
