// qkv_project, reference: float64 sums of exact products.
#include <cmath>

#include "core/op.h"
#include "ops/gemm/epilogue/epilogue.h"
#include "ops/gemm/qkv_project/qkv_project_parts.h"

namespace pestle::ops::qkv_project {
namespace {

void fill(const Call& call, const Part& part) {
  const TensorView& x = call.tensor(kX);
  const TensorView& weight = call.tensor(part.weight);
  const TensorView& out = call.tensor(part.out);
  const auto element = [](const TensorView& t, int64_t row, int64_t column) {
    return load_f64(row_address(t, row) + column * last_stride_bytes(t), t.dtype);
  };
  for (int64_t m = 0; m < row_count(out); ++m)
    for (int64_t n = 0; n < row_length(out); ++n) {
      SumOfTerms sum;
      for (int64_t k = 0; k < row_length(x); ++k) sum.add(element(x, m, k) * element(weight, n, k));
      if (call.has(part.bias)) {
        const TensorView& bias = call.tensor(part.bias);
        sum.add(load_f64(at(bias, n), bias.dtype));
      }
      store_f64(row_address(out, m) + n * last_stride_bytes(out), out.dtype,
                call.sum_magnitudes ? sum.size : sum.value);
    }
}

Status run(const Call& call) {
  for (const Part& part : kParts) fill(call, part);
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::qkv_project
