// linear_mxfp4 on CUDA: GEMV (up to 16 rows of x) by ops/gemm/gemv/gemv_weight_mma.cuh, with f32 x or
// rows of any place by gemv_weight_only.cuh, whose format is here; more rows by
// few_rows.cuh, many_rows_hopper.cuh or many_rows.cuh of ops/gemm/weight_only, very many by slab_launch.cuh.
#include "formats/mx.h"
#include "formats/swizzle.h"
#include "ops/gemm/gemv/gemv_weight_only.cuh"
#include "ops/gemm/linear_mxfp4/linear_mxfp4_spec.h"
#include "ops/gemm/weight_only/few_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_launch.cuh"

namespace pestle::ops::linear_mxfp4 {
namespace {

constexpr WeightOnlyArgs kArgs{arg_index(spec, "x"), arg_index(spec, "weight"),
                               arg_index(spec, "out"), arg_index(spec, "alpha")};
constexpr int kScale = arg_index(spec, "scale");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

// A scale for each 32 columns, one a unit.
struct Mxfp4 {
  const uint8_t* scale;
  int64_t row_bytes;  // plain
  int64_t columns;
  bool swizzled;
  bool high_first;

  using Scales = uint8_t;
  struct Decoder {
    template <int kCode>
    __device__ __half2 pair(uint32_t word) const {
      return e2m1_pair<kCode>(word);
    }
  };
  __device__ void start() {}
  __device__ Scales load(int64_t row, int64_t column) const {
    const int64_t block = column / formats::kMxBlock;
    return __ldg(scale + (swizzled ? formats::swizzle_offset(row, block, columns)
                                   : row * row_bytes + block));
  }
  __device__ float factor(Scales scales, int) const { return formats::f32_from_e8m0(scales); }
  __device__ Decoder decoder(Scales) const { return {}; }
};

bool is_swizzled(const Call& call) { return call.integer(kScaleLayout) == 0; }
bool high_first(const Call& call) { return call.integer(kNibbles) != 0; }
int64_t blocks(const Call& call) {
  return call.tensor(kArgs.weight).shape[1] * 2 / formats::kMxBlock;
}

struct Op {
  static constexpr WeightOnlyArgs kArgs = linear_mxfp4::kArgs;
  static constexpr int kBits = 4;
  static constexpr WeightOnlyWorkspace kWorkspace = kPlainX;
  static constexpr bool kSlabFactors = false;
  static constexpr int64_t kRowsForSlabs = 1536;
  static constexpr const char* kFallback = "linear_mxfp4_any";

  static std::string refuse_call(const Call&) { return ""; }
  static std::string refuse_gemv(const Call& call) { return refuse_many(call); }
  static std::string refuse_many(const Call& call) {
    return cuda::refuse_scale_strides("scale", call.tensor(kScale), is_swizzled(call));
  }
  static Status run_gemv(const Call& call) {
    const TensorView& scale = call.tensor(kScale);
    const Mxfp4 format{scale.as<uint8_t>(), scale.strides[0], blocks(call), is_swizzled(call),
                       high_first(call)};
    return run_weight_only(call, "linear_mxfp4_few_rows", kArgs, format);
  }
  static many_rows::MxWeight weight_of(const Call& call, int together) {
    many_rows::MxWeight weight;
    weight.scale =
        many_rows::scale_bytes(call.tensor(kScale), is_swizzled(call), blocks(call), together);
    weight.high_first = high_first(call);
    return weight;
  }
  static int mma_scale_row(const Call& call) {
    return gemv::GemvMxfp4<false>{}.row_bytes(call.tensor(kArgs.weight).shape[1] * 2);
  }
  static Status run_mma(const Call& call) {
    const many_rows::MxWeight weight = weight_of(call, 4);
    const char* name = "linear_mxfp4_gemv";
    return call.tensor(kArgs.x).dtype == DType::kBF16
               ? gemv::start_weight_mma<true>(call, name, kArgs, gemv::GemvMxfp4<false>{weight, {}})
               : gemv::start_weight_mma<false>(call, name, kArgs,
                                               gemv::GemvMxfp4<true>{weight, {}});
  }
  static Status run_few(const Call& call) {
    const many_rows::MxWeight weight = weight_of(call, 4);
    const char* name = "linear_mxfp4_128_rows";
    return call.tensor(kArgs.x).dtype == DType::kBF16
               ? start_few_rows<true>(call, name, kArgs, gemv::GemvMxfp4<false>{weight, {}})
               : start_few_rows<false>(call, name, kArgs, gemv::GemvMxfp4<true>{weight, {}});
  }
  static Status run_many(const Call& call, const TensorView& x) {
    return run_mx_many_rows<kBits>(call, "linear_mxfp4_many_rows", kArgs, x, weight_of(call, 2));
  }
  static bool sums_groups(const Call& call) { return call.tensor(kArgs.x).dtype != DType::kBF16; }
  static int summed_columns(const Call& call) { return sums_groups(call) ? 32 : 0; }
  static Status run_hopper(const Call& call) {
    return run_mx_hopper<kBits>(call, "linear_mxfp4_hopper", kArgs, weight_of(call, 2));
  }
  static Status run_slabs(const Call& call) {
    const many_rows::Mx<kBits, false> format{weight_of(call, 2)};
    return start_slabs<true>(call, "linear_mxfp4_decoded", kArgs, format);
  }
  static AnyMxfp4Rows fallback_weight(const Call& call) {
    return {
        any_blocks(call.tensor(kArgs.weight), call.tensor(kScale), blocks(call), is_swizzled(call)),
        high_first(call)};
  }
};

constexpr auto kOthers = weight_only_impls_and_slabs<Op>(
    "cuda/linear_mxfp4_decoded", "cuda/linear_mxfp4_hopper", "cuda/linear_mxfp4_gemv",
    "cuda/linear_mxfp4_few_rows", "cuda/linear_mxfp4_many_rows", "cuda/linear_mxfp4_input",
    "cuda/linear_mxfp4_late", "cuda/linear_mxfp4_any");
constexpr auto kImpls = with_few_rows<Op>("cuda/linear_mxfp4_128_rows", kOthers);

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_mxfp4
