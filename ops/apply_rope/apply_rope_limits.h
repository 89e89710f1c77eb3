// What the fast path of apply_rope can hold.
#pragma once

#include <cstdint>

namespace pestle::ops::apply_rope {

inline constexpr int64_t kTileFloats = 2048;  // factors of a tile of positions: 2 x 8 KiB, L1

}  // namespace pestle::ops::apply_rope
