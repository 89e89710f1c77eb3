// quantize_w4a8, reference: the rule of docs/formats/w4a8.md row by row.
#include <vector>

#include "core/op.h"
#include "formats/hadamard.h"
#include "formats/packing.h"
#include "ops/quant/int4/quantize_w4a8/quantize_w4a8_spec.h"
#include "ops/quant/int4/w4a8_codebook.h"
#include "ops/shared/element.h"

namespace pestle::ops::quantize_w4a8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kHadamard = arg_index(spec, "hadamard");

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  float levels[formats::kW4a8Levels];
  load_codebook(call, kCodebook, levels);
  PESTLE_TRY(check_ascending(call, levels));
  const formats::W4a8Table table = formats::w4a8_table(levels);
  const int64_t columns = x.shape[1];
  const int64_t hadamard = call.integer(kHadamard);
  std::vector<float> row(static_cast<size_t>(columns));
  std::vector<uint8_t> codes(static_cast<size_t>(columns));
  std::vector<uint8_t> scale_rel(static_cast<size_t>(columns / formats::kW4a8Group));
  std::vector<float> fitted(scale_rel.size());
  for (int64_t n = 0; n < x.shape[0]; ++n) {
    for (int64_t k = 0; k < columns; ++k) row[k] = load_f32(at(x, n, k), x.dtype);
    for (int64_t k = 0; hadamard != 0 && k < columns; k += hadamard) {
      formats::hadamard_rotate(&row[k], hadamard);
    }
    const float channel = formats::w4a8_quantize_row(row.data(), columns, table, codes.data(),
                                                     scale_rel.data(), fitted.data());
    store(at(call.tensor(kScaleChannel), n), channel);
    for (int64_t g = 0; g < columns / formats::kW4a8Group; ++g) {
      store(at(call.tensor(kScaleRel), n, g), scale_rel[g]);
    }
    for (int64_t k = 0; k < columns; ++k) {
      auto* byte = reinterpret_cast<uint8_t*>(at(call.tensor(kQ), n, k / 2));
      formats::store_nibble(byte, k % 2, codes[k]);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::quantize_w4a8
