// x as groups of neighbouring channels of planes, for group_norm and its gradients.
#pragma once

#include "core/op.h"
#include "ops/common/element.h"

namespace pestle::ops {

struct ChannelGroups {
  TensorView x, weight, bias;           // absent ones have no data
  int64_t groups, channels, plane = 1;  // of a sample; plane: elements of a channel
  float eps;
  bool silu;

  ChannelGroups(const TensorView& tensor, const TensorView& w, const TensorView& b,
                int64_t group_count, float epsilon, bool with_silu)
      : x(tensor),
        weight(w),
        bias(b),
        groups(group_count),
        channels(tensor.shape[1]),
        eps(epsilon),
        silu(with_silu) {
    for (int d = 2; d < x.rank; ++d) plane *= x.shape[d];
  }
  int64_t count() const { return x.shape[0] * groups; }  // of groups in x
  int64_t group_channels() const { return channels / groups; }
  int64_t size() const { return group_channels() * plane; }
  // The first element of channel `c` of a group, in a tensor of x's shape.
  char* channel(const TensorView& t, int64_t group, int64_t c) const {
    const int64_t own = group % groups * group_channels() + c;
    return t.as<char>() +
           (group / groups * t.strides[0] + own * t.strides[1]) * dtype_bytes(t.dtype);
  }
  // Offset in bytes of an element of a channel's plane; `dense`: the plane has no gaps.
  static int64_t plane_offset(const TensorView& t, int64_t i, bool dense = false) {
    if (dense) return i * dtype_bytes(t.dtype);
    int64_t offset = 0;
    for (int d = t.rank - 1; d >= 2; --d) {
      offset += i % t.shape[d] * t.strides[d];
      i /= t.shape[d];
    }
    return offset * dtype_bytes(t.dtype);
  }
  // 1 and 0 where there is no weight and bias.
  float weight_of(int64_t group, int64_t c) const { return parameter(weight, group, c, 1.0f); }
  float bias_of(int64_t group, int64_t c) const { return parameter(bias, group, c, 0.0f); }

 private:
  float parameter(const TensorView& t, int64_t group, int64_t c, float absent) const {
    if (t.data == nullptr) return absent;
    return load_f32(at(t, group % groups * group_channels() + c), t.dtype);
  }
};

}  // namespace pestle::ops
