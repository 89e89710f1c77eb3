// scaled_mm_mxfp4, reference: float64 sums of products of dequantised values.
#include "core/op.h"
#include "ops/gemm/reference/quant_rows.h"
#include "ops/gemm/scaled_mm_mxfp4/scaled_mm_mxfp4_spec.h"

namespace pestle::ops::scaled_mm_mxfp4 {
namespace {

Status run(const Call& call) {
  const bool swizzled = call.integer(kScaleLayout) == 0;
  const bool high_first = call.integer(kNibbles) != 0;
  const TensorView &a = call.tensor(kA), &b = call.tensor(kB), &out = call.tensor(kOut);
  const int64_t columns = row_length(b) * 2;
  const Mxfp4Rows right{b, call.tensor(kScaleB), high_first, swizzled};
  if (call.integer(kAFormat) == 0)
    return matmul_reference(call, out, columns, kEpilogue,
                            Mxfp8Rows{a, call.tensor(kScaleA), swizzled}, right);
  return matmul_reference(call, out, columns, kEpilogue,
                          Mxfp4Rows{a, call.tensor(kScaleA), high_first, swizzled}, right);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::scaled_mm_mxfp4
