// group_norm_backward: a call's tensors.
#pragma once

#include "ops/common/channel_groups.h"
#include "ops/group_norm_backward/group_norm_backward_spec.h"

namespace pestle::ops::group_norm_backward {

struct Groups : ChannelGroups {
  TensorView d_out, d_x, d_weight, d_bias;

  explicit Groups(const Call& call)
      : ChannelGroups(view(call, arg_index(spec, "x")), view(call, arg_index(spec, "weight")),
                      view(call, arg_index(spec, "bias")), call.integer(arg_index(spec, "groups")),
                      call.number(arg_index(spec, "eps")),
                      call.integer(arg_index(spec, "activation")) == 1),
        d_out(view(call, arg_index(spec, "d_out"))),
        d_x(view(call, arg_index(spec, "d_x"))),
        d_weight(view(call, arg_index(spec, "d_weight"))),
        d_bias(view(call, arg_index(spec, "d_bias"))) {}

 private:
  static TensorView view(const Call& call, int index) {
    return call.has(index) ? call.tensor(index) : TensorView();
  }
};

// Sums of a channel of a sample, two floats: of the gradient behind weight, and of that times y.
inline constexpr const char* kWorkspace = "8*size(x,0)*size(x,1)";

}  // namespace pestle::ops::group_norm_backward
