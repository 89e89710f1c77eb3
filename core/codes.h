// Outputs that are another op's codes of this op's own output: float64 can't say what they are, so
// the checks run that op on what the implementation gave and want the same bits. Part of contracts:
// an exact output's bound carries the rule in `k`, a text
//   "keep_out; fp8_row: quantize_fp8 x=out granularity=row; ..."
// First the bool attribute that makes the output which is read appear beside the codes. Then, by
// label of the choice that selects the output's shape, the op and its arguments: tensors and
// attributes of this op by name, else values as in a case. Absent tensors stay absent, leading
// dimensions are one, and the op's output of the same name is what this one must equal.
#pragma once

#include "core/op_spec.h"

namespace pestle {

constexpr Arg codes_by(Arg arg, const char* rule) {
  arg.bound = {.exact = true, .c = 0, .k = rule};
  return arg;
}
constexpr bool has_codes_rule(const Arg& arg) {
  return arg.role == Role::kOutput && arg.bound.exact && std::string_view(arg.bound.k) != "1";
}

}  // namespace pestle
