// scaled_mm_fp8, reference: float64 sums of exact products.
#include "core/op.h"
#include "formats/fp8.h"
#include "ops/gemm/reference/gemm_ref.h"
#include "ops/gemm/scaled_mm_fp8/scaled_mm_fp8_spec.h"

namespace pestle::ops::scaled_mm_fp8 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kEpilogue = arg_index(spec, "alpha");

// Decode scale of element (row, k); block scales of b cover 128 rows.
double scale(const Call& call, int index, int64_t row, int64_t k) {
  const TensorView& t = call.tensor(index);
  const int64_t granularity = call.integer(kGranularity);
  const int64_t scale_row = granularity == 0                       ? 0
                            : granularity == 2 && index == kScaleB ? row / formats::kFp8Block
                                                                   : row;
  return float_at(t, scale_row, granularity == 2 ? k / formats::kFp8Block : 0);
}

// A row of codes times their scales, which is exact in float64.
void decode_row(const Call& call, int codes, int scales, int64_t row, double* values) {
  const TensorView& t = call.tensor(codes);
  const char* from = row_address(t, row);
  const int64_t step = last_stride_bytes(t);
  with_fp8(t.dtype, [&]<class F>(F) {
    double by = 0;
    for (int64_t k = 0; k < row_length(t); ++k) {
      if (k % formats::kFp8Block == 0) by = scale(call, scales, row, k);
      values[k] = by * double{formats::f32_from_code<F>(load<uint8_t>(from + k * step))};
    }
  });
}

Status run_values(const Call& call) {
  const auto a = [&](int64_t m, double* values) { decode_row(call, kA, kScaleA, m, values); };
  const auto b = [&](int64_t n, double* values) { decode_row(call, kB, kScaleB, n, values); };
  return matmul_reference(call, call.tensor(kOut), row_length(call.tensor(kA)), kEpilogue, a, b);
}

Status run(const Call& call) { return reference_with_quantized_output(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::scaled_mm_fp8
