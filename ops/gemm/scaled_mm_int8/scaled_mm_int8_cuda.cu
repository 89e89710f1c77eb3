// scaled_mm_int8 on CUDA.
// Map      cuda/scaled_mm_int8_hopper: tiles of 128 x 256, 192 or 128 by warpgroup instructions of
//          8-bit integers (ops/gemm/sm90/matmul_hopper.cuh), scales in the epilogue. packed: codes
//          that lie across k or off 16 bytes, copied first. portable: mma.sync, from sm_80 on
//          (ops/gemm/sm80/matmul_portable.cuh). _any: a thread a result
//          (ops/gemm/fallback/matmul_any.cuh). host: a launch of one thread puts the scale into the
//          workspace, then as by tensor. codes: the product, then the quantising op over it
//          (ops/quant/output/rule_codes.h).
// Traffic  a and b once from memory where a group of tiles fits the L2; out and residual once.
// Numerics sums exact in s32, which K up to 131071 cannot overflow; longer ones go to _any, whose
//          sums are s64. Then f32, one rounding.
// Measured H200, row scales to bf16: 1290 to 1425 TOP/s on six large shapes, 1.9 times
//          torch._int_mm and scaling, compiled (scaled_mm_int8.md).
#include "ops/gemm/gemv/matmul_few_rows.cuh"
#include "ops/gemm/scaled_mm_int8/scaled_mm_int8_host.h"
#include "ops/gemm/scaled_mm_int8/scaled_mm_int8_spec.h"
#include "ops/gemm/select/matmul_choice.cuh"
#include "ops/gemm/sm90/scaled_product.cuh"

namespace pestle::ops::scaled_mm_int8 {
namespace {

constexpr ScaledArgs kArgs{arg_index(spec, "a"),          arg_index(spec, "b"),
                           arg_index(spec, "scale_a"),    arg_index(spec, "scale_b"),
                           arg_index(spec, "out"),        arg_index(spec, "alpha"),
                           arg_index(spec, "granularity")};
constexpr int64_t kLongestSum = 131071;  // of products of up to 2^14 in an s32

std::string refuses_hopper(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (row_length(call.tensor(kArgs.a)) > kLongestSum)
    return "sums of more than 131071 products could overflow an s32";
  return refuse_scaled(call, kArgs);
}

using hopper::Product;
using hopper::Sum;

Status run_hopper(const Call& call) {
  Operands o;
  HopperJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  const char* name = "scaled_mm_int8_hopper";
  return job.epilogue.pairs
             ? start_tile<Product::kInt8, true, true, Sum::kDirect, true, true>(call, name, o, job)
             : start_tile<Product::kInt8, true, true, Sum::kDirect, true>(call, name, o, job);
}

std::string refuses_slices(const Call& call, const Machine& machine) {
  const std::string why = refuses_hopper(call, machine);
  Operands o;
  if (why.empty()) read_scaled(call, kArgs, &o);
  return refuse_slices(call, machine, why, o, ProductSums::kInteger);
}

Status run_slices(const Call& call) {
  Operands o;
  HopperJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  return start_tile<Product::kInt8, true, true, Sum::kDirect, true>(call, "scaled_mm_int8_slices",
                                                                    o, job, true);
}

std::string refuses_few_rows(const Call& call, const Machine& machine) {
  const std::string why = refuses_hopper(call, machine);
  return why.empty() ? refuse_few_scaled(call, kArgs) : why;
}

Status run_few_rows(const Call& call) {
  Operands o;
  HopperJob job{};
  PESTLE_TRY(read_and_fill(call, kArgs, &o, &job));
  return start_few_wide<FewKind::kInt8>(call, "scaled_mm_int8_few_rows", o, job.epilogue);
}

// cuBLASLt has no part in it: it gives sums in s32 alone, and scales and rounding would be a second
// pass over four times the bytes.
constexpr ProductIds kIds{"cuda/scaled_mm_int8_few_rows", "cuda/scaled_mm_int8_hopper", nullptr,
                          "cuda/scaled_mm_int8_slices"};

bool read_advised(const Call& call, const Machine& machine, AdvisedProduct* p) {
  Operands o;
  if (!refuses_hopper(call, machine).empty() || !read_scaled(call, kArgs, &o).empty()) return false;
  p->key = key_of(o, ProductSums::kInteger);
  p->means.few_rows = refuses_few_rows(call, machine).empty();
  p->means.slices = refuses_slices(call, machine).empty();
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
  HopperJob job{};
  PESTLE_TRY(fill_scaled(call, kArgs, o, &job));
  return start_tile<hopper::Product::kInt8, true, true, hopper::Sum::kDirect, true>(
      call, "scaled_mm_int8_packed_hopper", o, job);
}

Status run_any(const Call& call) { return run_any_scaled<int>(call, "scaled_mm_int8_any", kArgs); }

std::string refuses_any(const Call& call, const Machine&) {
  if (wants_late(call)) return refuse_late(call);
  return wants_codes(call) ? refuse_codes(call) : refuse_host_scale(call);
}

__global__ void put_scales(float* scales, float scale) {
  scales[0] = scale;
  scales[1] = 1;
}

std::string refuses_host(const Call& call, const Machine&) {
  if (wants_late(call)) return refuse_late(call);
  return wants_codes(call) ? refuse_codes(call) : refuse_device_scales(call);
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
     .refuses = refuses_few_rows,
     .run = run_few_rows},
    {.id = "cuda/scaled_mm_int8_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_hopper,
     .run = run_hopper},
    {.id = "cuda/scaled_mm_int8_slices",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_slices,
     .run = run_slices,
     .workspace = PESTLE_SLICE_BYTES("1")},
    {.id = "cuda/scaled_mm_int8_packed",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_packed,
     .run = run_packed,
     .workspace = kPackCodesWorkspace},
    {.id = "cuda/scaled_mm_int8_portable",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_portable,
     .run = run_scaled_portable},
    {.id = "cuda/scaled_mm_int8_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_late_scaled,
     .run = run_late_on_cuda,
     .workspace = kLateScaledWorkspace},
    {.id = "cuda/scaled_mm_int8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_any,
     .run = run_any},
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
     .run = run_with_codes,
     .workspace = kScaledCodesOutWorkspace},
};

[[maybe_unused]] const bool kAdvised = advise(ProductAdvice<kIds, read_advised>::of(spec.name));

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_int8
