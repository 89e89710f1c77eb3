// linear_int8 on CUDA: which implementations there are.
// Map      the kernels of quantize_int8 (rotated, too), then those of scaled_mm_int8
//          (ops/gemm/linear/linear_quantized.cuh); with input_act the codes are those of
//          activation, gated_activation or rms_norm. cuda/linear_int8_hopper: GEMV up to 16 rows,
//          else the tiles of sm_90. clusters: some 17 to 256 rows, CTAs of a cluster share k
//          (ops/gemm/sm90/cluster_k.cuh). slices: tiles by split-K. portable: from sm_80 on. late:
//          an extended epilogue, unfused. _any: a thread a result, any strides. codes: quantised
//          output, the GEMM, then the quantising op over it.
// Traffic  x once, its codes once written and read, the weight and out once.
// Numerics sums exact in s32 up to K = 131071 (_any: s64); then f32, one rounding.
// Measured H200: 1150 to 1371 TOP/s, rotated 1074 to 1328, quantising x included (linear_int8.md).
#include "ops/gemm/linear/linear_quantized.cuh"
#include "ops/gemm/linear_int8/linear_int8_float.h"
#include "ops/gemm/linear_int8/linear_int8_spec.h"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm90/cluster_k_launch.cuh"
#include "ops/gemm/weight_only/few_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_launch.cuh"

namespace pestle::ops::linear_int8 {
namespace {

constexpr LinearQuantizedArgs kArgs{arg_index(spec, "x"),          arg_index(spec, "weight"),
                                    arg_index(spec, "scale"),      arg_index(spec, "out"),
                                    arg_index(spec, "alpha"),      arg_index(spec, "granularity"),
                                    arg_index(spec, "activations")};
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int64_t kLongestSum = 131071;  // of products of up to 2^14 in an s32

std::string refuses_sm90(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (input_columns(call) > kLongestSum)
    return "sums of more than 131071 products could overflow an s32";
  return refuse_linear_quantized(call, kArgs);
}

Status make_quantized_x(const Call& call, QuantizedX* quantized) {
  const TensorView& x = call.tensor(kArgs.x);
  *quantized = quantized_x(call, x, DType::kI8);
  return quantize_input<Int8Code>(call, "linear_int8_codes", x, call.integer(kHadamard),
                                  *quantized);
}

Status make_linear(const Call& call, QuantizedLinear* p) {
  PESTLE_TRY(make_quantized_x(call, &p->x));
  return fill_linear(call, kArgs, p->x, &p->o, &p->job);
}

using hopper::Sum;
using hopper::WgmmaType;

Status run_sm90(const Call& call) {
  QuantizedLinear p;
  PESTLE_TRY(make_linear(call, &p));
  if (!wants_extended(call) && refuse_gemv(p.o).empty())
    return start_gemv_wgmma<GemvKind::kInt8>(call, "linear_int8_few_rows", p.o, p.job.epilogue);
  const char* name = "linear_int8_hopper";
  return p.job.epilogue.pairs
             ? start_tile<WgmmaType::kInt8, true, true, Sum::kDirect, true, true>(call, name, p.o,
                                                                                  p.job)
             : start_tile<WgmmaType::kInt8, true, true, Sum::kDirect, true>(call, name, p.o, p.job);
}

std::string refuses_split_k(const Call& call, const Machine& machine) {
  return refuse_linear_split_k(call, machine, refuses_sm90(call, machine), kArgs,
                               GemmSums::kInteger);
}

Status run_split_k(const Call& call) {
  QuantizedLinear p;
  PESTLE_TRY(make_linear(call, &p));
  Call inner = call;
  inner.workspace = p.x.rest;
  return start_tile<WgmmaType::kInt8, true, true, Sum::kDirect, true>(inner, "linear_int8_slices",
                                                                      p.o, p.job, true);
}

// ---- clusters share k -----------------------------------------------------------------------------

constexpr const char* kClusters = "cuda/linear_int8_clusters";

std::string refuses_clusters(const Call& call, const Machine& machine) {
  const std::string why = refuses_sm90(call, machine);
  return why.empty() ? refuse_cluster(call, kArgs) : why;
}

Status run_clusters(const Call& call) {
  QuantizedLinear p;
  PESTLE_TRY(make_linear(call, &p));
  const bool early = quantizes_by_rows(call, call.tensor(kArgs.x), call.integer(kHadamard), p.x);
  const char* name = "linear_int8_clusters";
  return start_cluster<WgmmaType::kInt8>(call, name, p.o, p.job.epilogue, early);
}

const char* preferred_impl(const Call& call, const Machine& machine) {
  const bool is_for =
      refuses_clusters(call, machine).empty() && advises_cluster(call, machine, kArgs);
  return is_for ? kClusters : nullptr;
}
std::string plan_of_impl(const Call& call, const Machine& machine, std::string_view impl) {
  return impl == kClusters ? cluster_plan_of(call, machine, kArgs) : "";
}

std::string refuses_portable(const Call& call, const Machine&) {
  if (input_columns(call) > kLongestSum)
    return "sums of more than 131071 products could overflow an s32";
  return refuse_portable_linear(call, kArgs, DType::kI8);
}

Status run_linear_portable(const Call& call) {
  QuantizedX quantized;
  PESTLE_TRY(make_quantized_x(call, &quantized));
  return run_portable_linear(call, "linear_int8_portable", kArgs, quantized);
}

Status run_fallback(const Call& call) {
  if (numel(call.tensor(kArgs.out)) == 0) return {};
  QuantizedX quantized;
  PESTLE_TRY(make_quantized_x(call, &quantized));
  return run_fallback_linear<int>(call, "linear_int8_any", kArgs, quantized);
}

// ---- activations=float -------------------------------------------------------------------------

struct FloatOp {
  static constexpr WeightOnlyArgs kArgs{linear_int8::kArgs.x, linear_int8::kArgs.weight,
                                        linear_int8::kArgs.out, linear_int8::kArgs.alpha,
                                        kHadamard};
  static constexpr int kBits = 8;
  static constexpr WeightOnlyWorkspace kWorkspace = kRotatedX;
  static constexpr bool kSlabFactors = true;
  static constexpr int64_t kRowsForSlabs = 1536;
  static constexpr const char* kFallback = "linear_int8_float_any";

