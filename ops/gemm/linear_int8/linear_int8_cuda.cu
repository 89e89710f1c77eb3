// linear_int8 on CUDA, activations=row.
// Map      the kernels of quantize_int8 (rotated, too), then those of scaled_mm_int8
//          (ops/gemm/linear/linear_codes.cuh). With input_act the codes are those of activation,
//          gated_activation or rms_norm. codes: the product, then the quantising op over it.
// Traffic  x once, its codes once written and read, the weight and out once.
// Numerics sums exact in s32 up to K = 131071 (_any: s64); then f32, one rounding.
// Measured H200: 1150 to 1371 TOP/s, rotated 1074 to 1328, quantising x included (linear_int8.md).
#include "ops/gemm/linear/linear_codes.cuh"
#include "ops/gemm/linear_int8/linear_int8_spec.h"
#include "ops/gemm/select/matmul_choice.cuh"

namespace pestle::ops::linear_int8 {
namespace {

constexpr LinearCodesArgs kArgs{arg_index(spec, "x"),          arg_index(spec, "weight"),
                                arg_index(spec, "scale"),      arg_index(spec, "out"),
                                arg_index(spec, "alpha"),      arg_index(spec, "granularity"),
                                arg_index(spec, "activations")};
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int64_t kLongestSum = 131071;  // of products of up to 2^14 in an s32

std::string refuses_hopper(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (input_columns(call) > kLongestSum)
    return "sums of more than 131071 products could overflow an s32";
  return refuse_linear_codes(call, kArgs);
}

Status make_codes(const Call& call, CodedX* coded) {
  const TensorView& x = call.tensor(kArgs.x);
  *coded = coded_x(call, x, DType::kI8);
  return code_input<Int8Code>(call, "linear_int8_codes", x, call.integer(kHadamard), *coded);
}

using hopper::Product;
using hopper::Sum;

Status run_hopper(const Call& call) {
  CodedX coded;
  PESTLE_TRY(make_codes(call, &coded));
  Operands o;
  HopperJob job{};
  PESTLE_TRY(fill_linear(call, kArgs, coded, &o, &job));
  if (!wants_late(call) && refuse_few_rows(o).empty())
    return start_few_wide<FewKind::kInt8>(call, "linear_int8_few_rows", o, job.epilogue);
  const char* name = "linear_int8_hopper";
  return job.epilogue.pairs
             ? start_tile<Product::kInt8, true, true, Sum::kDirect, true, true>(call, name, o, job)
             : start_tile<Product::kInt8, true, true, Sum::kDirect, true>(call, name, o, job);
}

std::string refuses_slices(const Call& call, const Machine& machine) {
  std::string why = refuses_hopper(call, machine);
  Operands o;
  if (why.empty()) read_linear(call, kArgs, &o);
  if (why.empty() && !wants_late(call) && refuse_few_rows(o).empty())
    why = "few rows have a kernel of their own";
  return refuse_slices(call, machine, why, o, ProductSums::kInteger);
}

Status run_slices(const Call& call) {
  CodedX coded;
  PESTLE_TRY(make_codes(call, &coded));
  Operands o;
  HopperJob job{};
  PESTLE_TRY(fill_linear(call, kArgs, coded, &o, &job));
  Call product = call;
  product.workspace = coded.rest;
  return start_tile<Product::kInt8, true, true, Sum::kDirect, true>(product, "linear_int8_slices",
                                                                    o, job, true);
}

std::string refuses_portable(const Call& call, const Machine&) {
  if (input_columns(call) > kLongestSum)
    return "sums of more than 131071 products could overflow an s32";
  return refuse_portable_linear(call, kArgs, DType::kI8);
}

Status run_linear_portable(const Call& call) {
  CodedX coded;
  PESTLE_TRY(make_codes(call, &coded));
  return run_portable_linear(call, "linear_int8_portable", kArgs, coded);
}

Status run_any(const Call& call) {
  if (numel(call.tensor(kArgs.out)) == 0) return {};
  CodedX coded;
  PESTLE_TRY(make_codes(call, &coded));
  return run_any_linear<int>(call, "linear_int8_any", kArgs, coded);
}

using Refusals = LinearCodesRefusals<kArgs>;

constexpr Impl kImpls[] = {
    {.id = "cuda/linear_int8_slices",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_slices,
     .run = run_slices,
     .workspace = kSlicedLinearWorkspace},
    {.id = "cuda/linear_int8_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_hopper,
     .run = run_hopper,
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
     .refuses = Refusals::late,
     .run = run_late_on_cuda,
     .workspace = kLateLinearWorkspace},
    {.id = "cuda/linear_int8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::any,
     .run = run_any,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_int8_codes",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::out_codes,
     .run = run_with_codes,
     .workspace = kLinearCodesOutWorkspace},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_int8
