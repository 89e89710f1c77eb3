// linear_fp8 on the CPU: decode the weight in registers or by tiles (quant_linear.cpp).
#include "ops/common/linear_rows.h"
#include "ops/linear_fp8/linear_fp8_spec.h"

namespace pestle::ops::linear_fp8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kActivations = arg_index(spec, "activations");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");

cpu::QuantMatrix weight(const Call& call) {
  return byte_matrix(call.tensor(kWeight), call.tensor(kScale),
                     static_cast<Fp8Granularity>(call.integer(kGranularity)));
}

// activations=float.
std::string refuse_floats(const Call& call) {
  if (call.integer(kActivations) != 0) return "activations=row: another implementation's";
  if (wants_codes(call)) return refuse_codes(call);
  return refuse_uneven_rows(call, {kX, kWeight, kScale});
}

std::string refuses(const Call& call, const Machine&) {
  const std::string why = refuse_floats(call);
  return why.empty() ? refuse_input_act(call) : why;
}

Status run(const Call& call) { return run_linear(call, {kX, kOut, kEpilogue}, weight(call), 0); }

std::string refuses_input(const Call& call, const Machine&) {
  if (!has_input_act(call)) return "input_act=none: another implementation's";
  return refuse_floats(call);
}

Status run_input(const Call& call) {
  return run_linear_input(call, {kX, kOut, kEpilogue}, weight(call), 0);
}

std::string refuses_rows(const Call& call, const Machine&) {
  if (call.integer(kActivations) == 0) return "activations=float: another implementation's";
  if (wants_codes(call)) return refuse_codes(call);
  return refuse_uneven_rows(call, {kX, kWeight, kScale});
}

Status run_rows(const Call& call) {
  return run_linear_rows(call, "fp8", call.tensor(kWeight).dtype, 0);
}

constexpr Impl kImpls[] = {
    {.id = "cpu/linear_fp8_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kQuantLinearWorkspace},
    {.id = "cpu/linear_fp8_input",
     .refuses = refuses_input,
     .run = run_input,
     .workspace = kLinearRowsWorkspace},
    {.id = "cpu/linear_fp8_rows",
     .refuses = refuses_rows,
     .run = run_rows,
     .workspace = kLinearRowsWorkspace},
    {.id = "cpu/linear_fp8_codes",
     .refuses = refuse_plain,
     .run = run_with_codes,
     .workspace = kLinearCodesOutWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::linear_fp8
