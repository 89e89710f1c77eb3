// qkv_project, reference: float64 sums of exact products, x rotated in f32 where the weights are.
#include <vector>

#include "core/op.h"
#include "ops/gemm/epilogue/epilogue.h"
#include "ops/gemm/qkv_project/qkv_project_parts.h"
#include "ops/gemm/reference/gemm_ref.h"

namespace pestle::ops::qkv_project {
namespace {

constexpr int kHadamard = arg_index(spec, "hadamard");

void fill(const Call& call, const QkvPart& part) {
  const LinearX left{call.tensor(kX), call.integer(kHadamard)};
  const TensorView& out = call.tensor(part.out);
  const auto length = static_cast<size_t>(row_length(call.tensor(kX)));
  std::vector<double> x(length), weight(length);
  for (int64_t n = 0; n < row_length(out); ++n) {
    read_qkv_row(call, part, n, weight.data());
    for (int64_t m = 0; m < row_count(out); ++m) {
      left(m, x.data());
      SumOfTerms sum;
      for (size_t k = 0; k < length; ++k) sum.add(x[k] * weight[k]);
      if (call.has(part.bias)) {
        const TensorView& bias = call.tensor(part.bias);
        sum.add(load_f64(at(bias, n), bias.dtype));
      }
      store_f64(row_address(out, m) + n * last_stride_bytes(out), out.dtype,
                call.sum_magnitudes ? sum.size : sum.value);
    }
  }
}

Status run(const Call& call) {
  for (const QkvPart& part : kParts) fill(call, part);
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::qkv_project
