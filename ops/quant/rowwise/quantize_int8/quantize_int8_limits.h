// What the fast path of quantize_int8 can hold.
#pragma once

#include <cstdint>

namespace pestle::ops::quantize_int8 {

inline constexpr int64_t kKept = 16384;  // floats of a rotated row kept at a time (64 KiB)

}  // namespace pestle::ops::quantize_int8
