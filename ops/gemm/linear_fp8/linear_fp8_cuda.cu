// linear_fp8 on CUDA: which implementations there are.
// Map      the kernels of quantize_fp8, then those of scaled_mm_fp8
//          (ops/gemm/linear/linear_quantized.cuh); with input_act the codes are those of
//          activation, gated_activation or rms_norm. cuda/linear_fp8_hopper: GEMV up to 16 rows,
//          else the tiles of sm_90. clusters: some 17 to 256 rows, CTAs of a cluster share k
//          (ops/gemm/sm90/cluster_k.cuh). slices: tiles by split-K. cublaslt: the GEMM by cuBLASLt,
//          where scaled_mm_fp8's would be. portable: from sm_80 on. late: an extended epilogue,
//          unfused. _any: a thread a result, any strides. codes: quantised output, the GEMM, then
//          the quantising op over it.
// Traffic  x once, its codes once written and read, the weight and out once.
// Numerics the tensor cores add 128 products, f32 registers the rest (scaled_mm_fp8's accurate);
//          accumulation=fast: the tensor cores add all.
// Measured H200: 965 to 1070 TFLOP/s, quantising x included (linear_fp8.md); fast by cuBLASLt 1236
//          at 4608 x 12288 x 3072.
#include "formats/fp8.h"
#include "ops/gemm/linear/linear_quantized.cuh"
#include "ops/gemm/linear_fp8/linear_fp8_float.h"
#include "ops/gemm/linear_fp8/linear_fp8_spec.h"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm90/cluster_k_launch.cuh"
#include "ops/gemm/weight_only/few_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_launch.cuh"
#include "ops/quant/rowwise/fp8_scale_grid.h"

