// scaled_mm_nvfp4 on CUDA.
// Map      cuda/scaled_mm_nvfp4_decoded: from 512 rows of a and b on sm_90, both decoded by slabs
//          (ops/gemm/weight_only/slab_pair_launch.cuh). many_rows: codes of both sides go through shared memory
//          (ops/gemm/weight_only/many_rows.cuh); a stage of a is decoded there to bf16 once a CTA, b
//          in registers. late: unfused epilogue of pairs. _any: a thread a result
//          (ops/gemm/fallback/gemm_fallback_decoded.cuh).
// Traffic  codes and scales once from memory where 16 tiles along m fit the L2; out and residual once.
// Numerics code times scale has 6 bits: exact in bf16. Sums of 32 of k by the tensor cores, added in
//          f32; the global scales at the end, but for their powers of two. Tiles where that is not
//          the rule's value (global scales near the ends of f32) are made again from f32 values.
// Measured H100, 4608 x 12288 x 3072: 2,304 us.
#include "ops/gemm/scaled_mm_nvfp4/scaled_mm_nvfp4_spec.h"
#include "ops/gemm/weight_only/slab_pair_launch.cuh"

namespace pestle::ops::scaled_mm_nvfp4 {
namespace {

constexpr int kGlobalA = arg_index(spec, "global_scale_a");
constexpr int kGlobalB = arg_index(spec, "global_scale_b");
constexpr int kNibbles = arg_index(spec, "nibbles");

struct Op {
  static constexpr DecodedArgs kArgs{arg_index(spec, "a"),           arg_index(spec, "b"),
                                     arg_index(spec, "scale_a"),     arg_index(spec, "scale_b"),
                                     arg_index(spec, "out"),         arg_index(spec, "alpha"),
                                     arg_index(spec, "scale_layout")};
  static constexpr int kBits = 4;
  static constexpr bool kSlabFactors = true;

  static int64_t columns(const Call& call) { return call.tensor(kArgs.b).shape[1] * 2; }
  static many_rows::Nvfp4 format(const Call& call, int scale, int global_scale) {
    many_rows::Nvfp4 f;
    f.scale = many_rows::scale_bytes(call.tensor(scale), kArgs.swizzled(call),
                                     columns(call) / formats::kNvfp4Block, 4);
    f.high_first = call.integer(kNibbles) == 0;
    f.global_scale = call.tensor(global_scale).as<char>();
    return f;
  }
  static AnyNvfp4Rows fallback_rows(const Call& call, int codes, int scale, int global_scale) {
    return {any_blocks(call.tensor(codes), call.tensor(scale), columns(call) / formats::kNvfp4Block,
                       kArgs.swizzled(call)),
            call.integer(kNibbles) == 0, call.tensor(global_scale).as<char>()};
  }
  static Status run_decoded(const Call& call) {
    return start_decoded(call, "scaled_mm_nvfp4_many_rows", kArgs,
                         format(call, kArgs.scale_a, kGlobalA),
                         format(call, kArgs.scale_b, kGlobalB));
  }
  static Status run_slabs(const Call& call) {
    return start_slab_pairs(call, "scaled_mm_nvfp4_decoded", kArgs,
                            format(call, kArgs.scale_a, kGlobalA),
                            format(call, kArgs.scale_b, kGlobalB));
  }
  static Status run_fallback(const Call& call) {
    return run_fallback_decoded(call, "scaled_mm_nvfp4_any", kArgs.out, kArgs.alpha, columns(call),
                                fallback_rows(call, kArgs.a, kArgs.scale_a, kGlobalA),
                                fallback_rows(call, kArgs.b, kArgs.scale_b, kGlobalB));
  }
};

constexpr auto kImpls =
    slab_pair_impls<Op>("cuda/scaled_mm_nvfp4_decoded", "cuda/scaled_mm_nvfp4_many_rows",
                        "cuda/scaled_mm_nvfp4_late", "cuda/scaled_mm_nvfp4_any");

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_nvfp4
