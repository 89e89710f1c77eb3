// linear_int8, reference: float64 sums over the dequantised weight, x rotated in f32.
#include <algorithm>
#include "core/op.h"
#include "formats/int8.h"
#include "ops/common/quant_rows.h"
#include "ops/linear_int8/linear_int8_spec.h"

namespace pestle::ops::linear_int8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kActivations = arg_index(spec, "activations");

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const int64_t granularity = call.integer(kGranularity);
  const int64_t group = granularity == 2 ? call.integer(kGroupSize) : row_length(x);
  const Int8Rows weight{call.tensor(kWeight), call.tensor(kScale), granularity == 0,
                        std::max<int64_t>(group, 1)};
  const LinearX floats{x, call.integer(kHadamard)};
  const TensorView& out = call.tensor(kOut);
  if (call.integer(kActivations) == 0)
    return matmul_reference(call, out, row_length(x), kEpilogue, floats, weight);
  const auto coded = [&](int64_t m, double* values) {
    floats(m, values);
    uint32_t amax = 0;
    for (int64_t k = 0; k < row_length(x); ++k)
      amax = std::max(amax, formats::abs_bits(static_cast<float>(values[k])));
    const float scale = formats::int8_scale(amax);
    for (int64_t k = 0; k < row_length(x); ++k)
      values[k] = double{scale} * formats::int8_quantize(static_cast<float>(values[k]), scale);
  };
  return matmul_reference(call, out, row_length(x), kEpilogue, coded, weight);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_int8
