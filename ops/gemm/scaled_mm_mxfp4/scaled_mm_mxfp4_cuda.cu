// scaled_mm_mxfp4 on CUDA.
// Map      _any: a thread a result (ops/gemm/fallback/gemm_fallback_decoded.cuh). late: unfused
//          epilogue of pairs.
// Traffic  codes once for each 16 columns or rows of out.
// Numerics values in f32, f64 sums, the epilogue in f32, one rounding.
#include "ops/gemm/scaled_mm_mxfp4/scaled_mm_mxfp4_spec.h"

#include "ops/gemm/fallback/decoded_weights.cuh"
#include "ops/gemm/weight_only/decoded_launch.cuh"

namespace pestle::ops::scaled_mm_mxfp4 {
namespace {

AnyBlocks blocks(const Call& call, int codes, int scale) {
  const int64_t columns = call.tensor(kB).shape[1] * 2 / formats::kMxBlock;
  return any_blocks(call.tensor(codes), call.tensor(scale), columns,
                    call.integer(kScaleLayout) == 0);
}

template <class A>
Status run_fallback_of(const Call& call, const A& a) {
  const AnyMxfp4Rows b{blocks(call, kB, kScaleB), call.integer(kNibbles) != 0};
  return run_fallback_decoded(call, "scaled_mm_mxfp4_any", kOut, kEpilogue,
                              call.tensor(kB).shape[1] * 2, a, b);
}

Status run_fallback(const Call& call) {
  const AnyBlocks a = blocks(call, kA, kScaleA);
  if (call.integer(kAFormat) == 0) return run_fallback_of(call, AnyMxfp8Rows{a});
  return run_fallback_of(call, AnyMxfp4Rows{a, call.integer(kNibbles) != 0});
}

constexpr Impl kImpls[] = {
    {.id = "cuda/scaled_mm_mxfp4_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_without_extended,
     .run = run_unfused_on_cuda,
     .workspace = PESTLE_UNFUSED_BYTES},
    {.id = "cuda/scaled_mm_mxfp4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_decoded_fallback,
     .run = run_fallback},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_mxfp4
