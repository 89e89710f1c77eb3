// gated_activation: a call's tensors and attributes for the code that ops share.
#pragma once

#include "ops/activation/activation_rows.h"
#include "ops/activation/gated_activation/gated_activation_spec.h"

namespace pestle::ops::gated_activation {

inline constexpr int kX = arg_index(spec, "x");
inline constexpr int kGate = arg_index(spec, "gate");
inline constexpr int kOut = arg_index(spec, "out");
inline constexpr int kAct = arg_index(spec, "act");
inline constexpr int kLayout = arg_index(spec, "layout");

inline ActivationRows read(const Call& call) {
  ActivationRows a;
  const GatedViews in = gated_views(call.tensor(kX), call.tensor(kGate), call.integer(kLayout));
  a.x = in.act;
  a.gate = in.gate;
  if (call.has(kOut)) a.out = call.tensor(kOut);
  a.act = static_cast<Activation>(call.integer(kAct));
  a.quant = quantized_output<spec>(call);
  return a;
}

}  // namespace pestle::ops::gated_activation
