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
  const bool dense = scale.shape[1] <= 1 || scale.strides[1] == 1;
  const int64_t step = scale.shape[0] <= 1 ? 0 : scale.strides[0];
  if (dense && reinterpret_cast<uintptr_t>(scale.data) % 2 == 0 &&
      (swizzled ? step == 0 || step == scale.shape[1] : step % 2 == 0))
    return "";
  return "scale needs dense rows at even addresses, swizzled without gaps between them";
}
std::string refuses(const Call& call, const Machine&) {
  return wants_late(call) ? refuse_late(call) : refuse_product(call);
}
std::string refuses_late(const Call& call, const Machine& machine) {
  const std::string why = refuse_without_late(call, machine);
  return why.empty() ? refuse_product(call) : why;
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

constexpr Impl kImpls[] = {
    {.id = "cuda/linear_nvfp4_few_rows",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/linear_nvfp4_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_late,
     .run = run_late_on_cuda,
     .workspace = PESTLE_LATE_BYTES},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_nvfp4
