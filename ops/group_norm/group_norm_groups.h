// group_norm: x as groups of channels of planes.
#pragma once

#include "core/op.h"
#include "ops/common/element.h"
#include "ops/group_norm/group_norm_spec.h"

namespace pestle::ops::group_norm {

inline constexpr int kX = arg_index(spec, "x");
inline constexpr int kWeight = arg_index(spec, "weight");
inline constexpr int kBias = arg_index(spec, "bias");
inline constexpr int kOut = arg_index(spec, "out");
inline constexpr int kGroups = arg_index(spec, "groups");
inline constexpr int kEps = arg_index(spec, "eps");
inline constexpr int kActivation = arg_index(spec, "activation");

struct Groups {
  TensorView x, out, weight, bias;  // absent ones have no data
  int64_t groups, channels, plane;  // plane: elements of a channel of a sample
  float eps;
  bool silu;

  explicit Groups(const Call& call)
      : x(call.tensor(kX)),
        out(call.tensor(kOut)),
        weight(call.has(kWeight) ? call.tensor(kWeight) : TensorView()),
        bias(call.has(kBias) ? call.tensor(kBias) : TensorView()),
        groups(call.integer(kGroups)),
        channels(x.shape[1]),
        plane(1),
        eps(call.number(kEps)),
        silu(call.integer(kActivation) == 1) {
    for (int d = 2; d < x.rank; ++d) plane *= x.shape[d];
  }
  int64_t count() const { return x.shape[0] * groups; }  // of groups in x
  int64_t group_channels() const { return channels / groups; }
  int64_t size() const { return group_channels() * plane; }
  // The first element of channel `c` of a group.
  static char* channel(const TensorView& t, int64_t groups, int64_t group, int64_t c) {
    const int64_t own = group % groups * (t.shape[1] / groups) + c;
    return t.as<char>() +
           (group / groups * t.strides[0] + own * t.strides[1]) * dtype_bytes(t.dtype);
  }
  char* x_channel(int64_t group, int64_t c) const { return channel(x, groups, group, c); }
  char* out_channel(int64_t group, int64_t c) const { return channel(out, groups, group, c); }
  // 1 and 0 where there is no weight and bias.
  float weight_of(int64_t group, int64_t c) const { return parameter(weight, group, c, 1.0f); }
  float bias_of(int64_t group, int64_t c) const { return parameter(bias, group, c, 0.0f); }

 private:
  float parameter(const TensorView& t, int64_t group, int64_t c, float absent) const {
    if (t.data == nullptr) return absent;
    return load_f32(at(t, group % groups * group_channels() + c), t.dtype);
  }
};

}  // namespace pestle::ops::group_norm
