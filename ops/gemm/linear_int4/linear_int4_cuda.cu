// linear_int4 on CUDA: GEMV (up to 16 rows of x) by ops/gemm/gemv/gemv_weight_mma.cuh, with f32 x or
// rows of any place by gemv_weight_only.cuh, whose format is here; more rows by
// few_rows.cuh, many_rows_hopper.cuh or many_rows.cuh of ops/gemm/weight_only, very many with decoded=as_x by
// slab_launch.cuh.
#include "ops/gemm/gemv/gemv_weight_only.cuh"
#include "ops/gemm/linear_int4/linear_int4_spec.h"
#include "ops/gemm/weight_only/few_rows_launch.cuh"
#include "ops/gemm/weight_only/int4_weight.h"
#include "ops/gemm/weight_only/slab_launch.cuh"

namespace pestle::ops::linear_int4 {
namespace {

constexpr WeightOnlyArgs kArgs{arg_index(spec, "x"), arg_index(spec, "weight"),
                               arg_index(spec, "out"), arg_index(spec, "alpha"),
                               arg_index(spec, "hadamard")};
constexpr int kScale = arg_index(spec, "scale");
constexpr int kZero = arg_index(spec, "zero");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kDecoded = arg_index(spec, "decoded");
constexpr int kMode = arg_index(spec, "mode");

// Groups of a multiple of 32 columns: a unit lies in one. Two's complement codes with their sign bit
// turned are codes 0 to 15 with zero point 8.
struct Int4 {
  const char* scale;
  int64_t scale_row, scale_column;  // bytes
  const char* zero;                 // null: symmetric
  int64_t zero_row, zero_column;
  int64_t group;
  bool high_first = false;

  struct Scales {
    float scale;
    uint8_t zero;
  };
  struct Decoder {
    uint32_t flip;
    __half2 zero;
    template <int kCode>
    __device__ __half2 pair(uint32_t word) const {
      return integer_pair<kCode>(word, flip, zero);
    }
  };
  __device__ void start() {}
  __device__ Scales load(int64_t row, int64_t column) const {
    const int64_t g = column / group;
    const char* at = scale + row * scale_row + g * scale_column;
    Scales scales{__ldg(reinterpret_cast<const float*>(at)), 8};
    if (zero != nullptr) scales.zero = static_cast<uint8_t>(zero[row * zero_row + g * zero_column]);
    return scales;
  }
  __device__ float factor(const Scales& scales, int) const { return scales.scale; }
  __device__ Decoder decoder(const Scales& scales) const {
    const float more = 1024.0f + static_cast<float>(scales.zero);
    return {zero == nullptr ? 0x00080008u : 0u, __float2half2_rn(more)};
  }
};

// Where scales and zero points of either kernel's format lie.
template <class Format>
Format int4_format(const Call& call) {
  return int4_weight<Format>(call.tensor(kScale),
                             call.integer(kMode) != 0 ? &call.tensor(kZero) : nullptr,
                             call.integer(kGroupSize), call.tensor(kArgs.weight).shape[1] * 2);
}

struct Op {
  static constexpr WeightOnlyArgs kArgs = linear_int4::kArgs;
  static constexpr int kBits = 4;
  static constexpr WeightOnlyWorkspace kWorkspace = kRotatedX;
  static constexpr bool kSlabFactors = false;
  static constexpr int64_t kRowsForSlabs = 1024;
  static constexpr const char* kFallback = "linear_int4_any";

