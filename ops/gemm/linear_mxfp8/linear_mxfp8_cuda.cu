// linear_mxfp8 on CUDA: ops/gemm/weight_only/many_rows.cuh with this format, few rows of x too.
#include "ops/gemm/linear_mxfp8/linear_mxfp8_spec.h"
#include "ops/gemm/weight_only/many_rows_launch.cuh"

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
  static constexpr const char* kFallback = "linear_mxfp8_any";

  static std::string refuse_call(const Call&) { return ""; }
  static std::string refuse_many(const Call& call) {
    return cuda::refuse_scale_strides("scale", call.tensor(kScale), is_swizzled(call));
  }
  static Status run_many(const Call& call, const TensorView& x) {
    const TensorView& codes = call.tensor(kArgs.weight);
    many_rows::MxWeight weight;
    weight.scale = many_rows::scale_bytes(call.tensor(kScale), is_swizzled(call),
                                          codes.shape[1] / formats::kMxBlock, 2);
    weight.e5m2 = codes.dtype == DType::kE5M2;
    weight.codes = codes.as<char>();
    weight.code_row = cuda::row_distance(codes);
    return run_mx_many_rows<kBits>(call, "linear_mxfp8_many_rows", kArgs, x, weight);
  }
  static AnyMxfp8Rows fallback_weight(const Call& call) {
    const TensorView& codes = call.tensor(kArgs.weight);
    return {any_blocks(codes, call.tensor(kScale), codes.shape[1] / formats::kMxBlock,
                       is_swizzled(call))};
  }
};

constexpr auto kImpls =
    many_rows_impls<Op>("cuda/linear_mxfp8_many_rows", "cuda/linear_mxfp8_input",
                        "cuda/linear_mxfp8_late", "cuda/linear_mxfp8_any");

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_mxfp8
