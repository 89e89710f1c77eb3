// dequantize_w4a8, reference: the rule of docs/formats/w4a8.md as plain loops, rotated back in f64.
#include <vector>

#include "core/op.h"
#include "formats/packing.h"
#include "ops/quant/hadamard/rotated_ref.h"
#include "ops/quant/int4/dequantize_w4a8/dequantize_w4a8_spec.h"
#include "ops/quant/int4/w4a8_codebook.h"
#include "ops/shared/element.h"

namespace pestle::ops::dequantize_w4a8 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kOut = arg_index(spec, "out");
constexpr int kHadamard = arg_index(spec, "hadamard");

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const int64_t columns = out.shape[1];
  const int64_t hadamard = call.integer(kHadamard);
  float levels[formats::kW4a8Levels];
  load_codebook(call, kCodebook, levels);
  const formats::W4a8Table table = formats::w4a8_table(levels);
  std::vector<double> row(static_cast<size_t>(columns));
  for (int64_t n = 0; n < out.shape[0]; ++n) {
    const float channel = load<float>(at(call.tensor(kScaleChannel), n));
    for (int64_t k = 0; k < columns; ++k) {
      const auto* byte = reinterpret_cast<const uint8_t*>(at(q, n, k / 2));
      const auto scale_rel = load<uint8_t>(at(call.tensor(kScaleRel), n, k / formats::kW4a8Group));
      row[k] =
          formats::w4a8_dequantize(formats::load_nibble(byte, k % 2), table, scale_rel, channel);
    }
    rotate_reference(row.data(), columns, hadamard, call.sum_magnitudes);
    for (int64_t k = 0; k < columns; ++k) store_f64(at(out, n, k), out.dtype, row[k]);
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::dequantize_w4a8
