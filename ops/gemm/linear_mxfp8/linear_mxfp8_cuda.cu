// linear_mxfp8 on CUDA: GEMV (up to 16 rows of bf16 x) by ops/gemm/gemv/gemv_weight_mma.cuh, else
// few_rows.cuh, many_rows_hopper.cuh or many_rows.cuh of ops/gemm/weight_only, very many rows of bf16 x by
// slab_launch.cuh.
#include "ops/gemm/linear_mxfp8/linear_mxfp8_spec.h"
#include "ops/gemm/weight_only/few_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_launch.cuh"

namespace pestle::ops::linear_mxfp8 {
namespace {

constexpr int kScale = arg_index(spec, "scale");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

bool is_swizzled(const Call& call) { return call.integer(kScaleLayout) == 0; }

struct Op {
  static constexpr WeightOnlyArgs kArgs{arg_index(spec, "x"), arg_index(spec, "weight"),
                                        arg_index(spec, "out"), arg_index(spec, "alpha")};
  static constexpr int kBits = 8;
  static constexpr WeightOnlyWorkspace kWorkspace = kPlainX;
  static constexpr bool kSlabFactors = false;
  static constexpr int64_t kRowsForSlabs = 1024;
  static constexpr const char* kFallback = "linear_mxfp8_any";

  static std::string refuse_call(const Call&) { return ""; }
  static std::string refuse_many(const Call& call) {
    return cuda::refuse_scale_strides("scale", call.tensor(kScale), is_swizzled(call));
  }
  static std::string refuse_gemv(const Call& call) {
    // F16 does not hold products with scales.
    if (call.tensor(kArgs.x).dtype != DType::kBF16) return "x: is for bf16";
    return refuse_many(call);
  }
  static int mma_scale_row(const Call& call) {
    return gemv::GemvMxfp8{}.row_bytes(call.tensor(kArgs.weight).shape[1]);
  }
  static many_rows::MxWeight weight_of(const Call& call) {
    const TensorView& codes = call.tensor(kArgs.weight);
    many_rows::MxWeight weight;
    weight.scale = many_rows::scale_bytes(call.tensor(kScale), is_swizzled(call),
                                          codes.shape[1] / formats::kMxBlock, 2);
    weight.e5m2 = codes.dtype == DType::kE5M2;
    weight.codes = codes.as<char>();
    weight.code_row = cuda::row_distance(codes);
    return weight;
  }
  static Status run_mma(const Call& call) {
    return gemv::start_weight_mma<true>(call, "linear_mxfp8_gemv", kArgs,
                                        gemv::GemvMxfp8{{weight_of(call)}, {}});
  }
  static Status run_few(const Call& call) {
    return start_few_rows<true>(call, "linear_mxfp8_128_rows", kArgs,
                                gemv::GemvMxfp8{{weight_of(call)}, {}});
  }
  static Status run_many(const Call& call, const TensorView& x) {
    const many_rows::MxWeight weight = weight_of(call);
    return run_mx_many_rows<kBits>(call, "linear_mxfp8_many_rows", kArgs, x, weight);
  }
  static bool sums_groups(const Call& call) { return call.tensor(kArgs.x).dtype != DType::kBF16; }
  static int summed_columns(const Call& call) { return sums_groups(call) ? 32 : 0; }
  static Status run_hopper(const Call& call) {
    return run_mx_hopper<kBits>(call, "linear_mxfp8_hopper", kArgs, weight_of(call));
  }
  static Status run_slabs(const Call& call) {
    const many_rows::Mx<kBits, false> format{weight_of(call)};
    return start_slabs<true>(call, "linear_mxfp8_decoded", kArgs, format);
  }
  static AnyMxfp8Rows fallback_weight(const Call& call) {
    const TensorView& codes = call.tensor(kArgs.weight);
    return {any_blocks(codes, call.tensor(kScale), codes.shape[1] / formats::kMxBlock,
                       is_swizzled(call))};
  }
};

constexpr auto kManyRows =
    many_rows_impls<Op>("cuda/linear_mxfp8_many_rows", "cuda/linear_mxfp8_input",
                        "cuda/linear_mxfp8_late", "cuda/linear_mxfp8_any");
constexpr Impl kImpls[] = {slabs_impl<Op>("cuda/linear_mxfp8_decoded"),
                           few_rows_impl<Op>("cuda/linear_mxfp8_128_rows"),
                           hopper_impl<Op>("cuda/linear_mxfp8_hopper"),
                           mma_impl<Op>("cuda/linear_mxfp8_gemv"),
                           kManyRows[0],
                           kManyRows[1],
                           kManyRows[2],
                           kManyRows[3]};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_mxfp8
