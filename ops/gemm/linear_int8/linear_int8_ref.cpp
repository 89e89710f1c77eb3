// linear_int8, reference: float64 sums over the dequantised weight, x rotated in f32; of integers
// where x is coded, too.
#include <algorithm>

#include "core/op.h"
#include "ops/gemm/linear/linear_output.h"
#include "ops/gemm/linear_int8/linear_int8_spec.h"
#include "ops/gemm/reference/quant_rows.h"

namespace pestle::ops::linear_int8 {
namespace {

constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kActivations = arg_index(spec, "activations");

Status run_values(const Call& call) {
  const TensorView& codes = call.tensor(kWeight);
  const int64_t granularity = call.integer(kGranularity), columns = row_length(codes);
  const int64_t group = granularity == 2 ? call.integer(kGroupSize) : columns;
  const bool coded = call.integer(kActivations) != 0;
  const ReferenceInput x(call, call.integer(kHadamard), coded ? DType::kI8 : DType::kNone,
                         static_cast<double>(columns));
  const auto multiply = [&](const auto& weight) {
    return matmul_reference(call, call.tensor(kOut), columns, kEpilogue, x, weight);
  };
  const TensorView& scale = call.tensor(kScale);
  if (coded) return multiply(Int8Integers{codes, scale, granularity == 0});
  return multiply(Int8Rows{codes, scale, granularity == 0, std::max<int64_t>(group, 1)});
}

Status run(const Call& call) { return reference_with_quantized_output(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_int8
