// dequantize_mxfp4, reference: the rule of docs/formats/mx.md as plain loops.
#include "core/op.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/block/dequantize_mxfp4/dequantize_mxfp4_spec.h"

namespace pestle::ops::dequantize_mxfp4 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int64_t kBlock = formats::kMxBlock;

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const BlockScales scales{call.tensor(kScale), out.shape[1] / kBlock,
                           call.integer(kScaleLayout) == 0};
  const bool high_first = call.integer(kNibbles) == 1;
  for (int64_t i = 0; i < out.shape[0]; ++i) {
    for (int64_t j = 0; j < out.shape[1]; ++j) {
      const uint8_t e = scales.load_code(i, j / kBlock);
      const uint8_t code =
          formats::nibble_of(load<uint8_t>(at(q, i, j / 2)), j % 2 == 1, high_first);
      store_f32(at(out, i, j), out.dtype, formats::mx_dequantize<formats::E2m1>(code, e));
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::dequantize_mxfp4
