// linear_w4a8, reference: float64 sums over the dequantised weight, x rotated in f32.
#include "core/op.h"
#include "formats/w4a8.h"
#include "ops/gemm/linear_w4a8/linear_w4a8_spec.h"
#include "ops/gemm/reference/quant_rows.h"

namespace pestle::ops::linear_w4a8 {
namespace {

constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kHadamard = arg_index(spec, "hadamard");

Status run(const Call& call) {
  const int64_t columns = input_columns(call);
  const TensorView& codes = call.tensor(kWeight);
  float levels[formats::kW4a8Levels];
  formats::w4a8_default_codebook(levels);
  for (int i = 0; call.has(kCodebook) && i < formats::kW4a8Levels; ++i) {
    levels[i] = load<float>(at(call.tensor(kCodebook), i));
  }
  const formats::W4a8Table table = formats::w4a8_table(levels);
  const auto weight = [&](int64_t row, double* values) {
    const float channel = load<float>(at(call.tensor(kScaleChannel), row));
    for (int64_t k = 0; k < columns; ++k) {
      values[k] = formats::w4a8_dequantize(
          formats::nibble_of(byte_at(codes, row, k / 2), k % 2 == 1, false), table,
          byte_at(call.tensor(kScaleRel), row, k / formats::kW4a8Group), channel);
    }
  };
  return matmul_reference(
      call, call.tensor(kOut), columns, kEpilogue,
      ReferenceInput(call, call.integer(kHadamard), DType::kNone, static_cast<double>(columns)),
      weight);
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::linear_w4a8
