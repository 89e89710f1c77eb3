// The epilogue on the CPU, a row at a time, by row primitives.
#pragma once

#include "ops/gemm/epilogue/epilogue.h"

namespace pestle::ops {

// A row of the product in f32, all of its columns (twice out's for pairs), to a row of out. `sums`
// is worked in.
void finish_row(const Epilogue& e, const TensorView& out, int64_t row, float* sums);

}  // namespace pestle::ops
