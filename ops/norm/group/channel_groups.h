// What group_norm and its gradients share: x as groups of neighbouring channels of planes. Each
// sample's channels may be modulated before and after the norm:
//   s = residual + gate * x            y = (s - mean(s)) / sqrt(mean((s - mean(s))^2) + eps)
//   out = activation((y * weight + bias) * (1 + scale) + shift)         means over a group
#pragma once

#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops {

// ---- for contracts: x is [*M, K], batch and channels first; G rows of modulation ----

inline constexpr Arg kGroupsX =
    input("x", kNormDtypes, "*M, K", "batch, channels, and any dimensions behind them");
inline constexpr Arg kGroupsWeight =
    input("weight", kNormParameterDtypes, "C", "multiplies each channel").optional();
inline constexpr Arg kGroupsBias =
    input("bias", kNormParameterDtypes, "C", "added to each channel after weight").optional();
inline constexpr Arg kGroupsGate =
    input("gate", "bf16|f16|f32", "G, C",
          "multiplies x before the residual is added; batch/G neighbouring samples share a row")
        .optional();
inline constexpr Arg kGroupsScale =
    input("scale", "bf16|f16|f32", "G, C",
          "modulation: what weight and bias gave is multiplied by 1 + scale; batch/G neighbouring "
          "samples share a row of it")
        .optional();
inline constexpr Arg kGroupsShift =
    input("shift", "bf16|f16|f32", "G, C", "modulation: added before the activation").optional();

inline constexpr Constraint kGroupsConstraints[] = {
    {"rank(x) >= 2", "x must have at least two dimensions, batch and channels"},
    {"groups >= 1 && size(x,1) % max(groups,1) == 0",
     "groups must divide the channels, x's second dimension"},
    {"!has(weight) || size(weight,0) == size(x,1)", "weight must have an element a channel"},
    {"!has(bias) || size(bias,0) == size(x,1)", "bias must have an element a channel"},
    {"!has(gate) || size(gate,1) == size(x,1)", "gate must have a column a channel"},
    {"!has(scale) || size(scale,1) == size(x,1)", "scale must have a column a channel"},
    {"!has(shift) || size(shift,1) == size(x,1)", "shift must have a column a channel"},
    {"!(has(gate) || has(scale) || has(shift)) || size(x,0) == 0 || "
     "(G > 0 && size(x,0) % max(G,1) == 0)",
     "the batch must be a multiple of G, the rows of gate, scale and shift"},
};

// ---- for implementations ----

struct ChannelGroups {
  TensorView x, residual, gate, weight, bias, scale, shift;  // absent ones have no data
  int64_t groups = 1, channels = 0, plane = 1;               // of a sample; elements of a channel
  float eps = 0;
  bool silu = false;

  int64_t samples() const { return x.shape[0]; }
  int64_t count() const { return samples() * groups; }  // of groups in x
  int64_t group_channels() const { return channels / groups; }
  int64_t size() const { return group_channels() * plane; }
  bool sums() const { return residual.data != nullptr || gate.data != nullptr; }
  // Rows of gate, scale and shift, and samples that share one.
  int64_t modulations() const {
    for (const TensorView* t : {&gate, &scale, &shift}) {
      if (t->data != nullptr) return t->shape[0];
    }
    return 1;
  }
  int64_t samples_each() const { return modulations() == 0 ? 0 : samples() / modulations(); }
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
  // A channel's, of weight, bias, gate, scale or shift.
  float parameter(const TensorView& t, int64_t group, int64_t c, float absent) const {
    if (t.data == nullptr) return absent;
    const int64_t own = group % groups * group_channels() + c;
    if (t.rank == 1) return load_f32(at(t, own), t.dtype);
    return load_f32(at(t, group / groups / samples_each(), own), t.dtype);
  }
  float weight_of(int64_t group, int64_t c) const { return parameter(weight, group, c, 1.0f); }
  float bias_of(int64_t group, int64_t c) const { return parameter(bias, group, c, 0.0f); }
  float gate_of(int64_t group, int64_t c) const { return parameter(gate, group, c, 1.0f); }
  float scale_of(int64_t group, int64_t c) const { return parameter(scale, group, c, 0.0f); }
  float shift_of(int64_t group, int64_t c) const { return parameter(shift, group, c, 0.0f); }
  // Weight and bias with the modulation: out = y * factor + addend.
  float factor_of(int64_t group, int64_t c) const {
    return weight_of(group, c) * (1.0f + scale_of(group, c));
  }
  float addend_of(int64_t group, int64_t c) const {
    return bias_of(group, c) * (1.0f + scale_of(group, c)) + shift_of(group, c);
  }
};

inline TensorView view_of(const Call& call, int index) {
  return index >= 0 && call.has(index) ? call.tensor(index) : TensorView();
}

template <const OpSpec& spec>
ChannelGroups channel_groups(const Call& call) {
  ChannelGroups g;
  g.x = view_of(call, norm_arg(spec, "x"));
  g.residual = view_of(call, norm_arg(spec, "residual"));
  g.gate = view_of(call, norm_arg(spec, "gate"));
  g.weight = view_of(call, norm_arg(spec, "weight"));
  g.bias = view_of(call, norm_arg(spec, "bias"));
  g.scale = view_of(call, norm_arg(spec, "scale"));
  g.shift = view_of(call, norm_arg(spec, "shift"));
  g.groups = call.integer(arg_index(spec, "groups"));
  g.channels = g.x.shape[1];
  g.eps = call.number(arg_index(spec, "eps"));
  g.silu = call.integer(arg_index(spec, "activation")) == 1;
  for (int d = 2; d < g.x.rank; ++d) g.plane *= g.x.shape[d];
  return g;
}

}  // namespace pestle::ops
