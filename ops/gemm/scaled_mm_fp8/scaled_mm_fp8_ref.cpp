// scaled_mm_fp8, reference: float64 sums of exact products, times the scales of tensors or rows;
// those of blocks are factors of the terms.
#include "core/op.h"
#include "ops/gemm/reference/quant_rows.h"
#include "ops/gemm/scaled_mm_fp8/scaled_mm_fp8_spec.h"

namespace pestle::ops::scaled_mm_fp8 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kAccumulation = arg_index(spec, "accumulation");
constexpr int kEpilogue = arg_index(spec, "alpha");

// The contract's bound, within(4, this), of products that have no scales of blocks.
double within(const Call& call) {
  const auto k = static_cast<double>(row_length(call.tensor(kA)));
  switch (call.integer(kAccumulation)) {
    case 0: return 16777216 + k;
    case 1: return (16 * k + 4096) * (16 * k + 4096);
    default: return k;
  }
}

// A row of codes times the scales of its blocks, `rows` of them by as many rows of codes, which is
// exact in float64.
struct BlockRows {
  const TensorView& codes;
  const TensorView& scale;
  int64_t rows;

  void operator()(int64_t row, double* values) const {
    const char* from = row_address(codes, row);
    const int64_t step = last_stride_bytes(codes);
    with_fp8(codes.dtype, [&]<class F>(F) {
      double by = 0;
      for (int64_t k = 0; k < row_length(codes); ++k) {
        if (k % formats::kFp8Block == 0) by = float_at(scale, row / rows, k / formats::kFp8Block);
        values[k] = by * double{formats::f32_from_code<F>(load<uint8_t>(from + k * step))};
      }
    });
  }
};

Status run_values(const Call& call) {
  const TensorView &a = call.tensor(kA), &b = call.tensor(kB);
  const TensorView &scale_a = call.tensor(kScaleA), &scale_b = call.tensor(kScaleB);
  const auto multiply = [&](const auto& left, const auto& right) {
    return matmul_reference(call, call.tensor(kOut), row_length(a), kEpilogue, left, right);
  };
  const int64_t granularity = call.integer(kGranularity);
  if (granularity == 2)
    return multiply(BlockRows{a, scale_a, 1}, BlockRows{b, scale_b, formats::kFp8Block});
  const bool one = granularity == 0;
  return multiply(Fp8Codes(a, scale_a, one, within(call)), Fp8Codes(b, scale_b, one, within(call)));
}

Status run(const Call& call) { return reference_with_quantized_output(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::scaled_mm_fp8
