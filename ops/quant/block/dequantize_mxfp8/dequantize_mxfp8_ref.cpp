// dequantize_mxfp8, reference: the rule of docs/formats/mx.md as plain loops.
#include "core/op.h"
#include "formats/mx.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/block/dequantize_mxfp8/dequantize_mxfp8_spec.h"

namespace pestle::ops::dequantize_mxfp8 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int64_t kBlock = formats::kMxBlock;

template <class F>
Status dequantize(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const BlockScales scales{call.tensor(kScale), out.shape[1] / kBlock,
                           call.integer(kScaleLayout) == 0};
  for (int64_t i = 0; i < out.shape[0]; ++i) {
    for (int64_t j = 0; j < out.shape[1]; ++j) {
      const uint8_t e = scales.load_code(i, j / kBlock);
      const auto code = load<uint8_t>(at(q, i, j));
      store_f32(at(out, i, j), out.dtype, formats::mx_dequantize<F>(code, e));
    }
  }
  return {};
}

Status run(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) { return dequantize<F>(call); });
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::dequantize_mxfp8
