// scaled_mm_mxfp4 on CUDA.
// Map      cuda/scaled_mm_mxfp4_decoded: from 512 rows of a and b on sm_90, both decoded by slabs
//          (ops/gemm/weight_only/slab_pair_launch.cuh). many_rows: as scaled_mm_mxfp8's. late: unfused
//          epilogue of pairs. _any: a thread a result (ops/gemm/fallback/gemm_fallback_decoded.cuh).
// Traffic  as scaled_mm_mxfp8's; _any: codes once for each 16 columns or rows of out.
// Numerics as scaled_mm_mxfp8's: codes of 4 bits times any scale are exact in bf16. _any: values in
//          f32, f64 sums, the epilogue in f32, one rounding.
#include "ops/gemm/scaled_mm_mxfp4/scaled_mm_mxfp4_spec.h"

#include "ops/gemm/fallback/decoded_weights.cuh"
#include "ops/gemm/weight_only/slab_pair_launch.cuh"

namespace pestle::ops::scaled_mm_mxfp4 {
namespace {

AnyBlocks blocks(const Call& call, int codes, int scale) {
  const int64_t columns = call.tensor(kB).shape[1] * 2 / formats::kMxBlock;
  return any_blocks(call.tensor(codes), call.tensor(scale), columns,
                    call.integer(kScaleLayout) == 0);
}

struct Op {
  static constexpr DecodedArgs kArgs{kA, kB, kScaleA, kScaleB, kOut, kEpilogue, kScaleLayout};
  static constexpr int kBits = 4;  // of b
  static constexpr bool kSlabFactors = false;

  template <int kBitsOf>
  static many_rows::Mx<kBitsOf, false> format(const Call& call, int codes, int scale) {
    return mx_rows<kBitsOf>(call.tensor(codes), call.tensor(scale), kArgs.swizzled(call),
                            call.integer(kNibbles) != 0);
  }
  // start(a, b), of their formats.
  template <class Start>
  static Status with_formats(const Call& call, const Start& start) {
    const auto b = format<kBits>(call, kB, kScaleB);
    return call.integer(kAFormat) == 0 ? start(format<8>(call, kA, kScaleA), b)
                                       : start(format<4>(call, kA, kScaleA), b);
  }
  static Status run_slabs(const Call& call) {
    return with_formats(call, [&](const auto& a, const auto& b) {
      return start_slab_pairs(call, "scaled_mm_mxfp4_decoded", kArgs, a, b);
    });
  }
  static Status run_decoded(const Call& call) {
    return with_formats(call, [&](const auto& a, const auto& b) {
      return start_decoded(call, "scaled_mm_mxfp4_many_rows", kArgs, a, b);
    });
  }

  template <class A>
  static Status run_fallback_of(const Call& call, const A& a) {
    const AnyMxfp4Rows b{blocks(call, kB, kScaleB), call.integer(kNibbles) != 0};
    return run_fallback_decoded(call, "scaled_mm_mxfp4_any", kOut, kEpilogue,
                                call.tensor(kB).shape[1] * 2, a, b);
  }
  static Status run_fallback(const Call& call) {
    const AnyBlocks a = blocks(call, kA, kScaleA);
    if (call.integer(kAFormat) == 0) return run_fallback_of(call, AnyMxfp8Rows{a});
    return run_fallback_of(call, AnyMxfp4Rows{a, call.integer(kNibbles) != 0});
  }
};

constexpr auto kImpls =
    slab_pair_impls<Op>("cuda/scaled_mm_mxfp4_decoded", "cuda/scaled_mm_mxfp4_many_rows",
                        "cuda/scaled_mm_mxfp4_late", "cuda/scaled_mm_mxfp4_any");

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_mxfp4
