// scaled_mm_mxfp8 on CUDA.
// Map      cuda/scaled_mm_mxfp8_decoded: from 512 rows of a and b on sm_90, both decoded by slabs
//          (ops/gemm/weight_only/slab_pair_launch.cuh). many_rows: codes of both sides go through shared memory
//          (ops/gemm/weight_only/many_rows.cuh); a stage of a is decoded there to bf16 once a CTA, b
//          in registers. late: unfused epilogue of pairs. _any: a thread a result
//          (ops/gemm/fallback/gemm_fallback_decoded.cuh).
// Traffic  codes and scales once from memory where 16 tiles along m fit the L2; out and residual once.
// Numerics code times scale has 4 bits and an exponent that bf16 has from 2^-124 (E4M3) or 2^-117
//          (E5M2) on: exact. Sums of 32 of k by the tensor cores, added in f32. Tiles with a smaller
//          scale over codes that are not 0, or with a NaN code, are made again from f32 values.
// Measured H100, 4608 x 12288 x 3072: 2,436 us.
#include "ops/gemm/scaled_mm_mxfp8/scaled_mm_mxfp8_spec.h"
#include "ops/gemm/weight_only/slab_pair_launch.cuh"

namespace pestle::ops::scaled_mm_mxfp8 {
namespace {

struct Op {
  static constexpr DecodedArgs kArgs{arg_index(spec, "a"),           arg_index(spec, "b"),
                                     arg_index(spec, "scale_a"),     arg_index(spec, "scale_b"),
                                     arg_index(spec, "out"),         arg_index(spec, "alpha"),
                                     arg_index(spec, "scale_layout")};
  static constexpr int kBits = 8;
  static constexpr bool kSlabFactors = false;

  static int64_t columns(const Call& call) { return call.tensor(kArgs.b).shape[1]; }
  static many_rows::Mx<kBits, false> format(const Call& call, int codes, int scale) {
    return mx_rows<kBits>(call.tensor(codes), call.tensor(scale), kArgs.swizzled(call));
  }
  static AnyMxfp8Rows fallback_rows(const Call& call, int codes, int scale) {
    return {any_blocks(call.tensor(codes), call.tensor(scale), columns(call) / formats::kMxBlock,
                       kArgs.swizzled(call))};
  }
  static Status run_decoded(const Call& call) {
    return start_decoded(call, "scaled_mm_mxfp8_many_rows", kArgs,
                         format(call, kArgs.a, kArgs.scale_a),
                         format(call, kArgs.b, kArgs.scale_b));
  }
  static Status run_slabs(const Call& call) {
    return start_slab_pairs(call, "scaled_mm_mxfp8_decoded", kArgs,
                            format(call, kArgs.a, kArgs.scale_a),
                            format(call, kArgs.b, kArgs.scale_b));
  }
  static Status run_fallback(const Call& call) {
    return run_fallback_decoded(call, "scaled_mm_mxfp8_any", kArgs.out, kArgs.alpha, columns(call),
                                fallback_rows(call, kArgs.a, kArgs.scale_a),
                                fallback_rows(call, kArgs.b, kArgs.scale_b));
  }
};

constexpr auto kImpls =
    slab_pair_impls<Op>("cuda/scaled_mm_mxfp8_decoded", "cuda/scaled_mm_mxfp8_many_rows",
                        "cuda/scaled_mm_mxfp8_late", "cuda/scaled_mm_mxfp8_any");

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_mxfp8
