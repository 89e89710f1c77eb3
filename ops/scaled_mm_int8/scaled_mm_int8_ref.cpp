// scaled_mm_int8, reference: exact integer sums, then float64.
#include <cmath>

#include "core/op.h"
#include "ops/common/matmul_ref.h"
#include "ops/scaled_mm_int8/scaled_mm_int8_spec.h"

namespace pestle::ops::scaled_mm_int8 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kEpilogue = arg_index(spec, "alpha");

double scale(const Call& call, int index, int64_t row) {
  if (!call.has(index))
    return index == kScaleA ? double{call.number(arg_index(spec, "host_scale"))} : 1;
  return float_at(call.tensor(index), call.integer(kGranularity) == 0 ? 0 : row, 0);
}

Status run_values(const Call& call) {
  const TensorView& a = call.tensor(kA);
  const TensorView& b = call.tensor(kB);
  const TensorView& out = call.tensor(kOut);
  const ReferenceEpilogue epilogue(call, kEpilogue, out);
  for (int64_t m = 0; m < row_count(out); ++m) {
    epilogue.store_row(out, m, [&](int64_t n) {
      int64_t sum = 0;
      for (int64_t k = 0; k < row_length(a); ++k) {
        sum += int64_t{static_cast<int8_t>(byte_at(a, m, k))} *
               int64_t{static_cast<int8_t>(byte_at(b, n, k))};
      }
      // The integers are exact: one term, whatever K is.
      ProductSum one;
      one.add(static_cast<double>(sum) * scale(call, kScaleA, m) * scale(call, kScaleB, n));
      return one;
    });
  }
  return {};
}

Status run(const Call& call) { return reference_with_codes(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::scaled_mm_int8
