// scaled_mm_fp8, reference: float64 sums of exact products.
#include <cmath>
#include <vector>

#include "core/op.h"
#include "formats/fp8.h"
#include "ops/common/element.h"
#include "ops/common/epilogue.h"
#include "ops/scaled_mm_fp8/scaled_mm_fp8_spec.h"

namespace pestle::ops::scaled_mm_fp8 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kEpilogue = arg_index(spec, "alpha");

double decode(const TensorView& t, int64_t row, int64_t k) {
  const uint8_t code = load<uint8_t>(row_address(t, row) + k * last_stride_bytes(t));
  return with_fp8(t.dtype, [&]<class F>(F) { return formats::f32_from_code<F>(code); });
}

// Decode scale of element (row, k); block scales of b cover 128 rows.
double scale(const Call& call, int index, int64_t row, int64_t k) {
  const TensorView& t = call.tensor(index);
  const int64_t granularity = call.integer(kGranularity);
  const int64_t scale_row = granularity == 0                       ? 0
                            : granularity == 2 && index == kScaleB ? row / formats::kFp8Block
                                                                   : row;
  const int64_t column = granularity == 2 ? k / formats::kFp8Block : 0;
  return load<float>(row_address(t, scale_row) + column * last_stride_bytes(t));
}

Status run_values(const Call& call) {
  const TensorView& a = call.tensor(kA);
  const TensorView& b = call.tensor(kB);
  const TensorView& out = call.tensor(kOut);
  const ReferenceEpilogue epilogue(call, kEpilogue, out);
  std::vector<double> a_row(static_cast<size_t>(row_length(a)));
  for (int64_t m = 0; m < row_count(out); ++m) {
    for (int64_t k = 0; k < row_length(a); ++k) a_row[static_cast<size_t>(k)] = decode(a, m, k);
    epilogue.store_row(out, m, [&](int64_t n) {
      ProductSum sum;
      double scale_a = 0, scale_b = 0;
      for (int64_t k = 0; k < row_length(a); ++k) {
        if (k % formats::kFp8Block == 0) {
          scale_a = scale(call, kScaleA, m, k);
          scale_b = scale(call, kScaleB, n, k);
        }
        sum.add(a_row[static_cast<size_t>(k)] * decode(b, n, k) * scale_a * scale_b);
      }
      return sum;
    });
  }
  return {};
}

Status run(const Call& call) { return reference_with_codes(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::scaled_mm_fp8
