// dequantize_nvfp4 on CUDA: ops/quant/block/dequantize_blocks.cuh with this format.
#include "formats/nvfp4.h"
#include "ops/quant/block/dequantize_blocks.cuh"
#include "ops/quant/block/dequantize_nvfp4/dequantize_nvfp4_spec.h"

namespace pestle::ops::dequantize_nvfp4 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kGlobalScale = arg_index(spec, "global_scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

struct Nvfp4 {
  static constexpr int kBlock = formats::kNvfp4Block;
  static constexpr int kCodeBits = 4;
  static constexpr float kUnitScale = cuda::kE2m1Unit;
  const char* global_scale;  // of any alignment
  float g;                   // its value

  __device__ void start() { g = __uint_as_float(cuda::AnyTensor::bits(global_scale, 4)); }
  __device__ float factor(uint8_t code) const { return cuda::e4m3_value(code) * g; }
  __device__ static void values(uint2 codes, float (&v)[cuda::kUnit]) {
    cuda::e2m1_values(codes.x, v);
  }
  __device__ static bool odd(uint2) { return false; }
  __device__ static float value(uint8_t code) { return formats::f32_from_e2m1(code); }
};

DequantizeBlocks blocks_of(const Call& call) {
  return {call.tensor(kQ), call.tensor(kScale), call.tensor(kOut), call.integer(kScaleLayout) == 0,
          call.integer(kNibbles) == 0};
}
Nvfp4 format_of(const Call& call) { return {call.tensor(kGlobalScale).as<char>(), 0}; }

Status run(const Call& call) {
  return run_dequantize_tiles(call, "dequantize_nvfp4", blocks_of(call), format_of(call));
}
Status run_any(const Call& call) {
  return run_dequantize_any(call, "dequantize_nvfp4_any", blocks_of(call), format_of(call));
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_dequantize_tiles<Nvfp4::kCodeBits>(blocks_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/dequantize_nvfp4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/dequantize_nvfp4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::dequantize_nvfp4
