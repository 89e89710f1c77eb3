// dequantize_fp8 on CUDA: ops/quant/rowwise/dequantize_rows.cuh with these codes and scales.
#include "ops/quant/rowwise/dequantize_fp8/dequantize_fp8_spec.h"
#include "ops/quant/rowwise/fp8_scale_grid.h"
#include "ops/quant/rowwise/quantize_units.cuh"
#include "ops/shared/element.h"

namespace pestle::ops::dequantize_fp8 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");

QuantizeRows rows_of(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const int64_t m = row_count(out);
  const int64_t k = row_length(out);
  const Fp8ScaleGrid grid(static_cast<Fp8Granularity>(call.integer(kGranularity)), m, k);
  return {out,
          call.tensor(kQ),
          call.tensor(kScale),
          false,
          m,
          k,
          {grid.rows, grid.columns, grid.grid_rows, grid.grid_columns},
          0,
          {},
          "out"};
}

Status run(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) {
    return run_dequantize_rows<Fp8Values<F>>(call, "dequantize_fp8", rows_of(call));
  });
}
Status run_any(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) {
    return dequantize_any_rows<Fp8Values<F>>(call, "dequantize_fp8_any", rows_of(call));
  });
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_quantize_rows(rows_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/dequantize_fp8",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/dequantize_fp8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::dequantize_fp8
