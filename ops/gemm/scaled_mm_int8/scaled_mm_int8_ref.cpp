// scaled_mm_int8, reference: exact integer sums, then float64.
#include <vector>

#include "core/op.h"
#include "ops/gemm/reference/gemm_ref.h"
#include "ops/gemm/scaled_mm_int8/scaled_mm_int8_spec.h"

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

void read_row(const TensorView& t, int64_t row, int8_t* codes) {
  const char* from = row_address(t, row);
  const int64_t step = last_stride_bytes(t);
  for (int64_t k = 0; k < row_length(t); ++k) codes[k] = load<int8_t>(from + k * step);
}

// Exact, whatever K is.
int64_t sum_of_products(const int8_t* a, const int8_t* b, int64_t count) {
  int64_t sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += int64_t{a[k]} * b[k];
  return sum;
}

Status run_values(const Call& call) {
  const TensorView& a = call.tensor(kA);
  const TensorView& b = call.tensor(kB);
  const TensorView& out = call.tensor(kOut);
  const ReferenceEpilogue epilogue(call, kEpilogue, out);
  const int64_t length = row_length(a);
  std::vector<int8_t> a_row(static_cast<size_t>(length));
  std::vector<int8_t> b_rows(static_cast<size_t>(row_count(b) * length));
  for (int64_t n = 0; n < row_count(b); ++n) read_row(b, n, b_rows.data() + n * length);
  for (int64_t m = 0; m < row_count(out); ++m) {
    read_row(a, m, a_row.data());
    epilogue.store_row(out, m, [&](int64_t n) {
      const int64_t sum = sum_of_products(a_row.data(), b_rows.data() + n * length, length);
      SumOfTerms one;  // one term, since the integers are exact
      one.add(static_cast<double>(sum) * scale(call, kScaleA, m) * scale(call, kScaleB, n));
      return one;
    });
  }
  return {};
}

Status run(const Call& call) { return reference_with_quantized_output(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::scaled_mm_int8
