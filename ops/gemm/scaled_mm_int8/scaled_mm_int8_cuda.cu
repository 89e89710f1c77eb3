// scaled_mm_int8 on CUDA: which implementations there are (chosen as matmul_cuda.cu's are).
// Map      cuda/scaled_mm_int8_few_rows: GEMV, up to 16 rows (ops/gemm/gemv/gemv_wgmma.cuh).
//          cuda/scaled_mm_int8_hopper: tiles of 128 x 256, 192 or 128 by wgmma of 8-bit integers
//          (ops/gemm/sm90/gemm_warp_specialized.cuh), scales in the epilogue. slices: the same, by
//          split-K where tiles leave much of a wave idle. packed: codes that lie across k or off 16
//          bytes, copied first. portable: mma.sync, from sm_80 on
//          (ops/gemm/sm80/gemm_portable.cuh). late: an extended epilogue, unfused
//          (ops/gemm/epilogue/unfused_epilogue.h). _any: a thread a result
//          (ops/gemm/fallback/gemm_fallback.cuh). host: a launch of one thread puts the scale into
//          the workspace, then as by tensor. codes: quantised output, the GEMM, then the quantising
//          op over it (ops/quant/output/quantize_after.h).
// Traffic  a and b once from memory where a group of tiles fits the L2; out and residual once.
// Numerics sums exact in s32, which K up to 131071 cannot overflow; longer ones go to _any, whose
//          sums are s64. Then f32, one rounding.
// Measured H200, row scales to bf16: 1290 to 1425 TOP/s on six large shapes, 1.9 times
//          torch._int_mm and scaling, compiled (scaled_mm_int8.md).
#include "ops/gemm/gemv/gemv_mma.cuh"
#include "ops/gemm/scaled_mm_int8/scaled_mm_int8_host.h"
#include "ops/gemm/scaled_mm_int8/scaled_mm_int8_spec.h"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm90/gemm_scaled.cuh"

