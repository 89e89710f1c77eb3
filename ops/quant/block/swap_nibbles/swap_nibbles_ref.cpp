// swap_nibbles, reference.
#include "core/op.h"
#include "formats/nvfp4.h"
#include "ops/quant/block/swap_nibbles/swap_nibbles_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::swap_nibbles {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kOut = arg_index(spec, "out");

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  for (int64_t i = 0; i < row_count(q); ++i) {
    const char* from = row_address(q, i);
    char* to = row_address(out, i);
    for (int64_t j = 0; j < row_length(q); ++j) {
      store(to + j * last_stride_bytes(out),
            formats::swap_nibbles(load<uint8_t>(from + j * last_stride_bytes(q))));
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::swap_nibbles
