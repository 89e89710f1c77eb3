// matmul on CUDA: which implementations there are. gemm_choice.h and `pestle tune` choose among
// those for 16-bit operands on sm_90; else the first that takes the call.
// Map      cuda/matmul_few_rows: GEMV, up to 16 rows (ops/gemm/gemv/gemv_wgmma.cuh).
//          cuda/matmul_hopper: warp-specialised, tiles of 128 x 256, 192 or 128
//          (ops/gemm/sm90/gemm_warp_specialized.cuh), each operand along k or across it.
//          cuda/matmul_slices: the same, by split-K where tiles leave much of a wave idle.
//          cuda/matmul_cublaslt: cuBLASLt, where the process has it and it was measured to be
//          faster (ops/gemm/cublaslt/gemm_cublaslt.h).
//          cuda/matmul_split, cuda/matmul_split_bf16: f32 by narrow parts
//          (ops/gemm/split_f32/gemm_split_f32.cuh).
//          cuda/matmul_packed: copies operands that TMA refuses, then as above or below.
//          cuda/matmul_portable: mma.sync, every GPU from sm_80 on; on sm_90 odd K, strides and
//          offsets that TMA refuses, and 8-bit floats (ops/gemm/sm80/gemm_portable.cuh).
//          cuda/matmul_late: extended epilogues that the kernel can't fuse, over the GEMM in f32
//          (ops/gemm/epilogue/unfused_epilogue.h). cuda/matmul_any: a thread a result, any strides
//          and dtypes (ops/gemm/fallback/gemm_fallback.cuh). cuda/matmul_codes: quantised output,
//          the GEMM, then the quantising op over it (ops/quant/output/quantize_after.h).
// Traffic  a and b once from memory where a group of tiles fits the L2; out and residual once.
// Numerics f32 sums along k in one order; the tensor cores truncate what falls below the sum's
//          last bit. Epilogue in f32, one rounding.
// Measured H200, bf16 and f16, eight large shapes sustained: 0.979 of the best of torch.matmul and
//          cuBLASLt's eight (geomean), as dispatched 1.00; 4608 x 12288 x 3072 550 us by tiles,
//          bias + gelu_tanh + residual 553, with gelu 549 (matmul.md).
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/fallback/gemm_fallback.cuh"
#include "ops/gemm/gemv/gemv_mma.cuh"
#include "ops/gemm/matmul/matmul_spec.h"
#include "ops/gemm/operands/gemm_pack.h"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm80/gemm_portable.h"
#include "ops/gemm/sm90/gemm_dense.cuh"
#include "ops/gemm/split_f32/gemm_split_f32.cuh"

