// scaled_mm_nvfp4, reference: float64 sums of products of dequantised values.
#include "core/op.h"
#include "ops/gemm/reference/quant_rows.h"
#include "ops/gemm/scaled_mm_nvfp4/scaled_mm_nvfp4_spec.h"

namespace pestle::ops::scaled_mm_nvfp4 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kGlobalA = arg_index(spec, "global_scale_a");
constexpr int kGlobalB = arg_index(spec, "global_scale_b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

Status run(const Call& call) {
  const bool high_first = call.integer(kNibbles) == 0;
  const bool swizzled = call.integer(kScaleLayout) == 0;
  const TensorView& codes = call.tensor(kA);
  const Nvfp4Rows a{codes, call.tensor(kScaleA), load<float>(call.tensor(kGlobalA).data),
                    high_first, swizzled};
  const Nvfp4Rows b{call.tensor(kB), call.tensor(kScaleB), load<float>(call.tensor(kGlobalB).data),
                    high_first, swizzled};
  return matmul_reference(call, call.tensor(kOut), row_length(codes) * 2, kEpilogue, a, b);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::scaled_mm_nvfp4
