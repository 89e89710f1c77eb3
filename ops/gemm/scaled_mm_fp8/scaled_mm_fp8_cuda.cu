// scaled_mm_fp8 on CUDA: which implementations there are (chosen as matmul_cuda.cu's are).
// Map      cuda/scaled_mm_fp8_few_rows: GEMV, up to 16 rows (ops/gemm/gemv).
//          cuda/scaled_mm_fp8_hopper: tiles of 128 x 256, 192 or 128 by wgmma of 8-bit floats
//          (ops/gemm/sm90/gemm_warp_specialized.cuh), scales of tensors and rows in the epilogue,
//          of blocks on the sums of each 128 of k. slices: the same, by split-K where tiles leave
//          much of a wave idle. cublaslt: large GEMMs without an epilogue but a bias, where
//          cuBLASLt is found (ops/gemm/cublaslt/gemm_cublaslt.h). packed: codes that lie across k
//          or off 16 bytes, copied first. portable: mma.sync of codes as f16, from sm_80 on, and
//          accumulation=f32 (ops/gemm/sm80/gemm_portable.cuh). late: an extended epilogue, unfused
//          (ops/gemm/epilogue/unfused_epilogue.h). _any: a thread a result
//          (ops/gemm/fallback/gemm_fallback.cuh). codes: quantised output, the GEMM, then the
//          quantising op over it (ops/quant/output/quantize_after.h).
// Traffic  a and b once from memory where a group of tiles fits the L2; out and residual once.
// Numerics accumulation=accurate: the tensor cores add 128 products, with 13 bits behind the
//          largest term, f32 registers the rest (cuBLASLt 13.1, too: measured). fast: the tensor
//          cores add all. f32: codes as f16, by few_rows, portable and _any. (docs/formats/fp8.md)
// Measured H200: fast 1070 to 1230 TFLOP/s, accurate 970 to 1130, blocks 800 to 930: 0.86 to 0.98
//          of torch._scaled_mm by tensor, 0.78 to 0.90 by row (scaled_mm_fp8.md).
//          cublaslt, 4608 x 12288 x 3072: 279 us fast, 317 accurate, 0.96 to 1.04 of torch.
#include "ops/gemm/gemv/gemv_mma.cuh"
#include "ops/gemm/scaled_mm_fp8/scaled_mm_fp8_spec.h"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm90/gemm_scaled.cuh"

