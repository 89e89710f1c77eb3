// linear_mxfp4, reference: float64 sums over the dequantised weight.
#include "core/op.h"
#include "ops/gemm/linear_mxfp4/linear_mxfp4_spec.h"
#include "ops/gemm/reference/quant_rows.h"

namespace pestle::ops::linear_mxfp4 {
namespace {

constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

Status run(const Call& call) {
  const int64_t columns = input_columns(call);
  const Mxfp4Rows weight{call.tensor(kWeight), call.tensor(kScale), call.integer(kNibbles) == 1,
                         call.integer(kScaleLayout) == 0};
  return matmul_reference(call, call.tensor(kOut), columns, kEpilogue,
                          ReferenceInput(call, 0, DType::kNone, static_cast<double>(columns)),
                          weight);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_mxfp4
