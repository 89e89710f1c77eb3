// dequantize_mxfp8 on CUDA: ops/quant/block/dequantize_blocks.cuh with this format.
#include "formats/mx.h"
#include "ops/quant/block/dequantize_blocks.cuh"
#include "ops/quant/block/dequantize_mxfp8/dequantize_mxfp8_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::dequantize_mxfp8 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

template <class F>
struct Mxfp8 {
  static constexpr int kBlock = formats::kMxBlock;
  static constexpr int kCodeBits = 8;
  static constexpr float kUnitScale = cuda::kFp8Unit<F>;

  __device__ void start() {}
  __device__ float factor(uint8_t code) const { return formats::f32_from_e8m0(code); }
  __device__ static void values(uint2 codes, float (&v)[cuda::kUnit]) {
    cuda::fp8_values<F>(codes, v);
  }
  __device__ static bool odd(uint2 codes) { return F::kMan == 3 && cuda::has_e4m3_nan(codes); }
  __device__ static float value(uint8_t code) { return formats::f32_from_code<F>(code); }
};

DequantizeBlocks blocks_of(const Call& call) {
  return {call.tensor(kQ), call.tensor(kScale), call.tensor(kOut), call.integer(kScaleLayout) == 0,
          false};
}

Status run(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) {
    return run_dequantize_tiles(call, "dequantize_mxfp8", blocks_of(call), Mxfp8<F>{});
  });
}
Status run_any(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) {
    return run_dequantize_any(call, "dequantize_mxfp8_any", blocks_of(call), Mxfp8<F>{});
  });
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_dequantize_tiles<8>(blocks_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/dequantize_mxfp8",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/dequantize_mxfp8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::dequantize_mxfp8