namespace pestle::ops::scaled_mm_fp8 {
namespace {

constexpr ScaledArgs kArgs{arg_index(spec, "a"),          arg_index(spec, "b"),
                           arg_index(spec, "scale_a"),    arg_index(spec, "scale_b"),
                           arg_index(spec, "out"),        arg_index(spec, "alpha"),
                           arg_index(spec, "granularity")};
constexpr int kAccumulation = arg_index(spec, "accumulation");
enum class Accumulation : int64_t { kAccurate, kFast, kF32 };

Accumulation accumulation_of(const Call& call) {
  return static_cast<Accumulation>(call.integer(kAccumulation));
}

std::string refuses_sm90(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (accumulation_of(call) == Accumulation::kF32)
    return "accumulation=f32: the tensor cores' sums of 8-bit floats keep 13 bits";
  if (wants_pairs(call) &&
      (call.tensor(kArgs.a).dtype != DType::kE4M3 || call.tensor(kArgs.b).dtype != DType::kE4M3))
    return "gated: is for e4m3";
  return refuse_scaled(call, kArgs);
}

using hopper::Sum;
using hopper::WgmmaType;

template <WgmmaType kWgmma>
Status start_gemm(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                  bool split_k) {
  if (granularity_of(call, kArgs) == Granularity::kBlock)
    return start_tile<kWgmma, true, true, Sum::kBlocks>(call, name, o, job, split_k);
  if (accumulation_of(call) == Accumulation::kFast)
    return start_tile<kWgmma, true, true, Sum::kDirect, true>(call, name, o, job, split_k);
  return start_tile<kWgmma, true, true, Sum::kPromoted, true>(call, name, o, job, split_k);
}

Status start_pairs(const Call& call, const char* name, const Operands& o, const GemmJob& job) {
  using enum WgmmaType;
  if (accumulation_of(call) == Accumulation::kFast)
    return start_tile<kE4m3, true, true, Sum::kDirect, true, true>(call, name, o, job);
  return start_tile<kE4m3, true, true, Sum::kPromoted, true, true>(call, name, o, job);
}

Status start_scaled(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                    bool split_k = false) {
  if (job.epilogue.pairs) return start_pairs(call, name, o, job);
  const bool a = o.a.dtype == DType::kE4M3, b = o.b.dtype == DType::kE4M3;
  if (a) {
    return b ? start_gemm<WgmmaType::kE4m3>(call, name, o, job, split_k)
             : start_gemm<WgmmaType::kE4m3E5m2>(call, name, o, job, split_k);
  }
  return b ? start_gemm<WgmmaType::kE5m2E4m3>(call, name, o, job, split_k)
           : start_gemm<WgmmaType::kE5m2>(call, name, o, job, split_k);
}

Status run_sm90(const Call& call) {
  Operands o;
  GemmJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  return start_scaled(call, "scaled_mm_fp8_hopper", o, job);
}

GemmSums sums_of_call(const Call& call) {
  if (granularity_of(call, kArgs) == Granularity::kBlock) return GemmSums::kBlocks;
  return accumulation_of(call) == Accumulation::kFast ? GemmSums::kFast : GemmSums::kAccurate;
}

std::string refuses_split_k(const Call& call, const Machine& machine) {
  const std::string why = refuses_sm90(call, machine);
  Operands o;
  if (why.empty()) read_scaled(call, kArgs, &o);
  return refuse_split_k(call, machine, why, o, sums_of_call(call));
}

Status run_split_k(const Call& call) {
  Operands o;
  GemmJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  return start_scaled(call, "scaled_mm_fp8_slices", o, job, true);
}

// Codes become f16 there where accumulation=f32 or a has few rows of few columns: sums are f32's.
std::string refuses_gemv(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (granularity_of(call, kArgs) == Granularity::kBlock) return "takes no scales of blocks";
  const std::string why = refuse_scaled(call, kArgs);
  return why.empty() ? refuse_gemv_scaled(call, kArgs) : why;
}

Status run_gemv(const Call& call) {
  Operands o;
  GemmJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  const char* name = "scaled_mm_fp8_few_rows";
  const bool b = o.b.dtype == DType::kE4M3;
  const bool f32 = accumulation_of(call) == Accumulation::kF32;
  if (o.a.dtype == DType::kE4M3) {
    return b ? start_gemv_mma<GemvKind::kE4m3>(call, name, o, job.epilogue, f32)
             : start_gemv_mma<GemvKind::kE4m3E5m2>(call, name, o, job.epilogue, f32);
  }
  return b ? start_gemv_mma<GemvKind::kE5m2E4m3>(call, name, o, job.epilogue, f32)
           : start_gemv_mma<GemvKind::kE5m2>(call, name, o, job.epilogue, f32);
}

// ---- cuBLASLt, and which path a GEMM takes ------------------------------------------------------

CublasEpilogue cublas_epilogue(const Call& call) {
  CublasEpilogue e;
  if (call.has(kArgs.alpha + 1)) e.bias = &call.tensor(kArgs.alpha + 1);
  const TensorView& a = call.tensor(kArgs.scale_a);
  const TensorView& b = call.tensor(kArgs.scale_b);
  const Granularity granularity = granularity_of(call, kArgs);
  e.scales = granularity == Granularity::kTensor ? CublasScales::kTensor
             : granularity == Granularity::kRow  ? CublasScales::kRow
                                                 : CublasScales::kBlock;
  e.a = {a.as<float>(), 0, 1};
  e.b = {b.as<float>(), 0, 1};
  if (granularity != Granularity::kTensor) {
    even_rows(a, e.a.row);
    even_rows(b, e.b.row);
  }
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
  read_scaled(call, kArgs, &o);
  return refuse_cublas(o, cublas_epilogue(call));
}

Status run_by_cublas(const Call& call) {
  Operands o;
  const std::string why = read_scaled(call, kArgs, &o);
  if (!why.empty()) return unsupported(why);
  return run_cublas(call, "scaled_mm_fp8_cublaslt", o, cublas_epilogue(call),
                    algorithm_for(call, key_of(o, sums_of_call(call))));
}

// The unfused epilogue of a GEMM that may be cuBLASLt's.
constexpr const char* kUnfusedLibraryWorkspace =
    PESTLE_UNFUSED_SCALED_BYTES " + " PESTLE_CUBLAS_SCALED_BYTES;

constexpr GemmIds kIds{"cuda/scaled_mm_fp8_few_rows", "cuda/scaled_mm_fp8_hopper",
                       "cuda/scaled_mm_fp8_cublaslt", "cuda/scaled_mm_fp8_slices"};

// False: the GEMM is none of sm_90's.
bool read_advised(const Call& call, const Machine& machine, AdvisedGemm* p) {
  Operands o;
  if (!refuses_sm90(call, machine).empty() || !read_scaled(call, kArgs, &o).empty()) return false;
  p->key = key_of(o, sums_of_call(call));
  p->options.gemv = refuses_gemv(call, machine).empty();
  p->options.split_k = refuses_split_k(call, machine).empty();
  p->options.library = refuses_cublas(call, machine).empty();
  if (p->options.library) p->options.algorithms = cublas_algorithms(cublas_epilogue(call).scales);
  fill_machine(call, machine, p);
  return true;
}

std::string refuses_portable(const Call& call, const Machine&) {
  return refuse_portable_scaled(call, kArgs);
}

Status run_scaled_portable(const Call& call) {
  return run_portable_scaled(call, "scaled_mm_fp8_portable", kArgs);
}

std::string refuses_packed(const Call& call, const Machine&) {
  const bool blocks = granularity_of(call, kArgs) == Granularity::kBlock;
  if (blocks && accumulation_of(call) == Accumulation::kF32)
    return "accumulation=f32: the tensor cores' sums of 8-bit floats keep 13 bits";
  return refuse_packed_scaled(call, kArgs);
}

Status run_packed(const Call& call) {
  Operands o;
  PESTLE_TRY(read_packed(call, "scaled_mm_fp8_pack", kArgs, &o));
  if (!on_hopper(call) || accumulation_of(call) == Accumulation::kF32)
    return start_portable_scaled(call, "scaled_mm_fp8_packed_portable", kArgs, o);
  GemmJob job{};
  PESTLE_TRY(fill_scaled(call, kArgs, o, &job));
  return start_scaled(call, "scaled_mm_fp8_packed_hopper", o, job);
}

Status run_fallback(const Call& call) {
  return run_fallback_scaled<float>(call, "scaled_mm_fp8_any", kArgs);
}

std::string refuses_fallback(const Call& call, const Machine&) {
  return wants_extended(call) ? refuse_extended(call) : refuse_quantized_output(call);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/scaled_mm_fp8_few_rows",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_gemv,
     .run = run_gemv},
    {.id = "cuda/scaled_mm_fp8_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_sm90,
     .run = run_sm90},
    {.id = "cuda/scaled_mm_fp8_slices",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_split_k,
     .run = run_split_k,
     .workspace = PESTLE_SPLIT_K_BYTES("1")},
    {.id = "cuda/scaled_mm_fp8_cublaslt",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_cublas,
     .run = run_by_cublas,
     .workspace = kCublasScaledWorkspace},
    {.id = "cuda/scaled_mm_fp8_packed",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_packed,
     .run = run_packed,
     .workspace = kPackQuantizedWorkspace},
    {.id = "cuda/scaled_mm_fp8_portable",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_portable,
     .run = run_scaled_portable},
    {.id = "cuda/scaled_mm_fp8_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_unfused_scaled,
     .run = run_unfused_on_cuda,
     .workspace = kUnfusedLibraryWorkspace},
    {.id = "cuda/scaled_mm_fp8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_fallback,
     .run = run_fallback},
    {.id = "cuda/scaled_mm_fp8_codes",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = kScaledQuantizedOutputWorkspace},
};

[[maybe_unused]] const bool kAdvised = advise(GemmAdvice<kIds, read_advised>::of(spec.name));

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_fp8
