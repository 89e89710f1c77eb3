// stochastic_round_fp8, reference.
#include "core/op.h"
#include "formats/stochastic.h"
#include "ops/quant/rowwise/stochastic_round_fp8/stochastic_round_fp8_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::stochastic_round_fp8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kRng = arg_index(spec, "rng");
constexpr int kQ = arg_index(spec, "q");

template <class F>
Status round(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& rng = call.tensor(kRng);
  const TensorView& q = call.tensor(kQ);
  for (int64_t i = 0; i < row_count(x); ++i) {
    const char* values = row_address(x, i);
    const char* bytes = row_address(rng, i);
    char* codes = row_address(q, i);
    for (int64_t j = 0; j < row_length(x); ++j) {
      const float value = load_f32(values + j * last_stride_bytes(x), x.dtype);
      const auto byte = load<uint8_t>(bytes + j * last_stride_bytes(rng));
      store(codes + j * last_stride_bytes(q), formats::code_stochastic_byte<F>(value, byte));
    }
  }
  return {};
}

Status run(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) { return round<F>(call); });
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::stochastic_round_fp8
