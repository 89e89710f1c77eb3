// quantize_mxfp4, reference: the rule of docs/formats/mx.md as plain loops.
#include "core/op.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/block/quantize_mxfp4/quantize_mxfp4_block.h"
#include "ops/quant/block/quantize_mxfp4/quantize_mxfp4_spec.h"

namespace pestle::ops::quantize_mxfp4 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

void store_codes(const TensorView& q, int64_t row, int64_t column, const uint8_t* codes,
                 bool high_first) {
  for (int64_t i = 0; i < kBlock; i += 2) {
    store(at(q, row, (column + i) / 2), formats::pack_nibbles(codes[i], codes[i + 1], high_first));
  }
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  const int64_t columns = q.shape[1] * 2;
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
                        quantize_block(block, stochastic, seed, element, codes));
      store_codes(q, row, column, codes, call.integer(kNibbles) == 1);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::quantize_mxfp4
