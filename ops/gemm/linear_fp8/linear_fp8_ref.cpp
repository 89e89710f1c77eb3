// linear_fp8, reference: float64 sums over the dequantised weight; of codes, times the weight's
// scale, where x is coded, too.
#include "core/op.h"
#include "ops/gemm/linear/linear_output.h"
#include "ops/gemm/linear_fp8/linear_fp8_spec.h"
#include "ops/gemm/reference/quant_rows.h"

namespace pestle::ops::linear_fp8 {
namespace {

constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kActivations = arg_index(spec, "activations");
constexpr int kAccumulation = arg_index(spec, "accumulation");

Status run_values(const Call& call) {
  const TensorView& codes = call.tensor(kWeight);
  const bool coded = call.integer(kActivations) != 0;
  const auto k = static_cast<double>(row_length(codes));
  const double lost =
      call.integer(kAccumulation) == 0 ? k + 16777216 : (16 * k + 4096) * (16 * k + 4096);
  const ReferenceInput x(call, 0, coded ? codes.dtype : DType::kNone, coded ? lost : k);
  const auto multiply = [&](const auto& weight) {
    return matmul_reference(call, call.tensor(kOut), row_length(codes), kEpilogue, x, weight);
  };
  const TensorView& scale = call.tensor(kScale);
  const auto granularity = static_cast<Fp8Granularity>(call.integer(kGranularity));
  if (coded) return multiply(Fp8Codes(codes, scale, granularity == Fp8Granularity::kTensor, lost));
  return multiply(Fp8Rows(codes, scale, granularity));
}

Status run(const Call& call) { return reference_with_quantized_output(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_fp8