  static std::string refuse_call(const Call&) { return ""; }
  static std::string refuse_gemv(const Call& call) { return refuse_many(call); }
  static std::string refuse_many(const Call& call) {
    if (call.integer(kGroupSize) % 32 != 0) return "group_size must be a multiple of 32";
    if (reinterpret_cast<uintptr_t>(call.tensor(kScale).data) % 4 != 0)
      return "scale must begin at a multiple of 4 bytes";
    return "";
  }
  static Status run_gemv(const Call& call) {
    return run_weight_only(call, "linear_int4_few_rows", kArgs, int4_format<Int4>(call));
  }
  template <gemv::SumsOf kSums>
  static Status start_mma(const Call& call) {
    return run_weight_mma(call, "linear_int4_gemv", kArgs,
                          int4_format<gemv::GemvInt4<kSums>>(call));
  }
  static bool one_scale_a_step(const Call& call) {
    const int64_t k = call.tensor(kArgs.weight).shape[1] * 2;
    const int64_t group = int4_group(call.integer(kGroupSize), k);
    return group >= k || group % gemv::kStepOf<4> == 0;
  }
  static int mma_scale_row(const Call& call) {
    const int64_t k = call.tensor(kArgs.weight).shape[1] * 2;
    return one_scale_a_step(call) ? gemv::GemvInt4<gemv::SumsOf::kSteps>{}.row_bytes(k)
                                  : gemv::GemvInt4<gemv::SumsOf::kOctets>{}.row_bytes(k);
  }
  static Status run_mma(const Call& call) {
    return one_scale_a_step(call) ? start_mma<gemv::SumsOf::kSteps>(call)
                                  : start_mma<gemv::SumsOf::kOctets>(call);
  }
  template <gemv::SumsOf kSums>
  static Status start_few(const Call& call) {
    return run_few_rows(call, "linear_int4_128_rows", kArgs,
                        int4_format<gemv::GemvInt4<kSums>>(call));
  }
  static Status run_few(const Call& call) {
    return one_scale_a_step(call) ? start_few<gemv::SumsOf::kSteps>(call)
                                  : start_few<gemv::SumsOf::kOctets>(call);
  }
  static Status run_many(const Call& call, const TensorView& x) {
    return run_many_rows(call, "linear_int4_many_rows", kArgs, x,
                         int4_format<many_rows::Int4>(call));
  }
  static bool sums_groups(const Call& call) {
    return call.integer(kDecoded) == 0 || call.tensor(kArgs.x).dtype != DType::kBF16;
  }
  static int summed_columns(const Call& call) {
    const int64_t k = call.tensor(kArgs.weight).shape[1] * 2;
    const int columns = columns_summed(int4_group(call.integer(kGroupSize), k));
    return sums_groups(call) ? columns : std::max(columns, 64);
  }
  // decoded=as_x lets weights be rounded, and does not ask for it: whichever kernel is faster. To scale
  // and round a code takes a step of the one that does it longer than an exact scale, the more so the
  // fewer rows share it.
  static Status run_hopper_as_x(const Call& call, const char* name) {
    const many_rows::Job job = many_rows_job(call, kArgs, call.tensor(kArgs.x), kBits);
    const auto rounded = int4_format<many_rows::Int4AsX>(call);
    const auto exact = int4_format<many_rows::Int4>(call);
    const auto by_codes = hopper_scaled_plan<true>(call, job, rounded);
    PESTLE_TRY(by_codes.status());
    return with_summed_columns(exact.group, [&](auto columns) -> Status {
      constexpr int kColumns = decltype(columns)::value;
      const auto by_sums = hopper_sums_plan<true, kColumns>(call, job, exact);
      PESTLE_TRY(by_sums.status());
      const double longer = by_codes.value().rows <= 64 ? 1.45 : 1.2;
      return by_sums.value().us < longer * by_codes.value().us
                 ? start_hopper_sums<true, kColumns>(call, name, job, exact, by_sums.value())
                 : start_hopper<true>(call, name, job, rounded, by_codes.value());
    });
  }
  static Status run_hopper(const Call& call) {
    const char* name = "linear_int4_hopper";
    if (!sums_groups(call)) return run_hopper_as_x(call, name);
    const auto format = int4_format<many_rows::Int4>(call);
    return run_hopper_groups(call, name, kArgs, format, format.group);
  }
  static Status run_slabs(const Call& call) {
    return start_slabs<true>(call, "linear_int4_decoded", kArgs,
                             int4_format<many_rows::Int4AsX>(call));
  }
  static AnyInt4Rows fallback_weight(const Call& call) {
    const TensorView& weight = call.tensor(kArgs.weight);
    AnyInt4Rows rows{AnyTensor(weight), {AnyTensor(call.tensor(kScale)), 1}, {}};
    rows.scale.columns =
        std::max<int64_t>(1, int4_group(call.integer(kGroupSize), weight.shape[1] * 2));
    if (call.integer(kMode) != 0) rows.zero = AnyTensor(call.tensor(kZero));
    return rows;
  }
};

constexpr auto kOthers = weight_only_impls_and_slabs<Op>(
    "cuda/linear_int4_decoded", "cuda/linear_int4_hopper", "cuda/linear_int4_gemv",
    "cuda/linear_int4_few_rows", "cuda/linear_int4_many_rows", "cuda/linear_int4_input",
    "cuda/linear_int4_late", "cuda/linear_int4_any");
constexpr auto kImpls = with_few_rows<Op>("cuda/linear_int4_128_rows", kOthers);

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_int4
