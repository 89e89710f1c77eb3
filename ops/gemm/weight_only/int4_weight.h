// Where scales and zero points of an INT4 weight lie, as kernels' formats have them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "backends/cuda/device/row/tiles.h"
#include "core/tensor.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops {

// zero: null where codes are two's complement. group_size: as in contracts, 0 for all of k.
template <class Format>
Format int4_weight(const TensorView& scale, const TensorView* zero, int64_t group_size, int64_t k) {
  Format format{};
  format.scale = scale.as<char>();
  format.scale_row = scale.strides[0] * 4;
  format.scale_column = scale.strides[1] * 4;
  if (zero != nullptr) {
    format.zero = zero->as<std::remove_pointer_t<decltype(format.zero)>>();
    format.zero_row = zero->strides[0];
    format.zero_column = zero->strides[1];
  }
  const int64_t group = int4_group(group_size, k);
  format.group =
      static_cast<decltype(format.group)>(std::clamp<int64_t>(group, 1, std::max<int64_t>(k, 1)));
  if constexpr (requires { format.k; }) format.k = static_cast<int>(k);
  if constexpr (requires { format.groups; })
    format.groups = cuda::FastDivisor(static_cast<uint32_t>(format.group));
  return format;
}

}  // namespace pestle::ops
