// quantize_mxfp8 on CUDA: ops/quant/block/quantize_mx.cuh with this format.
#include "ops/quant/block/quantize_mx.cuh"
#include "ops/quant/block/quantize_mxfp8/quantize_mxfp8_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::quantize_mxfp8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

QuantizeMx blocks_of(const Call& call) {
  return {call.tensor(kX),
          call.tensor(kQ),
          call.tensor(kScaleOut),
          call.integer(kScaleLayout) == 0,
          {false, call.integer(kRounding) == 1, static_cast<uint64_t>(call.integer(kSeed))}};
}

Status run(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) {
    return run_quantize_mx_tiles<F>(call, "quantize_mxfp8", blocks_of(call));
  });
}
Status run_any(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) {
    return run_quantize_mx_any<F>(call, "quantize_mxfp8_any", blocks_of(call));
  });
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_quantize_mx_tiles(blocks_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/quantize_mxfp8",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/quantize_mxfp8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::quantize_mxfp8
