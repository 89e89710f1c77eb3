// scaled_mm_fp8 on the CPU: decodes a to f32, then as linear_fp8 (quant_linear.cpp); scales of
// tensors and rows multiply the finished sums.
#include "ops/gemm/linear/linear_rows.h"
#include "ops/gemm/scaled_mm_fp8/scaled_mm_fp8_spec.h"

namespace pestle::ops::scaled_mm_fp8 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");

cpu::QuantMatrix codes_of(const Call& call, int index) {
  const TensorView& t = call.tensor(index);
  return matrix_of(t, code_kind(t.dtype));
}

// Of a tensor or of rows.
SumFactors factors_of(const Call& call, int index) {
  const TensorView& scale = call.tensor(index);
  SumFactors factors{scale.data};
  if (call.integer(kGranularity) != 0) even_rows(scale, factors.step);
  return factors;
}

std::string refuses(const Call& call, const Machine&) {
  if (wants_quantized_output(call)) return refuse_quantized_output(call);
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  return refuse_uneven_rows(call, {kA, kB, kScaleA, kScaleB});
}

Status run(const Call& call) {
  if (call.integer(kGranularity) == 2) {
    const auto a = byte_matrix(call.tensor(kA), call.tensor(kScaleA), Fp8Granularity::kBlock1x128);
    const auto b =
        byte_matrix(call.tensor(kB), call.tensor(kScaleB), Fp8Granularity::kBlock128x128);
    return run_scaled_mm(call, kOut, kEpilogue, a, b);
  }
  return run_scaled_mm(call, kOut, kEpilogue, codes_of(call, kA), codes_of(call, kB),
                       factors_of(call, kScaleA), factors_of(call, kScaleB));
}

constexpr Impl kImpls[] = {
    {.id = "cpu/scaled_mm_fp8_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kQuantLinearWorkspace},
    {.id = "cpu/scaled_mm_fp8_pairs",
     .refuses = refuse_without_plain_pairs,
     .run = run_with_pairs,
     .workspace = kPairsWorkspace},
    {.id = "cpu/scaled_mm_fp8_codes",
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = kCpuScaledQuantizedOutputWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_fp8
