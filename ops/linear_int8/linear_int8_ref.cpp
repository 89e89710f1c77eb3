// linear_int8, reference: float64 sums over the dequantised weight, x rotated in f32.
#include <algorithm>
#include "core/op.h"
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

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const int64_t granularity = call.integer(kGranularity);
  const int64_t group = granularity == 2 ? call.integer(kGroupSize) : row_length(x);
  const Int8Rows weight{call.tensor(kWeight), call.tensor(kScale), granularity == 0,
                        std::max<int64_t>(group, 1)};
  return matmul_reference(call, call.tensor(kOut), row_length(x), kEpilogue,
                          LinearX{x, call.integer(kHadamard)}, weight);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_int8
