// linear_mxfp4 on CUDA, few rows of x: ops/gemm/gemv/weight_only_rows.cuh with this format.
#include "formats/mx.h"
#include "formats/swizzle.h"
#include "ops/gemm/gemv/weight_only_rows.cuh"
#include "ops/gemm/linear_mxfp4/linear_mxfp4_spec.h"

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

std::string refuse_product(const Call& call) {
  if (std::string why = refuse_weight_only(call, kArgs); !why.empty()) return why;
  return cuda::refuse_scale_strides("scale", call.tensor(kScale), call.integer(kScaleLayout) == 0);
}

Status run(const Call& call) {
  const TensorView& scale = call.tensor(kScale);
  const Mxfp4 format{scale.as<uint8_t>(), scale.strides[0],
                     call.tensor(kArgs.weight).shape[1] * 2 / formats::kMxBlock,
                     call.integer(kScaleLayout) == 0, call.integer(kNibbles) != 0};
  return run_weight_only(call, "linear_mxfp4_few_rows", kArgs, format);
}

constexpr auto kImpls =
    weight_only_impls<refuse_product>("cuda/linear_mxfp4_few_rows", "cuda/linear_mxfp4_late", run);

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_mxfp4
