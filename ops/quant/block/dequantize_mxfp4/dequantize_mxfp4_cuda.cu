// dequantize_mxfp4 on CUDA: ops/quant/block/dequantize_blocks.cuh with this format.
#include "formats/mx.h"
#include "ops/quant/block/dequantize_blocks.cuh"
#include "ops/quant/block/dequantize_mxfp4/dequantize_mxfp4_spec.h"

namespace pestle::ops::dequantize_mxfp4 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

struct Mxfp4 {
  static constexpr int kBlock = formats::kMxBlock;
  static constexpr int kCodeBits = 4;
  static constexpr float kUnitScale = cuda::kE2m1Unit;

  __device__ void start() {}
  __device__ float factor(uint8_t code) const { return formats::f32_from_e8m0(code); }
  __device__ static void values(uint2 codes, float (&v)[cuda::kUnit]) {
    cuda::e2m1_values(codes.x, v);
  }
  __device__ static bool odd(uint2) { return false; }
  __device__ static float value(uint8_t code) { return formats::f32_from_e2m1(code); }
};

DequantizeBlocks blocks_of(const Call& call) {
  return {call.tensor(kQ), call.tensor(kScale), call.tensor(kOut), call.integer(kScaleLayout) == 0,
          call.integer(kNibbles) == 1};
}

Status run(const Call& call) {
  return run_dequantize_tiles(call, "dequantize_mxfp4", blocks_of(call), Mxfp4{});
}
Status run_any(const Call& call) {
  return run_dequantize_any(call, "dequantize_mxfp4_any", blocks_of(call), Mxfp4{});
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_dequantize_tiles<Mxfp4::kCodeBits>(blocks_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/dequantize_mxfp4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/dequantize_mxfp4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::dequantize_mxfp4
