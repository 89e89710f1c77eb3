// linear_fp8 on CUDA, activations=float: x as it is times decoded codes.
#pragma once

#include "core/op.h"

namespace pestle::ops::linear_fp8 {

// Scales of blocks of 128 columns; else of all or of rows.
bool scales_are_of_blocks(const Call& call);
// x: of the call, or what it became in the workspace.
Status run_float_x(const Call& call, const TensorView& x);
// Bf16 or f16 x on sm_90a.
Status run_float_hopper(const Call& call);
// The same of very many rows, scales of all or of rows.
Status run_float_slabs(const Call& call);
// Up to 16 rows of bf16 or f16 x.
Status run_float_gemv(const Call& call);
Status run_float_few(const Call& call);

}  // namespace pestle::ops::linear_fp8
