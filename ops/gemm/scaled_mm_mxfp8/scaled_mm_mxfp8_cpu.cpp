// scaled_mm_mxfp8 on the CPU: decodes a to f32, then as linear_mxfp8 (quant_linear.cpp).
#include "ops/gemm/cpu/quant_matrices.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"
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

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  const bool swizzled = call.integer(kScaleLayout) == 0;
  std::string why = refuse_uneven_rows(call, {kA, kB, kScaleA, kScaleB});
  if (why.empty()) why = refuse_strided_swizzle(call, kScaleA, swizzled);
  if (why.empty()) why = refuse_strided_swizzle(call, kScaleB, swizzled);
  return why;
}

Status run(const Call& call) {
  const bool swizzled = call.integer(kScaleLayout) == 0;
  const auto a = mxfp8_matrix(call.tensor(kA), call.tensor(kScaleA), swizzled);
  const auto b = mxfp8_matrix(call.tensor(kB), call.tensor(kScaleB), swizzled);
  return run_scaled_mm(call, kOut, kEpilogue, a, b);
}

constexpr Impl kImpls[] = {
    {.id = "cpu/scaled_mm_mxfp8_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kQuantLinearWorkspace},
    {.id = "cpu/scaled_mm_mxfp8_pairs",
     .refuses = refuse_without_pairs,
     .run = run_with_pairs,
     .workspace = kPairsWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_mxfp8
