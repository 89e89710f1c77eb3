// copy_transpose, reference: element by element.
#include <cstring>

#include "core/op.h"
#include "ops/copy/copy_transpose/copy_transpose_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::copy_transpose {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& out = call.tensor(kOut);
  const int64_t m = x.shape[x.rank - 2], n = x.shape[x.rank - 1];
  const auto bytes = static_cast<size_t>(dtype_bytes(x.dtype));
  if (numel(x) == 0) return {};
  for (int64_t row = 0; row < row_count(x); ++row) {
    const char* from = row_address(x, row);
    const int64_t first = row / m * n;  // of the batch's rows of out
    for (int64_t j = 0; j < n; ++j) {
      char* to = row_address(out, first + j) + row % m * last_stride_bytes(out);
      std::memcpy(to, from + j * last_stride_bytes(x), bytes);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::copy_transpose
