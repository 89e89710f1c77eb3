// linear_int8 on the CPU: decode the weight in registers or by tiles (quant_linear.cpp).
#include "ops/gemm/linear/linear_rows.h"
#include "ops/gemm/linear_int8/linear_int8_spec.h"

namespace pestle::ops::linear_int8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kActivations = arg_index(spec, "activations");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

cpu::QuantMatrix weight(const Call& call) {
  const int64_t granularity = call.integer(kGranularity);
  cpu::QuantMatrix q =
      byte_matrix(call.tensor(kWeight), call.tensor(kScale),
                  granularity == 0 ? Fp8Granularity::kTensor : Fp8Granularity::kRow);
  if (granularity == 2) q.group = call.integer(kGroupSize);
  return q;
}

// activations=float.
std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  if (call.integer(kActivations) != 0) return "activations=row: another implementation's";
  if (wants_quantized_output(call)) return refuse_quantized_output(call);
  const std::string rows = refuse_uneven_rows(call, {kX, kWeight, kScale});
  return rows.empty() ? refuse_group(weight(call)) : rows;
}

Status run(const Call& call) {
  return run_linear_after_input(call, {kX, kOut, kEpilogue}, weight(call), call.integer(kHadamard));
}

std::string refuses_rows(const Call& call, const Machine&) {
  return refuse_linear_rows(call, kActivations, {kX, kWeight, kScale});
}

Status run_rows(const Call& call) {
  return run_linear_rows(call, "int8", DType::kI8, call.integer(kHadamard));
}

constexpr Impl kImpls[] = {
    {.id = "cpu/linear_int8_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kCpuLinearInputWorkspace},
    {.id = "cpu/linear_int8_pairs",
     .refuses = refuse_without_plain_pairs,
     .run = run_with_pairs,
     .workspace = kLinearPairsWorkspace},
    {.id = "cpu/linear_int8_rows",
     .refuses = refuses_rows,
     .run = run_rows,
     .workspace = kLinearRowsWorkspace},
    {.id = "cpu/linear_int8_codes",
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = kCpuLinearQuantizedOutputWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::linear_int8
