// dequantize_fp8, reference.
#include "core/op.h"
#include "ops/quant/rowwise/dequantize_fp8/dequantize_fp8_spec.h"
#include "ops/quant/rowwise/fp8_scale_grid.h"
#include "ops/shared/element.h"

namespace pestle::ops::dequantize_fp8 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");

template <class F>
Status dequantize(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const TensorView& scale = call.tensor(kScale);
  const Fp8ScaleGrid grid(static_cast<Fp8Granularity>(call.integer(kGranularity)), row_count(q),
                          row_length(q));
  for (int64_t i = 0; i < row_count(q); ++i) {
    const char* codes = row_address(q, i);
    char* values = row_address(out, i);
    for (int64_t j = 0; j < row_length(q); ++j) {
      const auto code = load<uint8_t>(codes + j * last_stride_bytes(q));
      const auto s = load<float>(fp8_scale_at(scale, grid, grid.index(i, j)));
      store_f32(values + j * last_stride_bytes(out), out.dtype,
                formats::fp8_dequantize<F>(code, s));
    }
  }
  return {};
}

Status run(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) { return dequantize<F>(call); });
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::dequantize_fp8
