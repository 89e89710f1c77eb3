// linear_* on the CPU where x is changed first (input_act) or becomes codes by rows (activations=
// row): the ops that do that, one after the other, in the workspace.
#pragma once

#include "ops/gemm/cpu/quant_matrices.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/linear/linear_output.h"

namespace pestle::ops {

// Bytes, for a contract with symbols M and K: x's codes and scales, x after input_act, what the ops
// in it need.
#define PESTLE_QUANT_LINEAR_BYTES "(min(M,128) + 3) * round_up(K,128) * 4 + 64"
#define PESTLE_LINEAR_ROWS_BYTES "(bytes(x) + 1)*M*K + 8*M + 6144 + " PESTLE_QUANT_LINEAR_BYTES
inline constexpr const char* kLinearRowsWorkspace = PESTLE_LINEAR_ROWS_BYTES;
// The same beneath pairs' unfused epilogue, and beneath quantised output, out as bf16.
inline constexpr const char* kLinearPairsWorkspace =
    PESTLE_UNFUSED_BYTES " + 16896 + " PESTLE_LINEAR_ROWS_BYTES;
inline constexpr const char* kCpuLinearQuantizedOutputWorkspace =
    "if(keep_out, 0, 2*M*N) + 17408 + " PESTLE_UNFUSED_BYTES " + " PESTLE_LINEAR_ROWS_BYTES;
// Of a GEMM that needs no more than kQuantLinearWorkspace.
inline constexpr const char* kCpuScaledQuantizedOutputWorkspace =
    "if(keep_out, 0, 2*M*N) + 2048 + " PESTLE_UNFUSED_BYTES
    " + 16448 + (min(M,128) + 4) * round_up(K,128) * 4 + 64";

// Floats after input_act.
inline constexpr const char* kCpuLinearInputWorkspace =
    "if(input_act == none, 0, bytes(x)*M*K + 512) + " PESTLE_QUANT_LINEAR_BYTES;
inline constexpr const char* kLinearInputTablesWorkspace =
    "if(input_act == none, 0, bytes(x)*M*K + 512) + 16384 + " PESTLE_QUANT_LINEAR_BYTES;
Status run_linear_input(const Call& call, const LinearArgs& args, const cpu::QuantMatrix& weight,
                        int64_t hadamard);
// With input_act or without.
inline Status run_linear_after_input(const Call& call, const LinearArgs& args,
                                     const cpu::QuantMatrix& weight, int64_t hadamard) {
  return has_input_act(call) ? run_linear_input(call, args, weight, hadamard)
                             : run_linear(call, args, weight, hadamard);
}

// activations=row: `format` names the quantiser and the GEMM of its codes: fp8 or int8.
Status run_linear_rows(const Call& call, std::string_view format, DType codes, int64_t hadamard);

// What that implementation says.
inline std::string refuse_linear_rows(const Call& call, int activations,
                                      std::initializer_list<int> tensors) {
  if (call.integer(activations) == 0) return "activations=float: another implementation's";
  if (wants_quantized_output(call)) return refuse_quantized_output(call);
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  return refuse_uneven_rows(call, tensors);
}

// What pairs' unfused epilogue says where there are none, or quantised output, which comes after
// it.
inline std::string refuse_without_plain_pairs(const Call& call, const Machine& machine) {
  return wants_quantized_output(call) ? refuse_quantized_output(call)
                                      : refuse_without_pairs(call, machine);
}

}  // namespace pestle::ops
