// stochastic_cast, reference.
#include "core/op.h"
#include "ops/copy/stochastic_cast/stochastic_cast_rule.h"
#include "ops/copy/stochastic_cast/stochastic_cast_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::stochastic_cast {
namespace {

Status run(const Call& call) {
  const TensorView& x = call.tensor(arg_index(spec, "x"));
  const TensorView& out = call.tensor(arg_index(spec, "out"));
  const auto seed = static_cast<uint64_t>(call.integer(arg_index(spec, "seed")));
  if (numel(x) == 0) return {};
  for (int64_t row = 0; row < row_count(x); ++row) {
    for (int64_t j = 0; j < row_length(x); ++j) {
      const auto element = static_cast<uint64_t>(row * row_length(x) + j);
      const auto v = load<float>(row_address(x, row) + j * last_stride_bytes(x));
      store(row_address(out, row) + j * last_stride_bytes(out),
            bf16_stochastic(v, formats::philox_u16(seed, element)));
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::stochastic_cast
