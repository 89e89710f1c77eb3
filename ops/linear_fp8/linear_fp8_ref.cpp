// linear_fp8, reference: float64 sums over the dequantised weight.
#include "core/op.h"
#include "ops/common/quant_rows.h"
#include "ops/linear_fp8/linear_fp8_spec.h"

namespace pestle::ops::linear_fp8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const Fp8Rows weight(call.tensor(kWeight), call.tensor(kScale),
                       static_cast<Fp8Granularity>(call.integer(kGranularity)));
  return matmul_reference(call, call.tensor(kOut), row_length(x), kEpilogue, LinearX{x, 0}, weight);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_fp8
