// group_norm_backward: a call's tensors.
#pragma once

#include "ops/norm/group_norm_backward/group_norm_backward_spec.h"

namespace pestle::ops::group_norm_backward {

struct Groups : ChannelGroups {
  TensorView d_out, d_residual_out;
  TensorView d_x, d_residual, d_weight, d_bias, d_gate, d_scale, d_shift;

  explicit Groups(const Call& call) : ChannelGroups(channel_groups<spec>(call)) {
    d_out = view_of(call, arg_index(spec, "d_out"));
    d_residual_out = view_of(call, arg_index(spec, "d_residual_out"));
    d_x = view_of(call, arg_index(spec, "d_x"));
    d_residual = view_of(call, arg_index(spec, "d_residual"));
    d_weight = view_of(call, arg_index(spec, "d_weight"));
    d_bias = view_of(call, arg_index(spec, "d_bias"));
    d_gate = view_of(call, arg_index(spec, "d_gate"));
    d_scale = view_of(call, arg_index(spec, "d_scale"));
    d_shift = view_of(call, arg_index(spec, "d_shift"));
  }
  // Does anything want sums over channels?
  bool has_sums() const {
    for (const TensorView* t : {&d_weight, &d_bias, &d_gate, &d_scale, &d_shift}) {
      if (t->data != nullptr) return true;
    }
    return false;
  }
};

// Sums of a channel of a sample, three floats: of the gradient behind weight and modulation, of
// that times y, and of d_s times x.
inline constexpr const char* kWorkspace = "12*size(x,0)*size(x,1)";

}  // namespace pestle::ops::group_norm_backward