namespace pestle::ops::linear_fp8 {
namespace {

constexpr LinearQuantizedArgs kArgs{arg_index(spec, "x"),          arg_index(spec, "weight"),
                                    arg_index(spec, "scale"),      arg_index(spec, "out"),
                                    arg_index(spec, "alpha"),      arg_index(spec, "granularity"),
                                    arg_index(spec, "activations")};

constexpr int kAccumulation = arg_index(spec, "accumulation");

GemmSums sums_of_call(const Call& call) {
  return call.integer(kAccumulation) == 1 ? GemmSums::kFast : GemmSums::kAccurate;
}

std::string refuses_sm90(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (wants_pairs(call) && call.tensor(kArgs.weight).dtype != DType::kE4M3)
    return "gated: is for e4m3";
  return refuse_linear_quantized(call, kArgs);
}

// Codes of the weight's dtype.
Status make_quantized_x(const Call& call, QuantizedX* quantized) {
  const TensorView& x = call.tensor(kArgs.x);
  const DType dtype = call.tensor(kArgs.weight).dtype;
  *quantized = quantized_x(call, x, dtype);
  return with_fp8(dtype, [&]<class F>(F) {
    return quantize_input<Fp8Code<F>>(call, "linear_fp8_codes", x, 0, *quantized);
  });
}

Status make_linear(const Call& call, QuantizedLinear* p) {
  PESTLE_TRY(make_quantized_x(call, &p->x));
  return fill_linear(call, kArgs, p->x, &p->o, &p->job);
}

using hopper::Sum;
using hopper::WgmmaType;

template <WgmmaType kWgmma>
Status start_gemm(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                  bool split_k) {
  if (sums_of_call(call) == GemmSums::kFast)
    return start_tile<kWgmma, true, true, Sum::kDirect, true>(call, name, o, job, split_k);
  return start_tile<kWgmma, true, true, Sum::kPromoted, true>(call, name, o, job, split_k);
}
Status start_tiles(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                   bool split_k = false) {
  return o.b.dtype == DType::kE4M3 ? start_gemm<WgmmaType::kE4m3>(call, name, o, job, split_k)
                                   : start_gemm<WgmmaType::kE5m2>(call, name, o, job, split_k);
}

Status run_sm90(const Call& call) {
  QuantizedLinear p;
  PESTLE_TRY(make_linear(call, &p));
  if (p.job.epilogue.pairs)
    return start_tile<WgmmaType::kE4m3, true, true, Sum::kPromoted, true, true>(
        call, "linear_fp8_hopper", p.o, p.job);
  if (!wants_extended(call) && refuse_gemv(p.o).empty()) {
    const char* name = "linear_fp8_few_rows";
    return p.o.b.dtype == DType::kE4M3
               ? start_gemv_wgmma<GemvKind::kE4m3>(call, name, p.o, p.job.epilogue)
               : start_gemv_wgmma<GemvKind::kE5m2>(call, name, p.o, p.job.epilogue);
  }
  return start_tiles(call, "linear_fp8_hopper", p.o, p.job);
}

std::string refuses_split_k(const Call& call, const Machine& machine) {
  return refuse_linear_split_k(call, machine, refuses_sm90(call, machine), kArgs,
                               sums_of_call(call));
}

Status run_split_k(const Call& call) {
  QuantizedLinear p;
  PESTLE_TRY(make_linear(call, &p));
  Call inner = call;
  inner.workspace = p.x.rest;  // what input_act gave is done with
  return start_tiles(inner, "linear_fp8_slices", p.o, p.job, true);
}

// ---- cuBLASLt, and which path the GEMM takes ----------------------------------------------------

// Scales of x's rows lie in the workspace, at 256 bytes; the weight's are the caller's, one for all
// or one a row.
CublasEpilogue cublas_epilogue(const Call& call, const QuantizedX* quantized) {
  CublasEpilogue e;
  if (call.has(kArgs.alpha + 1)) e.bias = &call.tensor(kArgs.alpha + 1);
  const TensorView& scale = call.tensor(kArgs.scale);
  e.scales = CublasScales::kRow;
  e.b.data = scale.as<float>();
  if (call.integer(kArgs.granularity) == 1) even_rows(scale, e.b.row);
  if (quantized) e.a = {quantized->scale.as<float>(), 1};
  e.fast = sums_of_call(call) == GemmSums::kFast;
  return e;
}

std::string refuses_cublas(const Call& call, const Machine& machine) {
  if (wants_extended(call)) return refuse_extended(call);
  const std::string why = refuses_sm90(call, machine);
  if (!why.empty()) return why;
  const std::string epilogue = refuse_cublas_quantized(call, kArgs.alpha);
  if (!epilogue.empty()) return epilogue;
  Operands o;
  read_linear(call, kArgs, &o);
  return refuse_cublas(o, cublas_epilogue(call, nullptr));
}

Status run_by_cublas(const Call& call) {
  QuantizedX quantized;
  PESTLE_TRY(make_quantized_x(call, &quantized));
  Operands o;
  PESTLE_TRY(read_quantized(call, kArgs, quantized, &o));
  Call inner = call;
  inner.workspace = quantized.rest;  // what input_act gave is done with
  return run_cublas(inner, "linear_fp8_cublaslt", o, cublas_epilogue(call, &quantized),
                    algorithm_for(call, key_of(o, sums_of_call(call))));
}

// Few rows are taken by the same implementation as many.
constexpr GemmIds kIds{"cuda/linear_fp8_hopper", "cuda/linear_fp8_hopper",
                       "cuda/linear_fp8_cublaslt", "cuda/linear_fp8_slices"};

// False: the GEMM is none of sm_90's.
bool read_advised(const Call& call, const Machine& machine, AdvisedGemm* p) {
  Operands o;
  if (wants_pairs(call) || !refuses_sm90(call, machine).empty() ||
      !read_linear(call, kArgs, &o).empty())
    return false;
  p->key = key_of(o, sums_of_call(call));
  p->options.gemv = !wants_extended(call) && refuse_gemv(o).empty();
  p->options.split_k = refuses_split_k(call, machine).empty();
  p->options.library = refuses_cublas(call, machine).empty();
  if (p->options.library)
    p->options.algorithms = cublas_algorithms(cublas_epilogue(call, nullptr).scales);
  fill_machine(call, machine, p);
  return true;
}

// ---- clusters share k -----------------------------------------------------------------------------

constexpr const char* kClusters = "cuda/linear_fp8_clusters";

std::string refuses_clusters(const Call& call, const Machine& machine) {
  const std::string why = refuses_sm90(call, machine);
  return why.empty() ? refuse_cluster(call, kArgs) : why;
}

Status run_clusters(const Call& call) {
  QuantizedLinear p;
  PESTLE_TRY(make_linear(call, &p));
  const bool early = quantizes_by_rows(call, call.tensor(kArgs.x), 0, p.x);
  const char* name = "linear_fp8_clusters";
  return p.o.b.dtype == DType::kE4M3
             ? start_cluster<WgmmaType::kE4m3>(call, name, p.o, p.job.epilogue, early)
             : start_cluster<WgmmaType::kE5m2>(call, name, p.o, p.job.epilogue, early);
}

// A tuner's choice among the others comes first.
using WholeTiles = GemmAdvice<kIds, read_advised>;
const char* preferred_impl(const Call& call, const Machine& machine) {
  AdvisedGemm p;
  if (!read_advised(call, machine, &p)) return nullptr;
  return tuned_for(p) == nullptr && advises_cluster(call, machine, kArgs) ? kClusters
                                                                          : preferred(kIds, p);
}
std::string plan_of_impl(const Call& call, const Machine& machine, std::string_view impl) {
  return impl == kClusters ? cluster_plan_of(call, machine, kArgs)
                           : WholeTiles::plan(call, machine, impl);
}

std::string refuses_portable(const Call& call, const Machine&) {
  return refuse_portable_linear(call, kArgs, call.tensor(kArgs.weight).dtype);
}

Status run_linear_portable(const Call& call) {
  QuantizedX quantized;
  PESTLE_TRY(make_quantized_x(call, &quantized));
  return run_portable_linear(call, "linear_fp8_portable", kArgs, quantized);
}

Status run_fallback(const Call& call) {
  if (numel(call.tensor(kArgs.out)) == 0) return {};
  QuantizedX quantized;
  PESTLE_TRY(make_quantized_x(call, &quantized));
  return run_fallback_linear<float>(call, "linear_fp8_any", kArgs, quantized);
}

// ---- activations=float -------------------------------------------------------------------------

struct FloatOp {
  static constexpr WeightOnlyArgs kArgs{linear_fp8::kArgs.x, linear_fp8::kArgs.weight,
                                        linear_fp8::kArgs.out, linear_fp8::kArgs.alpha};
  static constexpr int kBits = 8;
  static constexpr WeightOnlyWorkspace kWorkspace = kPlainX;
  static constexpr bool kSlabFactors = true;
  static constexpr int64_t kRowsForSlabs = 1536;
  static constexpr const char* kFallback = "linear_fp8_float_any";

