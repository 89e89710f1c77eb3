// unswizzle_scales, reference: the map of docs/formats/swizzle.md, byte by byte.
#include "core/op.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/block/unswizzle_scales/unswizzle_scales_spec.h"

namespace pestle::ops::unswizzle_scales {
namespace {

constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");

Status run(const Call& call) {
  const TensorView& scale = call.tensor(kScale);
  const TensorView& out = call.tensor(kOut);
  const BlockScales swizzled{scale, out.shape[1], true};
  for (int64_t i = 0; i < out.shape[0]; ++i) {
    for (int64_t j = 0; j < out.shape[1]; ++j) {
      store(at(out, i, j), swizzled.load_code(i, j));
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::unswizzle_scales
