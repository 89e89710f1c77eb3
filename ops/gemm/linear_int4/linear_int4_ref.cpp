// linear_int4, reference: float64 sums over the dequantised weight, x rotated in f32.
#include "core/op.h"
#include "ops/gemm/linear_int4/linear_int4_spec.h"
#include "ops/gemm/reference/quant_rows.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::linear_int4 {
namespace {

constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kZero = arg_index(spec, "zero");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

Status run(const Call& call) {
  const int64_t columns = input_columns(call);
  const Int4Rows weight{call.tensor(kWeight), call.tensor(kScale),
                        call.has(kZero) ? &call.tensor(kZero) : nullptr,
                        int4_group(call.integer(kGroupSize), columns)};
  return matmul_reference(
      call, call.tensor(kOut), columns, kEpilogue,
      ReferenceInput(call, call.integer(kHadamard), DType::kNone, static_cast<double>(columns)),
      weight);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_int4
