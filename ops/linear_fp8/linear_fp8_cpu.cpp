// linear_fp8 on the CPU: decode the weight in registers or by tiles (quant_linear.cpp).
#include "ops/common/quant_matrices.h"
#include "ops/linear_fp8/linear_fp8_spec.h"

namespace pestle::ops::linear_fp8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");

cpu::QuantMatrix weight(const Call& call) {
  return byte_matrix(call.tensor(kWeight), call.tensor(kScale),
                     static_cast<Fp8Granularity>(call.integer(kGranularity)));
}

std::string refuses(const Call& call, const Machine&) {
  if (call.integer(arg_index(spec, "activations")) != 0)
    return "activations=row: activations stay floats here; the reference serves";
  return refuse_uneven_rows(call, {kX, kWeight, kScale});
}

Status run(const Call& call) { return run_linear(call, {kX, kOut, kEpilogue}, weight(call), 0); }

constexpr Impl kImpls[] = {
    {.id = "cpu/linear_fp8_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kQuantLinearWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::linear_fp8
