// swizzle_scales, reference: the map of docs/formats/swizzle.md, byte by byte.
#include "core/op.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/block/swizzle_scales/swizzle_scales_spec.h"

namespace pestle::ops::swizzle_scales {
namespace {

constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");

Status run(const Call& call) {
  const TensorView& scale = call.tensor(kScale);
  const TensorView& out = call.tensor(kOut);
  const BlockScales swizzled{out, scale.shape[1], true};
  swizzled.clear();
  for (int64_t i = 0; i < scale.shape[0]; ++i) {
    for (int64_t j = 0; j < scale.shape[1]; ++j) {
      swizzled.store_code(i, j, load<uint8_t>(at(scale, i, j)));
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::swizzle_scales