  static std::string refuse_call(const Call& call) {
    if (call.integer(linear_int8::kArgs.activations) != 0)
      return "activations=row: another implementation's";
    return refuse_quantized_output(call);
  }
  static std::string refuse_many(const Call& call) {
    if (label_of(call, "granularity") == "group" && call.integer(kGroupSize) % 32 != 0)
      return "group_size must be a multiple of 32";
    const bool whole =
        reinterpret_cast<uintptr_t>(call.tensor(linear_int8::kArgs.scale).data) % 4 == 0;
    return whole ? "" : "scale must begin at a multiple of 4 bytes";
  }
  static Status run_many(const Call& call, const TensorView& x) { return run_float_x(call, x); }
  static std::string refuse_gemv(const Call& call) {
    const int64_t group = call.integer(kGroupSize);
    const bool even = group % gemv::kStepOf<8> == 0 || group >= call.tensor(kArgs.weight).shape[1];
    if (label_of(call, "granularity") == "group" && !even)
      return "group_size must be a multiple of 64";
    return refuse_many(call);
  }
  static int mma_scale_row(const Call& call) {
    return gemv::GemvGroupBytes<many_rows::ByteCode::kInt8>{}.row_bytes(
        call.tensor(kArgs.weight).shape[1]);
  }
  static Status run_mma(const Call& call) { return run_float_gemv(call); }
  static Status run_few(const Call& call) { return run_float_few(call); }
  static bool sums_groups(const Call& call) { return label_of(call, "granularity") == "group"; }
  static int summed_columns(const Call& call) {
    if (!sums_groups(call)) return 0;
    const int64_t columns = call.tensor(kArgs.weight).shape[1];
    return columns_summed(std::min(call.integer(kGroupSize), columns));
  }
  static Status run_hopper(const Call& call) { return run_float_hopper(call); }
  static Status run_slabs(const Call& call) { return run_float_slabs(call); }
  static AnyByteRows fallback_weight(const Call& call) {
    const std::string_view granularity = label_of(call, "granularity");
    AnyByteRows rows{AnyTensor(call.tensor(kArgs.weight)),
                     {AnyTensor(call.tensor(linear_int8::kArgs.scale))}};
    if (granularity != "tensor") rows.scale.rows = 1;
    if (granularity == "group") rows.scale.columns = call.integer(kGroupSize);
    return rows;
  }
};

constexpr auto kFloatX = float_x_impls<FloatOp>(
    "cuda/linear_int8_float", "cuda/linear_int8_float_input", "cuda/linear_int8_float_any");

using Refusals = LinearQuantizedRefusals<kArgs>;

constexpr Impl kImpls[] = {
    slabs_impl<FloatOp>("cuda/linear_int8_decoded"),
    few_rows_impl<FloatOp>("cuda/linear_int8_128_rows"),
    hopper_impl<FloatOp>("cuda/linear_int8_float_hopper"),
    mma_impl<FloatOp>("cuda/linear_int8_gemv"),
    {.id = "cuda/linear_int8_slices",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_split_k,
     .run = run_split_k,
     .workspace = kSplitKLinearWorkspace},
    {.id = "cuda/linear_int8_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_sm90,
     .run = run_sm90,
     .workspace = kLinearInputWorkspace},
    {.id = kClusters,
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_clusters,
     .run = run_clusters,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_int8_portable",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_portable,
     .run = run_linear_portable,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_int8_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::unfused,
     .run = run_unfused_on_cuda,
     .workspace = kUnfusedLinearWorkspace},
    {.id = "cuda/linear_int8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::fallback,
     .run = run_fallback,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_int8_codes",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::quantized_output,
     .run = run_with_quantized_output,
     .workspace = kLinearQuantizedOutputWorkspace},
    kFloatX[0],
    kFloatX[1],
    kFloatX[2],
};

[[maybe_unused]] const bool kAdvised = advise({spec.name, preferred_impl, plan_of_impl, nullptr});

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_int8
