// scaled_mm_nvfp4 on the CPU: decodes a to f32, then as linear_nvfp4 (quant_linear.cpp).
#include "ops/gemm/cpu/quant_matrices.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"
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

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  const bool swizzled = call.integer(kScaleLayout) == 0;
  std::string why = refuse_uneven_rows(call, {kA, kB, kScaleA, kScaleB});
  if (why.empty()) why = refuse_strided_swizzle(call, kScaleA, swizzled);
  if (why.empty()) why = refuse_strided_swizzle(call, kScaleB, swizzled);
  return why;
}

Status run(const Call& call) {
  const bool high_first = call.integer(kNibbles) == 0;
  const bool swizzled = call.integer(kScaleLayout) == 0;
  const auto a = nvfp4_matrix(call.tensor(kA), call.tensor(kScaleA), call.tensor(kGlobalA),
                              high_first, swizzled);
  const auto b = nvfp4_matrix(call.tensor(kB), call.tensor(kScaleB), call.tensor(kGlobalB),
                              high_first, swizzled);
  return run_scaled_mm(call, kOut, kEpilogue, a, b);
}

constexpr Impl kImpls[] = {
    {.id = "cpu/scaled_mm_nvfp4_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kQuantLinearWorkspace},
    {.id = "cpu/scaled_mm_nvfp4_pairs",
     .refuses = refuse_without_pairs,
     .run = run_with_pairs,
     .workspace = kPairsWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_nvfp4
