// matmul, reference: float64 sums of exact products.
#include <cmath>
#include <vector>

#include "core/op.h"
#include "ops/gemm/epilogue/epilogue.h"
#include "ops/gemm/matmul/matmul_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::matmul {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");

double element(const char* address, DType dtype) {
  if (dtype == DType::kE4M3 || dtype == DType::kE5M2) {
    return with_fp8(dtype,
                    [&]<class F>(F) { return formats::f32_from_code<F>(load<uint8_t>(address)); });
  }
  return load_f64(address, dtype);
}

// Batch `index` as rows x columns values, row-major; `index` counts in row-major order.
std::vector<double> matrix(const TensorView& t, int64_t index, bool transposed) {
  const int64_t rows = t.shape[t.rank - 2];
  const int64_t columns = t.shape[t.rank - 1];
  std::vector<double> values(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    const char* row = row_address(t, index * rows + r);
    for (int64_t c = 0; c < columns; ++c) {
      values[static_cast<size_t>(transposed ? c * rows + r : r * columns + c)] =
          element(row + c * last_stride_bytes(t), t.dtype);
    }
  }
  return values;
}

Status run_values(const Call& call) {
  const TensorView& a = call.tensor(kA);
  const TensorView& out = call.tensor(kOut);
  const ReferenceEpilogue epilogue(call, kEpilogue, out);
  const int64_t m = out.shape[out.rank - 2];
  const int64_t k = row_length(a);
  for (int64_t batch = 0; m > 0 && batch < row_count(out) / m; ++batch) {
    const std::vector<double> left = matrix(a, batch, false);
    const std::vector<double> right = matrix(call.tensor(kB), batch, true);
    for (int64_t i = 0; i < m; ++i) {
      epilogue.store_row(out, batch * m + i, [&](int64_t j) {
        SumOfTerms sum;
        for (int64_t l = 0; l < k; ++l)
          sum.add(left[static_cast<size_t>(i * k + l)] * right[static_cast<size_t>(j * k + l)]);
        return sum;
      });
    }
  }
  return {};
}

Status run(const Call& call) { return reference_with_quantized_output(call, run_values); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::matmul
