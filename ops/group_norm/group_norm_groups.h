// group_norm: a call's tensors.
#pragma once

#include "ops/common/channel_groups.h"
#include "ops/group_norm/group_norm_spec.h"

namespace pestle::ops::group_norm {

inline constexpr int kX = arg_index(spec, "x");
inline constexpr int kWeight = arg_index(spec, "weight");
inline constexpr int kBias = arg_index(spec, "bias");
inline constexpr int kOut = arg_index(spec, "out");
inline constexpr int kGroups = arg_index(spec, "groups");
inline constexpr int kEps = arg_index(spec, "eps");
inline constexpr int kActivation = arg_index(spec, "activation");

struct Groups : ChannelGroups {
  TensorView out;

  explicit Groups(const Call& call)
      : ChannelGroups(call.tensor(kX), call.has(kWeight) ? call.tensor(kWeight) : TensorView(),
                      call.has(kBias) ? call.tensor(kBias) : TensorView(), call.integer(kGroups),
                      call.number(kEps), call.integer(kActivation) == 1),
        out(call.tensor(kOut)) {}
  char* x_channel(int64_t group, int64_t c) const { return channel(x, group, c); }
  char* out_channel(int64_t group, int64_t c) const { return channel(out, group, c); }
};

}  // namespace pestle::ops::group_norm
