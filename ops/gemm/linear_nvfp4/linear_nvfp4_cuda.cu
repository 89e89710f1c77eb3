// linear_nvfp4 on CUDA: GEMV (up to 16 rows of x) by ops/gemm/gemv/gemv_weight_mma.cuh, with f32 x or
// rows of any place by gemv_weight_only.cuh, whose format is here; more rows by
// few_rows.cuh, many_rows_hopper.cuh or many_rows.cuh of ops/gemm/weight_only, very many by slab_launch.cuh.
#include "backends/cuda/device/numeric/fp8.cuh"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"
#include "ops/gemm/gemv/gemv_weight_only.cuh"
#include "ops/gemm/linear_nvfp4/linear_nvfp4_spec.h"
#include "ops/gemm/weight_only/few_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_launch.cuh"

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

bool is_swizzled(const Call& call) { return call.integer(kScaleLayout) == 0; }

struct Op {
  static constexpr WeightOnlyArgs kArgs = linear_nvfp4::kArgs;
  static constexpr int kBits = 4;
  static constexpr WeightOnlyWorkspace kWorkspace = kPlainX;
  static constexpr bool kSlabFactors = true;
  static constexpr int64_t kRowsForSlabs = 1536;
  static constexpr const char* kFallback = "linear_nvfp4_any";

  static std::string refuse_call(const Call&) { return ""; }
  static std::string refuse_gemv(const Call& call) {
    const TensorView& scale = call.tensor(kScale);
    // Two neighbours are read at once.
    const bool odd = reinterpret_cast<uintptr_t>(scale.data) % 2 != 0 ||
                     (!is_swizzled(call) && scale.shape[0] > 1 && scale.strides[0] % 2 != 0);
    return odd ? "scale needs rows at even addresses" : refuse_many(call);
  }
  static std::string refuse_many(const Call& call) {
    return cuda::refuse_scale_strides("scale", call.tensor(kScale), is_swizzled(call));
  }
  static Status run_gemv(const Call& call) {
    const TensorView& scale = call.tensor(kScale);
    const Nvfp4 format{scale.as<uint8_t>(),
                       scale.strides[0],
                       call.tensor(kArgs.weight).shape[1] * 2 / formats::kNvfp4Block,
                       is_swizzled(call),
                       call.integer(kNibbles) == 0,
                       call.tensor(kGlobalScale).as<char>(),
                       0};
    return run_weight_only(call, "linear_nvfp4_few_rows", kArgs, format);
  }
  static int mma_scale_row(const Call& call) {
    return gemv::GemvNvfp4{}.row_bytes(call.tensor(kArgs.weight).shape[1] * 2);
  }
  static gemv::GemvNvfp4 mma_format(const Call& call) {
    gemv::GemvNvfp4 format;
    fill(call, call.tensor(kArgs.x).dtype == DType::kBF16, 4, &format);
    return format;
  }
  static Status run_mma(const Call& call) {
    return run_weight_mma(call, "linear_nvfp4_gemv", kArgs, mma_format(call));
  }
  static Status run_few(const Call& call) {
    return run_few_rows(call, "linear_nvfp4_128_rows", kArgs, mma_format(call));
  }
  // `together`: as many scales as are read at once.
  static void fill(const Call& call, bool bf16, int together, many_rows::Nvfp4* format) {
    const int64_t blocks = call.tensor(kArgs.weight).shape[1] * 2 / formats::kNvfp4Block;
    format->scale =
        many_rows::scale_bytes(call.tensor(kScale), is_swizzled(call), blocks, together);
    format->high_first = call.integer(kNibbles) == 0;
    format->bf16 = bf16;
    format->global_scale = call.tensor(kGlobalScale).as<char>();
  }
  static Status run_many(const Call& call, const TensorView& x) {
    many_rows::Nvfp4 format;
    fill(call, x.dtype != DType::kF16, 4, &format);  // f32 is split into parts of bf16
    return run_many_rows(call, "linear_nvfp4_many_rows", kArgs, x, format);
  }
  static bool sums_groups(const Call&) { return false; }
  static int summed_columns(const Call&) { return 0; }
  static Status run_hopper(const Call& call) {
    many_rows::Nvfp4 format;
    fill(call, call.tensor(kArgs.x).dtype == DType::kBF16, 4, &format);
    return run_many_rows_hopper(call, "linear_nvfp4_hopper", kArgs, format);
  }
  static Status run_slabs(const Call& call) {
    many_rows::Nvfp4 format;
    fill(call, call.tensor(kArgs.x).dtype == DType::kBF16, 4, &format);
    return ops::run_slabs(call, "linear_nvfp4_decoded", kArgs, format);
  }
  static AnyNvfp4Rows fallback_weight(const Call& call) {
    const TensorView& weight = call.tensor(kArgs.weight);
    return {any_blocks(weight, call.tensor(kScale), weight.shape[1] * 2 / formats::kNvfp4Block,
                       is_swizzled(call)),
            call.integer(kNibbles) == 0, call.tensor(kGlobalScale).as<char>()};
  }
};

constexpr auto kOthers = weight_only_impls_and_slabs<Op>(
    "cuda/linear_nvfp4_decoded", "cuda/linear_nvfp4_hopper", "cuda/linear_nvfp4_gemv",
    "cuda/linear_nvfp4_few_rows", "cuda/linear_nvfp4_many_rows", "cuda/linear_nvfp4_input",
    "cuda/linear_nvfp4_late", "cuda/linear_nvfp4_any");
constexpr auto kImpls = with_few_rows<Op>("cuda/linear_nvfp4_128_rows", kOthers);

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_nvfp4
