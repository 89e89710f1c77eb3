// swizzle_scales on CUDA: ops/quant/block/swizzle.cuh.
// Measured 32768 x 16384 on an H200: 262 us, 4.10 TB/s, 104 % of the copy.
#include "ops/quant/block/swizzle.cuh"
#include "ops/quant/block/swizzle_scales/swizzle_scales_spec.h"

namespace pestle::ops::swizzle_scales {
namespace {

constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");

Status run(const Call& call) {
  return run_swizzle<true>(call, "swizzle_scales", call.tensor(kScale), call.tensor(kOut));
}
Status run_any(const Call& call) {
  return run_swizzle_any<true>(call, "swizzle_scales_any", call.tensor(kScale), call.tensor(kOut));
}
std::string refuses(const Call& call, const Machine&) {
  return refuse_swizzle("scale", call.tensor(kScale), "out", call.tensor(kOut));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/swizzle_scales",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/swizzle_scales_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::swizzle_scales
