// quantize_nvfp4, reference: the rule of docs/formats/nvfp4.md as plain loops.
#include "core/op.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/block/quantize_nvfp4/quantize_nvfp4_block.h"
#include "ops/quant/block/quantize_nvfp4/quantize_nvfp4_spec.h"

namespace pestle::ops::quantize_nvfp4 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kGlobalScale = arg_index(spec, "global_scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kGlobalScaleOut = arg_index(spec, "global_scale_out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

float global_scale(const Call& call) {
  if (call.has(kGlobalScale)) return load<float>(call.tensor(kGlobalScale).data);
  const TensorView& x = call.tensor(kX);
  uint32_t amax = 0;
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    for (int64_t j = 0; j < x.shape[1]; ++j) {
      const uint32_t bits = formats::abs_bits(load_f32(at(x, i, j), x.dtype));
      amax = bits > amax ? bits : amax;
    }
  }
  const float g = formats::nvfp4_global_scale(amax);
  store(call.tensor(kGlobalScaleOut).data, g);
  return g;
}

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
  const float g = global_scale(call);
  const bool stochastic = call.integer(kRounding) == 1;
  const auto seed = static_cast<uint64_t>(call.integer(kSeed));
  float block[kBlock];
  uint8_t codes[kBlock];
  for (int64_t row = 0; row < q.shape[0]; ++row) {
    for (int64_t column = 0; column < columns; column += kBlock) {
      gather_padded(x, row, column, kBlock, block);
      const auto element = static_cast<uint64_t>(row * columns + column);
      scales.store_code(row, column / kBlock,
                        quantize_block(block, g, stochastic, seed, element, codes));
      store_codes(q, row, column, codes, call.integer(kNibbles) == 0);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::quantize_nvfp4
