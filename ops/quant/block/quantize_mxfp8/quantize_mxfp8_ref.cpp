// quantize_mxfp8, reference: the rule of docs/formats/mx.md as plain loops.
#include "core/op.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/block/quantize_mxfp8/quantize_mxfp8_block.h"
#include "ops/quant/block/quantize_mxfp8/quantize_mxfp8_spec.h"

namespace pestle::ops::quantize_mxfp8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

template <class F>
Status quantize(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  const int64_t columns = q.shape[1];
  const BlockScales scales{call.tensor(kScaleOut), columns / kBlock,
                           call.integer(kScaleLayout) == 0};
  scales.clear();
  const bool stochastic = call.integer(kRounding) == 1;
  const auto seed = static_cast<uint64_t>(call.integer(kSeed));
  float block[kBlock];
  uint8_t codes[kBlock];
  for (int64_t row = 0; row < q.shape[0]; ++row) {
    for (int64_t column = 0; column < columns; column += kBlock) {
      gather_padded(x, row, column, kBlock, block);
      const auto element = static_cast<uint64_t>(row * columns + column);
      scales.store_code(row, column / kBlock,
                        quantize_block<F>(block, stochastic, seed, element, codes));
      for (int64_t i = 0; i < kBlock; ++i) store(at(q, row, column + i), codes[i]);
    }
  }
  return {};
}

Status run(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) { return quantize<F>(call); });
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::quantize_mxfp8
