// scaled_mm_mxfp8, reference: float64 sums of products of dequantised values.
#include "core/op.h"
#include "ops/gemm/reference/quant_rows.h"
#include "ops/gemm/scaled_mm_mxfp8/scaled_mm_mxfp8_spec.h"

namespace pestle::ops::scaled_mm_mxfp8 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

Status run(const Call& call) {
  const bool swizzled = call.integer(kScaleLayout) == 0;
  const TensorView& codes = call.tensor(kA);
  const Mxfp8Rows a{codes, call.tensor(kScaleA), swizzled};
  const Mxfp8Rows b{call.tensor(kB), call.tensor(kScaleB), swizzled};
  return matmul_reference(call, call.tensor(kOut), row_length(codes), kEpilogue, a, b);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::scaled_mm_mxfp8
