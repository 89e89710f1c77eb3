// Rounding to the numbers of an 8-bit format without the instruction that newer GPUs have for it.
#pragma once

#include "formats/minifloat.h"

namespace pestle::formats {

// |x| rounded to what F has, but for its largest: numbers beyond it keep as many bits. Two numbers
// are subtracted from each other whose difference is |x|: the larger one's last place is the last
// that F keeps of x, so that the inner difference is rounded there, ties to even, and the outer one
// is exact. x times 2^(23 - kMan) is such a number (Veltkamp's splitting; x is subtracted from it,
// since a sum would leave its power of two next to the largest significands), and below F's normal
// numbers 1.5 times that of the smallest one. No integers, nothing to select: twice the throughput.
// NaN, infinities and |x| >= 2^107 give NaN or 0.
template <class F>
PESTLE_HD inline float rounded_magnitude(float x) {
  constexpr uint32_t kShift = 23u - F::kMan;
  constexpr uint32_t kSmallest = (128u - F::kBias) << 23;  // the format's smallest normal
  const float far_by = f32_from_bits((127u + kShift) << 23);
  const float least = f32_from_bits((kSmallest + (kShift << 23)) | 0x400000u);
#if defined(__CUDA_ARCH__)  // modifiers and one instruction
  const float abs = fabsf(x);
  const float anchor = fmaxf(abs * far_by, least);
#else
  const float abs = f32_from_bits(abs_bits(x));
  const float anchor = abs * far_by > least ? abs * far_by : least;
#endif
  return anchor - (anchor - abs);
}

}  // namespace pestle::formats
