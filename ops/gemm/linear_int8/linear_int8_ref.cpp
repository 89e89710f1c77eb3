// linear_int8, reference: float64 sums over the dequantised weight, x rotated in f32.
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
  const Int8Rows weight{codes, call.tensor(kScale), granularity == 0, std::max<int64_t>(group, 1)};
  const DType coded = call.integer(kActivations) != 0 ? DType::kI8 : DType::kNone;
  const ReferenceInput x(call, call.integer(kHadamard), coded, static_cast<double>(columns));
  return matmul_reference(call, call.tensor(kOut), columns, kEpilogue, x, weight);
}

Status run(const Call& call) { return reference_with_codes(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_int8
