// What the kernels of weights of few bits read of a call's outputs.
#pragma once

#include "ops/gemm/gemv/gemv_weight_only.cuh"
#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {

// All leading dimensions as one.
inline std::string read_even(const Call& call, int place, Stack* s) {
  const TensorView& t = call.tensor(place);
  *s = {t.data, t.dtype, row_count(t), row_length(t), 1, 0, 1, 0};
  if (even_rows(t, s->row_stride)) return "";
  return std::string(call.spec->args[static_cast<size_t>(place)].name) +
         "'s rows are not dense and evenly spaced";
}

// The epilogue's operands.
inline std::string read_outputs(const Call& call, const WeightOnlyArgs& args, Operands* o) {
  const int residual = args.alpha + 2, gate = args.alpha + kGatePlace;
  std::string why = read_even(call, args.out, &o->out);
  if (why.empty() && call.has(residual)) why = read_even(call, residual, &o->residual);
  Stack rows;
  if (why.empty() && call.has(gate)) why = read_even(call, gate, &rows);
  return why.empty() ? refuse_misaligned(call, {args.out, args.alpha, args.alpha + 1, residual,
                                                args.alpha + kBetaPlace, gate})
                     : why;
}

}  // namespace pestle::ops
