// linear_nvfp4 on the CPU: decode the weight in registers or by tiles (quant_linear.cpp).
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/linear/linear_rows.h"
#include "ops/gemm/linear_nvfp4/linear_nvfp4_spec.h"

namespace pestle::ops::linear_nvfp4 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kGlobalScale = arg_index(spec, "global_scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

cpu::QuantMatrix weight(const Call& call) {
  return nvfp4_matrix(call.tensor(kWeight), call.tensor(kScale), call.tensor(kGlobalScale),
                      call.integer(kNibbles) == 0, call.integer(kScaleLayout) == 0);
}

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  const std::string rows = refuse_uneven_rows(call, {kX, kWeight, kScale});
  if (!rows.empty()) return rows;
  return refuse_strided_swizzle(call, kScale, call.integer(kScaleLayout) == 0);
}

Status run(const Call& call) {
  return run_linear_after_input(call, {kX, kOut, kEpilogue}, weight(call), 0);
}

constexpr Impl kImpls[] = {
    {.id = "cpu/linear_nvfp4_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kCpuLinearInputWorkspace},
    {.id = "cpu/linear_nvfp4_pairs",
     .refuses = refuse_without_pairs,
     .run = run_with_pairs,
     .workspace = kLinearPairsWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::linear_nvfp4
