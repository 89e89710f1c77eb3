// dequantize_gguf, reference: block by block through formats/gguf.h.
#include "core/op.h"
#include "formats/gguf.h"
#include "ops/quant/block/dequantize_gguf/dequantize_gguf_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::dequantize_gguf {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kOut = arg_index(spec, "out");
constexpr int kType = arg_index(spec, "type");

struct Block {
  int64_t bytes;
  int64_t elements;
  void (*decode)(const uint8_t*, float*);
};
constexpr Block kBlocks[] = {
    {formats::kQ8_0Bytes, formats::kQ8_0Block, formats::q8_0_dequantize_block},
    {formats::kQ4_0Bytes, formats::kQ4_0Block, formats::q4_0_dequantize_block},
    {formats::kQ4_KBytes, formats::kQ4_KBlock, formats::q4_k_dequantize_block},
    {formats::kQ6_KBytes, formats::kQ6_KBlock, formats::q6_k_dequantize_block},
};

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const Block& block = kBlocks[call.integer(kType)];
  for (int64_t n = 0; n < q.shape[0]; ++n) {
    for (int64_t b = 0; b < q.shape[1] / block.bytes; ++b) {
      uint8_t bytes[formats::kQ6_KBytes];
      float values[formats::kQ6_KBlock];
      for (int64_t i = 0; i < block.bytes; ++i) {
        bytes[i] = load<uint8_t>(at(q, n, b * block.bytes + i));
      }
      block.decode(bytes, values);
      for (int64_t i = 0; i < block.elements; ++i) {
        store_f32(at(out, n, b * block.elements + i), out.dtype, values[i]);
      }
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::dequantize_gguf
