// group_norm: a call's tensors.
#pragma once

#include "ops/norm/group_norm/group_norm_spec.h"

namespace pestle::ops::group_norm {

inline constexpr int kX = arg_index(spec, "x");
inline constexpr int kOut = arg_index(spec, "out");
inline constexpr int kResidual = arg_index(spec, "residual");
inline constexpr int kResidualOut = arg_index(spec, "residual_out");
inline constexpr int kQ = arg_index(spec, "q");
inline constexpr int kQScale = arg_index(spec, "q_scale");
inline constexpr int kOutFormat = arg_index(spec, "out_format");

// Codes by a second pass (ops/quant/output/quantize_after.h): the result where it is not kept or
// has gaps, its codes where q has gaps, what the first pass needs, what the quantiser needs.
inline constexpr const char* kCodesWorkspace =
    "if(keep_out && out_format != nvfp4 && out_format != mxfp8, 0, M*K*bytes(x)) + "
    "if(out_format == nvfp4 || out_format == mxfp8, M*K, 0) + "
    "16*(M*K*bytes(x)/16384 + size(x,0)*groups) + 4*M + 8192";

struct Groups : ChannelGroups {
  TensorView out, residual_out;

  explicit Groups(const Call& call)
      : ChannelGroups(channel_groups<spec>(call)),
        out(view_of(call, kOut)),
        residual_out(view_of(call, kResidualOut)) {}
  char* x_channel(int64_t group, int64_t c) const { return channel(x, group, c); }
  char* out_channel(int64_t group, int64_t c) const { return channel(out, group, c); }
};

}  // namespace pestle::ops::group_norm