namespace pestle::ops::matmul {
namespace {

using namespace pestle::cuda;

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kAlpha = arg_index(spec, "alpha");
constexpr int kBias = arg_index(spec, "bias");
constexpr int kResidual = arg_index(spec, "residual");
constexpr int kActivation = arg_index(spec, "activation");
constexpr int kPrecision = arg_index(spec, "precision");
constexpr int kOutFormat = arg_index(spec, "out_format");

FallbackGemm fallback_gemm(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  FallbackGemm job;
  job.a = AnyTensor(call.tensor(kA));
  job.b = AnyTensor(call.tensor(kB));
  job.m = out.shape[out.rank - 2];
  job.n = out.shape[out.rank - 1];
  job.k = call.tensor(kA).shape[out.rank - 1];
  return job;
}

Status run_fallback(const Call& call) {
  return run_fallback_gemm<float>(call, "matmul_any", kOut, kAlpha, fallback_gemm(call));
}

std::string read_operands(const Call& call, Operands* o) {
  if (call.integer(kOutFormat) != 0) return refuse_quantized_output(call);
  if (!make_stack(call.tensor(kA), &o->a) || !make_stack(call.tensor(kB), &o->b) ||
      !make_stack(call.tensor(kOut), &o->out))
    return "the leading dimensions of a, b or out are not evenly spaced";
  if (call.has(kResidual) && !make_stack(call.tensor(kResidual), &o->residual))
    return "the leading dimensions of residual are not evenly spaced";
  o->a_along_k = lies_along_k(o->a, true);
  o->b_along_k = lies_along_k(o->b, false);
  return "";
}

std::string refuses_sm90(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  const TensorView& a = call.tensor(kA);
  const TensorView& b = call.tensor(kB);
  if (a.dtype != b.dtype || (a.dtype != DType::kBF16 && a.dtype != DType::kF16))
    return "a and b must both be bf16 or both f16";
  Operands o;
  std::string why = read_operands(call, &o);
  if (why.empty()) why = refuse_operands(o);
  if (why.empty()) why = refuse_extended_parts(call, kAlpha, o, false);
  return why.empty() ? refuse_misaligned(call, {kOut, kBias, kResidual, kAlpha}) : why;
}

std::string refuses_gemv(const Call& call, const Machine& machine) {
  if (wants_extended(call)) return refuse_extended(call);
  const std::string why = refuses_sm90(call, machine);
  if (!why.empty()) return why;
  Operands o;
  read_operands(call, &o);
  return refuse_gemv(o);
}

Status run_gemv(const Call& call) {
  Operands o;
  const std::string why = read_operands(call, &o);
  if (!why.empty()) return unsupported(why);
  hopper::EpilogueArguments e;
  PESTLE_TRY(fill_epilogue(call, kAlpha, o, &e));
  return o.a.dtype == DType::kBF16
             ? start_gemv_wgmma<GemvKind::kBf16>(call, "matmul_few_rows", o, e)
             : start_gemv_wgmma<GemvKind::kF16>(call, "matmul_few_rows", o, e);
}

Status start_float(const Call& call, const char* name, const Operands& o, bool split_k = false) {
  GemmJob job{};
  PESTLE_TRY(fill_epilogue(call, kAlpha, o, &job.epilogue));
  return start_dense_gemm(call, name, o, job, split_k);
}

Status run_sm90(const Call& call) {
  Operands o;
  const std::string why = read_operands(call, &o);
  if (!why.empty()) return unsupported(why);
  return start_float(call, "matmul_hopper", o);
}

std::string refuses_split_k(const Call& call, const Machine& machine) {
  const std::string why = refuses_sm90(call, machine);
  Operands o;
  if (why.empty()) read_operands(call, &o);
  return refuse_split_k(call, machine, why, o, GemmSums::kF32);
}

Status run_split_k(const Call& call) {
  Operands o;
  const std::string why = read_operands(call, &o);
  if (!why.empty()) return unsupported(why);
  return start_float(call, "matmul_slices", o, true);
}

// ---- cuBLASLt, and which path a GEMM of 16-bit floats takes ------------------------------------

CublasEpilogue cublas_epilogue(const Call& call, const Operands& o) {
  CublasEpilogue e;
  if (call.has(kBias)) e.bias = &call.tensor(kBias);
  if (call.has(kResidual)) e.residual = &o.residual;
  return e;
}

std::string refuses_cublas(const Call& call, const Machine& machine) {
  if (wants_extended(call)) return refuse_extended(call);
  const std::string why = refuses_sm90(call, machine);
  if (!why.empty()) return why;
  if (call.integer(kActivation) != 0) return "cuBLASLt has not the contract's activations";
  if (call.has(kAlpha)) return "takes no alpha";
  Operands o;
  read_operands(call, &o);
  return refuse_cublas(o, cublas_epilogue(call, o));
}

Status run_by_cublas(const Call& call) {
  Operands o;
  const std::string why = read_operands(call, &o);
  if (!why.empty()) return unsupported(why);
  return run_cublas(call, "matmul_cublaslt", o, cublas_epilogue(call, o),
                    algorithm_for(call, key_of(o, GemmSums::kF32)));
}

constexpr GemmIds kIds{"cuda/matmul_few_rows", "cuda/matmul_hopper", "cuda/matmul_cublaslt",
                       "cuda/matmul_slices"};

// False: the GEMM is none of sm_90's 16-bit ones, or of pairs, which have one path alone.
bool read_advised(const Call& call, const Machine& machine, AdvisedGemm* p) {
  if (wants_pairs(call) || !refuses_sm90(call, machine).empty()) return false;
  Operands o;
  read_operands(call, &o);
  p->key = key_of(o, GemmSums::kF32);
  p->options.gemv = refuses_gemv(call, machine).empty();
  p->options.split_k = refuses_split_k(call, machine).empty();
  p->options.library = refuses_cublas(call, machine).empty();
  fill_machine(call, machine, p);
  return true;
}

std::string refuses_portable(const Call& call, const Machine&) {
  if (wants_extended(call)) return refuse_extended(call);
  Operands o;
  std::string why = read_operands(call, &o);
  if (why.empty()) why = refuse_portable(o);
  return why.empty() ? refuse_misaligned(call, {kOut, kBias, kResidual, kAlpha}) : why;
}

Status run_matmul_portable(const Call& call) {
  Operands o;
  const std::string why = read_operands(call, &o);
  if (!why.empty()) return unsupported(why);
  hopper::EpilogueArguments e;
  fill_epilogue_values(call, kAlpha, o, &e);
  return run_portable(call, "matmul_portable", o, e);
}

// Copies of the operands that no fast kernel could read as they lie, then the GPU's fastest one.
std::string refuses_packed(const Call& call, const Machine& machine) {
  const std::string why = refuses_portable(call, machine);
  if (!why.empty()) return why;
  Operands o;
  read_operands(call, &o);
  return refuse_packing(o);
}

Status run_packed(const Call& call) {
  Operands o;
  const std::string why = read_operands(call, &o);
  if (!why.empty()) return unsupported(why);
  PESTLE_TRY(pack_operands(call, "matmul_pack", &o));
  const bool halves = o.a.dtype == DType::kBF16 || o.a.dtype == DType::kF16;
  if (halves && on_hopper(call) && refuse_operands(o).empty())
    return start_float(call, "matmul_packed_hopper", o);
  hopper::EpilogueArguments e;
  fill_epilogue_values(call, kAlpha, o, &e);
  return run_portable(call, "matmul_packed_portable", o, e);
}

std::string refuses_fallback(const Call& call, const Machine&) {
  return wants_extended(call) ? refuse_extended(call) : refuse_quantized_output(call);
}

// What the unfused epilogue is for.
std::string refuses_unfused(const Call& call, const Machine& machine) {
  const std::string why = refuse_quantized_output(call);
  return why.empty() ? refuse_without_extended(call, machine) : why;
}

// The f32 output, and what the GEMM's kernels need (packed operands, parts of f32).
constexpr const char* kUnfusedWorkspace =
    "4*B*M*N + 6*(numel(a) + numel(b) + 16*B*(M + 2*K + N)) + 12*(M + N) + 8192 "
    "+ " PESTLE_CUBLAS_BYTES;

// Out in the workspace as bf16, what the GEMM needs (packed operands, parts of f32), what the
// quantiser needs (a maximum for each scale).
constexpr const char* kQuantizedOutputWorkspace =
    "if(keep_out, 0, 2*B*M*N) + if(gated == none && !has(gate) && !has(beta), 0, 4*B*M*N) + "
    "6*(numel(a) + numel(b) + 16*B*(M + 2*K + N)) + 12*(M + N) + "
    "4*B*M*(cdiv(N,128) + 1) + 9216 + " PESTLE_UNFUSED_GEMM_BYTES;

// ---- f32 by parts ----

std::string refuses_split_f32(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (wants_extended(call)) return refuse_extended(call);
  Operands o;
  std::string why = read_operands(call, &o);
  if (why.empty()) why = refuse_split_f32(o);
  return why.empty() ? refuse_misaligned(call, {kA, kB, kOut, kBias, kResidual, kAlpha}) : why;
}

// One matrix of a batch after the other, in the same workspace.
Status run_split_f32(const Call& call, SplitF32Parts how) {
  Operands all;
  const std::string why = read_operands(call, &all);
  if (!why.empty()) return unsupported(why);
  FallbackGemm plain = fallback_gemm(call);
  fill_fallback_gemm(call, kOut, kAlpha, &plain);
  for (int64_t i = 0; i < all.out.batches; ++i) {
    Operands o = all;
    for (Stack* s : {&o.a, &o.b, &o.out, &o.residual}) *s = matrix_of(*s, i);
    hopper::EpilogueArguments e;
    PESTLE_TRY(fill_epilogue(call, kAlpha, o, &e));
    PESTLE_TRY(start_split_f32_gemm(call, "matmul_split", o, e, how, plain, i));
  }
  return {};
}

Status run_split_f32(const Call& call) {
  return run_split_f32(
      call, call.integer(kPrecision) == 1 ? SplitF32Parts::kOnePart : SplitF32Parts::kExact);
}
Status run_split_f32_bf16(const Call& call) { return run_split_f32(call, SplitF32Parts::kBf16); }

constexpr Impl kImpls[] = {
    {.id = "cuda/matmul_few_rows",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_gemv,
     .run = run_gemv},
    {.id = "cuda/matmul_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_sm90,
     .run = run_sm90},
    {.id = "cuda/matmul_slices",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_split_k,
     .run = run_split_k,
     .workspace = PESTLE_SPLIT_K_BYTES("B")},
    {.id = "cuda/matmul_cublaslt",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_cublas,
     .run = run_by_cublas,
     .workspace = kCublasWorkspace},
    {.id = "cuda/matmul_split",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_split_f32,
     .run = run_split_f32,
     .workspace = kSplitF32Workspace},
    // What matmul_split does for values out of the range of f16 parts, to be timed and checked.
    {.id = "cuda/matmul_split_bf16",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_split_f32,
     .run = run_split_f32_bf16,
     .workspace = kSplitF32Workspace},
    {.id = "cuda/matmul_packed",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_packed,
     .run = run_packed,
     .workspace = kPackWorkspace},
    {.id = "cuda/matmul_portable",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_portable,
     .run = run_matmul_portable},
    {.id = "cuda/matmul_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_unfused,
     .run = run_unfused_on_cuda,
     .workspace = kUnfusedWorkspace},
    {.id = "cuda/matmul_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_fallback,
     .run = run_fallback},
    {.id = "cuda/matmul_codes",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = kQuantizedOutputWorkspace},
};

[[maybe_unused]] const bool kAdvised = advise(GemmAdvice<kIds, read_advised>::of(spec.name));

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::matmul
