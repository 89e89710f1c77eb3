// qkv_project_backward, reference: float64 sums, weights of codes as the dequantising op gives them
// in the dtype of their d.
#include <cmath>
#include <vector>

#include "core/op.h"
#include "formats/hadamard.h"
#include "ops/gemm/epilogue/epilogue.h"
#include "ops/gemm/qkv_project_backward/qkv_project_backward_parts.h"

namespace pestle::ops::qkv_project_backward {
namespace {

constexpr int kHadamard = arg_index(spec, "hadamard");

double element(const TensorView& t, int64_t row, int64_t column) {
  return load_f64(row_address(t, row) + column * last_stride_bytes(t), t.dtype);
}
void put(const Call& call, const TensorView& t, int64_t row, int64_t column,
         const SumOfTerms& sum) {
  store_f64(row_address(t, row) + column * last_stride_bytes(t), t.dtype,
            call.sum_magnitudes ? sum.size : sum.value);
}

double rounded(double value, DType dtype) {
  double memory = 0;  // wide enough for every dtype
  store_f32(&memory, dtype, static_cast<float>(value));
  return load_f32(&memory, dtype);
}

// Row n of a product's weight as it multiplies its d.
void read_row(const Call& call, const Part& part, int64_t n, std::vector<double>& values) {
  read_qkv_row(call, part.weight, n, values.data());
  if (qkv_format(call) == QkvFormat::kFloat) return;
  if (const int64_t group = call.integer(kHadamard); group > 0) {
    std::vector<float> row(values.begin(), values.end());
    for (size_t i = 0; i < row.size(); i += static_cast<size_t>(group))
      formats::hadamard_rotate(row.data() + i, group);
    values.assign(row.begin(), row.end());
  }
  for (double& v : values) v = rounded(v, call.tensor(part.weight.out).dtype);
}

void gradient_of_x(const Call& call) {
  const TensorView& d_x = call.tensor(kDX);
  const int64_t rows = row_count(d_x), columns = row_length(d_x);
  std::vector<SumOfTerms> sums(static_cast<size_t>(rows * columns));
  std::vector<double> weight(static_cast<size_t>(columns));
  for (const Part& part : kParts) {
    const TensorView& d = call.tensor(part.weight.out);
    for (int64_t n = 0; n < row_length(d); ++n) {
      read_row(call, part, n, weight);
      for (int64_t m = 0; m < rows; ++m)
        for (int64_t k = 0; k < columns; ++k)
          sums[static_cast<size_t>(m * columns + k)].add(element(d, m, n) *
                                                         weight[static_cast<size_t>(k)]);
    }
  }
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t k = 0; k < columns; ++k)
      put(call, d_x, m, k, sums[static_cast<size_t>(m * columns + k)]);
}

void gradient_of_weight(const Call& call, const TensorView& d, const TensorView& out) {
  const TensorView& x = call.tensor(kX);
  for (int64_t n = 0; n < row_count(out); ++n)
    for (int64_t k = 0; k < row_length(out); ++k) {
      SumOfTerms sum;
      for (int64_t m = 0; m < row_count(x); ++m) sum.add(element(d, m, n) * element(x, m, k));
      put(call, out, n, k, sum);
    }
}

void gradient_of_bias(const Call& call, const TensorView& d, const TensorView& out) {
  for (int64_t n = 0; n < row_length(d); ++n) {
    SumOfTerms sum;
    for (int64_t m = 0; m < row_count(d); ++m) sum.add(element(d, m, n));
    store_f64(at(out, n), out.dtype, call.sum_magnitudes ? sum.size : sum.value);
  }
}

Status run_reference(const Call& call) {
  gradient_of_x(call);
  for (const Part& part : kParts) {
    const TensorView& d = call.tensor(part.weight.out);
    if (call.has(part.d_weight)) gradient_of_weight(call, d, call.tensor(part.d_weight));
    if (call.has(part.d_bias)) gradient_of_bias(call, d, call.tensor(part.d_bias));
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run_reference}}; }

}  // namespace pestle::ops::qkv_project_backward
