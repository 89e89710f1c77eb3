// linear_nvfp4 on CUDA, few rows of x: ops/gemm/gemv/weight_only_rows.cuh with this format.
#include "backends/cuda/device/numeric/fp8.cuh"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"
#include "ops/gemm/gemv/weight_only_rows.cuh"
#include "ops/gemm/linear_nvfp4/linear_nvfp4_spec.h"

namespace pestle::ops::linear_nvfp4 {
namespace {

constexpr WeightOnlyArgs kArgs{arg_index(spec, "x"), arg_index(spec, "weight"),
                               arg_index(spec, "out"), arg_index(spec, "alpha")};
constexpr int kScale = arg_index(spec, "scale");
constexpr int kGlobalScale = arg_index(spec, "global_scale");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

// A scale for each 16 columns: two a unit.
struct Nvfp4 {
  const uint8_t* scale;
  int64_t row_bytes;  // plain
  int64_t columns;
  bool swizzled;
  bool high_first;
  const char* global_scale;  // of any alignment
  float g;                   // its value

  using Scales = uint16_t;
  struct Decoder {
    template <int kCode>
    __device__ __half2 pair(uint32_t word) const {
      return e2m1_pair<kCode>(word);
    }
  };
  __device__ void start() { g = __uint_as_float(cuda::AnyTensor::bits(global_scale, 4)); }
  __device__ Scales load(int64_t row, int64_t column) const {
    const int64_t block = column / formats::kNvfp4Block;
    const int64_t offset =
        swizzled ? formats::swizzle_offset(row, block, columns) : row * row_bytes + block;
    return __ldg(reinterpret_cast<const uint16_t*>(scale + offset));
  }
  __device__ float factor(Scales scales, int half) const {
    return cuda::e4m3_value(static_cast<uint8_t>(scales >> (8 * half))) * g;
  }
  __device__ Decoder decoder(Scales) const { return {}; }
};

std::string refuse_product(const Call& call) {
  if (std::string why = refuse_weight_only(call, kArgs); !why.empty()) return why;
  const TensorView& scale = call.tensor(kScale);
  const bool swizzled = call.integer(kScaleLayout) == 0;
  // Two neighbours are read at once.
  const bool odd = reinterpret_cast<uintptr_t>(scale.data) % 2 != 0 ||
                   (!swizzled && scale.shape[0] > 1 && scale.strides[0] % 2 != 0);
  return odd ? "scale needs rows at even addresses"
             : cuda::refuse_scale_strides("scale", scale, swizzled);
}

Status run(const Call& call) {
  const TensorView& scale = call.tensor(kScale);
  const Nvfp4 format{scale.as<uint8_t>(),
                     scale.strides[0],
                     call.tensor(kArgs.weight).shape[1] * 2 / formats::kNvfp4Block,
                     call.integer(kScaleLayout) == 0,
                     call.integer(kNibbles) == 0,
                     call.tensor(kGlobalScale).as<char>(),
                     0};
  return run_weight_only(call, "linear_nvfp4_few_rows", kArgs, format);
}

constexpr auto kImpls =
    weight_only_impls<refuse_product>("cuda/linear_nvfp4_few_rows", "cuda/linear_nvfp4_late", run);

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_nvfp4
