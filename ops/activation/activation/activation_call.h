// activation: a call's tensors and attributes for the code that ops share.
#pragma once

#include "ops/activation/activation/activation_spec.h"
#include "ops/activation/activation_rows.h"

namespace pestle::ops::activation {

inline constexpr int kX = arg_index(spec, "x");
inline constexpr int kOut = arg_index(spec, "out");
inline constexpr int kAct = arg_index(spec, "act");

inline ActivationRows read(const Call& call) {
  ActivationRows a;
  a.x = call.tensor(kX);
  if (call.has(kOut)) a.out = call.tensor(kOut);
  a.act = static_cast<Activation>(call.integer(kAct));
  a.quant = quantized_output<spec>(call);
  return a;
}

}  // namespace pestle::ops::activation
