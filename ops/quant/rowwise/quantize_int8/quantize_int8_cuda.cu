// quantize_int8 on CUDA: ops/quant/rowwise/quantize_rows.cuh with these codes and scales; rotated
// first, ops/quant/hadamard/quantize_rotated.cuh; with the codes transposed,
// ops/quant/rowwise/quantize_transposed.cuh.
#include "ops/quant/hadamard/quantize_rotated.cuh"
#include "ops/quant/rowwise/int8_scale_grid.h"
#include "ops/quant/rowwise/overlapping_tiles.cuh"
#include "ops/quant/rowwise/quantize_int8/quantize_int8_spec.h"
#include "ops/quant/rowwise/quantize_rows.cuh"
#include "ops/quant/rowwise/quantize_transposed.cuh"
#include "ops/quant/rowwise/quantize_units.cuh"

namespace pestle::ops::quantize_int8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kQT = arg_index(spec, "q_t");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

QuantizeRows rows_of(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const int64_t m = row_count(x);
  const int64_t k = row_length(x);
  const Int8ScaleGrid grid(static_cast<Int8Granularity>(call.integer(kGranularity)), m, k,
                           call.integer(kGroupSize));
  const bool computes = !call.has(kScale);
  return {x,
          call.tensor(kQ),
          call.tensor(computes ? kScaleOut : kScale),
          computes,
          m,
          k,
          {grid.rows == 1 ? m : 1, grid.width, grid.rows, grid.columns},
          static_cast<int>(call.integer(kHadamard)),
          {call.integer(kRounding) == 1, static_cast<uint64_t>(call.integer(kSeed))},
          "x",
          call.has(kQT) ? &call.tensor(kQT) : nullptr};
}

Status run(const Call& call) {
  return run_quantize_rows<Int8Code>(call, "quantize_int8", rows_of(call));
}
Status run_rotated(const Call& call) {
  return run_quantize_rotated(call, "quantize_int8_rotated", rows_of(call));
}
std::string refuses_rotated(const Call& call, const Machine&) {
  return refuse_quantize_rotated(rows_of(call));
}
Status run_overlapping(const Call& call) {
  return run_quantize_overlapping<Int8Code>(call, "quantize_int8_joined", rows_of(call));
}
std::string refuses_overlapping(const Call& call, const Machine&) {
  return refuse_quantize_overlapping(rows_of(call));
}
Status run_tiles(const Call& call) {
  return run_quantize_tiles<Int8Code, false>(call, "quantize_int8_tiles", rows_of(call));
}
std::string refuses_tiles(const Call& call, const Machine&) {
  return refuse_quantize_tiles(rows_of(call));
}
Status run_any(const Call& call) {
  return quantize_any_transposed<Int8Code>(call, "quantize_int8_any", rows_of(call));
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_quantize_rows(rows_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/quantize_int8",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run,
     .workspace = "if(has(scale) || numel(scale_out) > 1, 0, 4096)"},
    {.id = "cuda/quantize_int8_rotated",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_rotated,
     .run = run_rotated,
     .workspace = "if(has(scale) || numel(scale_out) > 1, 0, 4)"},
    {.id = "cuda/quantize_int8_joined",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_overlapping,
     .run = run_overlapping},
    {.id = "cuda/quantize_int8_tiles",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_tiles,
     .run = run_tiles,
     .workspace = "if(has(scale), 0, 4)"},
    {.id = "cuda/quantize_int8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "if(has(scale), 0, 4*numel(scale_out))"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::quantize_int8
