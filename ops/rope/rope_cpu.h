// The CPU's loops of the RoPE ops: compiled once, for every instruction set.
#pragma once

#include <string>

#include "ops/rope/rope.h"

namespace pestle::ops {

inline constexpr int64_t kRopeTileFloats = 2048;  // factors of a tile of positions: 2 x 8 KiB, L1

// One tensor of a call; with a weight every head is normalised by its root mean square first.
struct RopeTensor {
  TensorView x;
  TensorView out;
  const TensorView* weight = nullptr;  // [D]
  float eps = 0;
};

void rope_on_cpu(const Rotations& rotations, const RopeTensor& tensor);

// Factors of the positions [s, s + count): y[i] = own[i] * x[i] + other[i] * x[partner of i], rows
// of rotations.rot floats.
void load_rope_factors(const Rotations& rotations, int64_t b, int64_t h, int64_t s, int64_t count,
                       float* own, float* other);

std::string refuse_long_heads(int64_t d);

}  // namespace pestle::ops