namespace pestle::ops::scaled_mm_int8 {
namespace {

constexpr ScaledArgs kArgs{arg_index(spec, "a"),          arg_index(spec, "b"),
                           arg_index(spec, "scale_a"),    arg_index(spec, "scale_b"),
                           arg_index(spec, "out"),        arg_index(spec, "alpha"),
                           arg_index(spec, "granularity")};
constexpr int64_t kLongestSum = 131071;  // of products of up to 2^14 in an s32

std::string refuses_sm90(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (row_length(call.tensor(kArgs.a)) > kLongestSum)
    return "sums of more than 131071 products could overflow an s32";
  return refuse_scaled(call, kArgs);
}

using hopper::Sum;
using hopper::WgmmaType;

Status run_sm90(const Call& call) {
  Operands o;
  GemmJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  const char* name = "scaled_mm_int8_hopper";
  return job.epilogue.pairs
             ? start_tile<WgmmaType::kInt8, true, true, Sum::kDirect, true, true>(call, name, o,
                                                                                  job)
             : start_tile<WgmmaType::kInt8, true, true, Sum::kDirect, true>(call, name, o, job);
}

std::string refuses_split_k(const Call& call, const Machine& machine) {
  const std::string why = refuses_sm90(call, machine);
  Operands o;
  if (why.empty()) read_scaled(call, kArgs, &o);
  return refuse_split_k(call, machine, why, o, GemmSums::kInteger);
}

Status run_split_k(const Call& call) {
  Operands o;
  GemmJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  return start_tile<WgmmaType::kInt8, true, true, Sum::kDirect, true>(call, "scaled_mm_int8_slices",
                                                                      o, job, true);
}

std::string refuses_gemv(const Call& call, const Machine& machine) {
  const std::string why = refuses_sm90(call, machine);
  return why.empty() ? refuse_gemv_scaled(call, kArgs) : why;
}

Status run_gemv(const Call& call) {
  Operands o;
  GemmJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  return start_gemv_wgmma<GemvKind::kInt8>(call, "scaled_mm_int8_few_rows", o, job.epilogue);
}

// cuBLASLt has no part in it: it gives sums in s32 alone, and scales and rounding would be a second
// pass over four times the bytes.
constexpr GemmIds kIds{"cuda/scaled_mm_int8_few_rows", "cuda/scaled_mm_int8_hopper", nullptr,
                       "cuda/scaled_mm_int8_slices"};

bool read_advised(const Call& call, const Machine& machine, AdvisedGemm* p) {
  Operands o;
  if (!refuses_sm90(call, machine).empty() || !read_scaled(call, kArgs, &o).empty()) return false;
  p->key = key_of(o, GemmSums::kInteger);
  p->options.gemv = refuses_gemv(call, machine).empty();
  p->options.split_k = refuses_split_k(call, machine).empty();
  fill_machine(call, machine, p);
  return true;
}

std::string refuses_portable(const Call& call, const Machine&) {
  if (row_length(call.tensor(kArgs.a)) > kLongestSum)
    return "sums of more than 131071 products could overflow an s32";
  return refuse_portable_scaled(call, kArgs);
}

Status run_scaled_portable(const Call& call) {
  return run_portable_scaled(call, "scaled_mm_int8_portable", kArgs);
}

std::string refuses_packed(const Call& call, const Machine&) {
  if (row_length(call.tensor(kArgs.a)) > kLongestSum)
    return "sums of more than 131071 products could overflow an s32";
  return refuse_packed_scaled(call, kArgs);
}

Status run_packed(const Call& call) {
  Operands o;
  PESTLE_TRY(read_packed(call, "scaled_mm_int8_pack", kArgs, &o));
  if (!on_hopper(call))
    return start_portable_scaled(call, "scaled_mm_int8_packed_portable", kArgs, o);
  GemmJob job{};
  PESTLE_TRY(fill_scaled(call, kArgs, o, &job));
  return start_tile<hopper::WgmmaType::kInt8, true, true, hopper::Sum::kDirect, true>(
      call, "scaled_mm_int8_packed_hopper", o, job);
}

Status run_fallback(const Call& call) {
  return run_fallback_scaled<int>(call, "scaled_mm_int8_any", kArgs);
}

std::string refuses_fallback(const Call& call, const Machine&) {
  if (wants_extended(call)) return refuse_extended(call);
  return wants_quantized_output(call) ? refuse_quantized_output(call) : refuse_host_scale(call);
}

__global__ void put_scales(float* scales, float scale) {
  scales[0] = scale;
  scales[1] = 1;
}

std::string refuses_host(const Call& call, const Machine&) {
  if (wants_extended(call)) return refuse_extended(call);
  return wants_quantized_output(call) ? refuse_quantized_output(call) : refuse_device_scales(call);
}

Status run_host(const Call& call) {
  if (numel(call.tensor(kArgs.out)) == 0) return {};
  float* scales = host_scale_memory(call);
  PESTLE_TRY(cuda::launch(call, "scaled_mm_int8_host", {1, 1}, put_scales, scales,
                          call.number(kHostScale)));
  return run_with_scales(call, scales);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/scaled_mm_int8_few_rows",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_gemv,
     .run = run_gemv},
    {.id = "cuda/scaled_mm_int8_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_sm90,
     .run = run_sm90},
    {.id = "cuda/scaled_mm_int8_slices",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_split_k,
     .run = run_split_k,
     .workspace = PESTLE_SPLIT_K_BYTES("1")},
    {.id = "cuda/scaled_mm_int8_packed",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_packed,
     .run = run_packed,
     .workspace = kPackQuantizedWorkspace},
    {.id = "cuda/scaled_mm_int8_portable",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_portable,
     .run = run_scaled_portable},
    {.id = "cuda/scaled_mm_int8_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_unfused_scaled,
     .run = run_unfused_on_cuda,
     .workspace = kUnfusedScaledWorkspace},
    {.id = "cuda/scaled_mm_int8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_fallback,
     .run = run_fallback},
    {.id = "cuda/scaled_mm_int8_host",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_host,
     .run = run_host,
     .workspace = "512 + numel(a) + numel(b) + 16*(M + 2*K + N) + 1024"},
    {.id = "cuda/scaled_mm_int8_codes",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = kScaledQuantizedOutputWorkspace},
};

[[maybe_unused]] const bool kAdvised = advise(GemmAdvice<kIds, read_advised>::of(spec.name));

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_int8
