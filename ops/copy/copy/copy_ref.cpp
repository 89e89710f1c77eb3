// copy, reference: element by element.
#include <cstring>

#include "core/op.h"
#include "ops/copy/copy/copy_spec.h"
#include "ops/shared/cast.h"
#include "ops/shared/element.h"

namespace pestle::ops::copy {
namespace {

Status run(const Call& call) {
  const TensorView& x = call.tensor(arg_index(spec, "x"));
  const TensorView& out = call.tensor(arg_index(spec, "out"));
  const auto x_bytes = static_cast<size_t>(dtype_bytes(x.dtype));
  const auto out_bytes = static_cast<size_t>(dtype_bytes(out.dtype));
  if (numel(x) == 0) return {};
  for (int64_t row = 0; row < row_count(x); ++row) {
    for (int64_t j = 0; j < row_length(x); ++j) {
      uint64_t bits = 0;
      std::memcpy(&bits, row_address(x, row) + j * last_stride_bytes(x), x_bytes);
      if (x.dtype != out.dtype) bits = cast_bits(out.dtype, cast_value(x.dtype, bits));
      std::memcpy(row_address(out, row) + j * last_stride_bytes(out), &bits, out_bytes);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::copy
