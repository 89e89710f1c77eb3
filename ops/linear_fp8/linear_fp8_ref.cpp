// linear_fp8, reference: float64 sums over the dequantised weight.
#include <algorithm>

#include "core/op.h"
#include "ops/common/quant_rows.h"
#include "ops/linear_fp8/linear_fp8_spec.h"

namespace pestle::ops::linear_fp8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kActivations = arg_index(spec, "activations");

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const Fp8Rows weight(call.tensor(kWeight), call.tensor(kScale),
                       static_cast<Fp8Granularity>(call.integer(kGranularity)));
  const LinearX floats{x, 0};
  const TensorView& out = call.tensor(kOut);
  if (call.integer(kActivations) == 0)
    return matmul_reference(call, out, row_length(x), kEpilogue, floats, weight);
  const auto coded = [&](int64_t m, double* values) {
    floats(m, values);
    uint32_t amax = 0;
    for (int64_t k = 0; k < row_length(x); ++k)
      amax = std::max(amax, formats::abs_bits(static_cast<float>(values[k])));
    with_fp8(call.tensor(kWeight).dtype, [&]<class F>(F) {
      const float scale = formats::fp8_scale<F>(amax);
      for (int64_t k = 0; k < row_length(x); ++k) {
        const uint8_t code = formats::fp8_quantize<F>(static_cast<float>(values[k]), scale);
        values[k] = double{formats::f32_from_code<F>(code)} * scale;
      }
    });
  };
  return matmul_reference(call, out, row_length(x), kEpilogue, coded, weight);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_fp8
