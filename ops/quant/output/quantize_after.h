// Quantised output as a second pass (GEMMs, group_norm): the output is stored, rounded once, and
// the op that the contract's rule names (core/codes.h) makes codes of it, out of the L2 as far as
// it fits. So codes are that op's own, on every device and for every format that it knows.
#pragma once

#include "core/codes.h"
#include "core/op.h"
#include "ops/quant/output/quantized_output.h"

namespace pestle::ops {

// Does the call want codes?
bool wants_quantized_output(const Call& call);
inline std::string refuse_quantized_output(const Call& call) {
  return wants_quantized_output(call) ? "gives no codes: out_format=none" : "";
}
inline std::string refuse_plain(const Call& call, const Machine&) {
  return wants_quantized_output(call) ? "" : "is for quantised output";
}

// The codes and scales of `call`, of y, by the op that its rule names. `workspace`: that op's,
// after codes of a q that has gaps where the op knows matrices only. y must be dense then.
Status codes_by_rule(const Call& call, const TensorView& y, void* workspace, int64_t bytes);

// For references: `run` as if no codes were wanted, then codes of its values as bf16.
Status reference_with_quantized_output(const Call& call, Status (*run)(const Call&));

// The call without codes, into out or, where that is not kept or has gaps that the quantiser does
// not take, into the workspace (in x's dtype if that is out's, else as bf16); then its codes. The
// workspace holds the output's bytes, then what the two ops need.
Status run_with_quantized_output(const Call& call);

}  // namespace pestle::ops