  static std::string refuse_call(const Call& call) {
    if (call.integer(linear_fp8::kArgs.activations) != 0)
      return "activations=row: another implementation's";
    return refuse_quantized_output(call);
  }
  static std::string refuse_many(const Call& call) {
    if (label_of(call, "granularity") == "column") return "granularity=column: scales along k";
    const bool whole =
        reinterpret_cast<uintptr_t>(call.tensor(linear_fp8::kArgs.scale).data) % 4 == 0;
    return whole ? "" : "scale must begin at a multiple of 4 bytes";
  }
  static Status run_many(const Call& call, const TensorView& x) { return run_float_x(call, x); }
  static std::string refuse_gemv(const Call& call) { return refuse_many(call); }
  static int mma_scale_row(const Call& call) {
    return gemv::GemvGroupBytes<many_rows::ByteCode::kE4m3>{}.row_bytes(
        call.tensor(kArgs.weight).shape[1]);
  }
  static Status run_mma(const Call& call) { return run_float_gemv(call); }
  static Status run_few(const Call& call) { return run_float_few(call); }
  static bool sums_groups(const Call& call) { return scales_are_of_blocks(call); }
  static int summed_columns(const Call& call) { return sums_groups(call) ? 128 : 0; }
  static Status run_hopper(const Call& call) { return run_float_hopper(call); }
  static Status run_slabs(const Call& call) { return run_float_slabs(call); }
  static AnyByteRows fallback_weight(const Call& call) {
    const std::string_view granularity = label_of(call, "granularity");
    AnyByteRows rows{AnyTensor(call.tensor(kArgs.weight)),
                     {AnyTensor(call.tensor(linear_fp8::kArgs.scale))}};
    if (granularity == "row" || granularity == "block_1x128") rows.scale.rows = 1;
    if (granularity == "column") rows.scale.columns = 1;
    if (granularity == "block_1x128" || granularity == "block_128x128") rows.scale.columns = 128;
    if (granularity == "block_128x128") rows.scale.rows = 128;
    return rows;
  }
};

constexpr auto kFloatX = float_x_impls<FloatOp>(
    "cuda/linear_fp8_float", "cuda/linear_fp8_float_input", "cuda/linear_fp8_float_any");

using Refusals = LinearQuantizedRefusals<kArgs>;

constexpr Impl kImpls[] = {
    slabs_impl<FloatOp>("cuda/linear_fp8_decoded"),
    few_rows_impl<FloatOp>("cuda/linear_fp8_128_rows"),
    hopper_impl<FloatOp>("cuda/linear_fp8_float_hopper"),
    mma_impl<FloatOp>("cuda/linear_fp8_gemv"),
    {.id = "cuda/linear_fp8_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_sm90,
     .run = run_sm90,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_fp8_slices",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_split_k,
     .run = run_split_k,
     .workspace = kSplitKLinearWorkspace},
    {.id = "cuda/linear_fp8_cublaslt",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_cublas,
     .run = run_by_cublas,
     .workspace = kLibraryLinearWorkspace},
    {.id = kClusters,
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_clusters,
     .run = run_clusters,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_fp8_portable",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_portable,
     .run = run_linear_portable,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_fp8_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::unfused,
     .run = run_unfused_on_cuda,
     .workspace = kUnfusedLibraryLinearWorkspace},
    {.id = "cuda/linear_fp8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::fallback,
     .run = run_fallback,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_fp8_codes",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::quantized_output,
     .run = run_with_quantized_output,
     .workspace = kLinearQuantizedOutputWorkspace},
    kFloatX[0],
    kFloatX[1],
    kFloatX[2],
};

[[maybe_unused]] const bool kAdvised =
    advise({spec.name, preferred_impl, plan_of_impl, WholeTiles::ways});

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_fp8
