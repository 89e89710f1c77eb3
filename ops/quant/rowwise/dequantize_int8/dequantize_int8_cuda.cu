// dequantize_int8 on CUDA: ops/quant/rowwise/dequantize_rows.cuh with these codes and scales;
// rotated back, ops/quant/hadamard/dequantize_rotated.cuh.
#include "ops/quant/hadamard/dequantize_rotated.cuh"
#include "ops/quant/rowwise/dequantize_int8/dequantize_int8_spec.h"
#include "ops/quant/rowwise/int8_scale_grid.h"
#include "ops/quant/rowwise/quantize_units.cuh"

namespace pestle::ops::dequantize_int8 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

QuantizeRows rows_of(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const int64_t m = row_count(out);
  const int64_t k = row_length(out);
  const Int8ScaleGrid grid(static_cast<Int8Granularity>(call.integer(kGranularity)), m, k,
                           call.integer(kGroupSize));
  return {out,
          call.tensor(kQ),
          call.tensor(kScale),
          false,
          m,
          k,
          {grid.rows == 1 ? m : 1, grid.width, grid.rows, grid.columns},
          static_cast<int>(call.integer(kHadamard)),
          {},
          "out"};
}

Status run(const Call& call) {
  return run_dequantize_rows<Int8Values>(call, "dequantize_int8", rows_of(call));
}
Status run_any(const Call& call) {
  return dequantize_any_rows<Int8Values>(call, "dequantize_int8_any", rows_of(call));
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_quantize_rows(rows_of(call));
}

Status run_rotated(const Call& call) {
  return run_dequantize_rotated<Int8Values>(call, "dequantize_int8_rotated", rows_of(call));
}
std::string refuses_rotated(const Call& call, const Machine&) {
  return refuse_dequantize_rotated(rows_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/dequantize_int8",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/dequantize_int8_rotated",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_rotated,
     .run = run_rotated},
    {.id = "cuda/dequantize_int8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::dequantize_int8
