// prepare_weight, reference: code by code, by the table of places in formats/prepared.h.
#include "core/op.h"
#include "formats/prepared.h"
#include "ops/gemm/prepare_weight/prepare_weight_spec.h"

namespace pestle::ops::prepare_weight {
namespace {

// A tensor's bytes as its row-major order counts them.
uint8_t* byte_of(const TensorView& t, int64_t index) {
  return reinterpret_cast<uint8_t*>(at(t, index / t.shape[1], index % t.shape[1]));
}

Status run(const Call& call) {
  const TensorView &weight = call.tensor(kWeight), &out = call.tensor(kOut);
  const int bits = weight.dtype == DType::kU8 ? 4 : 8;
  const bool high_first = call.integer(kNibbles) != 0, restore = call.integer(kDirection) != 0;
  const formats::PreparedShape shape{weight.shape[0], weight.shape[1], bits};
  const int per_byte = 8 / bits, mask = bits == 4 ? 0xF : 0xFF;
  for (int64_t n = 0; n < shape.rows; ++n) {
    for (int64_t k = 0; k < shape.row_bytes * per_byte; ++k) {
      const formats::CodePlace prepared = formats::prepared_place(shape, n, k);
      const formats::CodePlace file{n * shape.row_bytes + k / per_byte,
                                    static_cast<int>(k % per_byte)};
      // Outside of bricks halves are the file's, so that its bytes stay what they are.
      const bool in_brick = n / formats::kBrickRows < shape.brick_rows() &&
                            k / per_byte / formats::kBrickRowBytes < shape.bricks_across();
      const auto shift = [&](const formats::CodePlace& place, bool turned) {
        return bits == 8 ? 0 : 4 * (turned ? 1 - place.half : place.half);
      };
      const int of_file = shift(file, high_first),
                of_prepared = shift(prepared, high_first && !in_brick);
      const formats::CodePlace &from = restore ? prepared : file, &to = restore ? file : prepared;
      const int from_shift = restore ? of_prepared : of_file;
      const int to_shift = restore ? of_file : of_prepared;
      const int code = *byte_of(weight, from.byte) >> from_shift & mask;
      uint8_t* byte = byte_of(out, to.byte);
      *byte = static_cast<uint8_t>((*byte & ~(mask << to_shift)) | code << to_shift);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::prepare_weight
