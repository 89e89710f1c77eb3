// scaled_mm_mxfp4 on the CPU: decodes a to f32, then as linear_mxfp4 (quant_linear.cpp).
#include "ops/gemm/cpu/quant_matrices.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/scaled_mm_mxfp4/scaled_mm_mxfp4_spec.h"

namespace pestle::ops::scaled_mm_mxfp4 {
namespace {

bool swizzled(const Call& call) { return call.integer(kScaleLayout) == 0; }

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  std::string why = refuse_uneven_rows(call, {kA, kB, kScaleA, kScaleB});
  if (why.empty()) why = refuse_strided_swizzle(call, kScaleA, swizzled(call));
  if (why.empty()) why = refuse_strided_swizzle(call, kScaleB, swizzled(call));
  return why;
}

Status run(const Call& call) {
  const bool high_first = call.integer(kNibbles) != 0;
  const TensorView &a = call.tensor(kA), &scale_a = call.tensor(kScaleA);
  const cpu::QuantMatrix left = call.integer(kAFormat) == 0
                                    ? mxfp8_matrix(a, scale_a, swizzled(call))
                                    : mxfp4_matrix(a, scale_a, high_first, swizzled(call));
  const auto right =
      mxfp4_matrix(call.tensor(kB), call.tensor(kScaleB), high_first, swizzled(call));
  return run_scaled_mm(call, kOut, kEpilogue, left, right);
}

constexpr Impl kImpls[] = {
    {.id = "cpu/scaled_mm_mxfp4_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kQuantLinearWorkspace},
    {.id = "cpu/scaled_mm_mxfp4_pairs",
     .refuses = refuse_without_pairs,
     .run = run_with_pairs,
     .workspace = kPairsWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_mxfp4
