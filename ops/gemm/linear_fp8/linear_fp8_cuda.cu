// linear_fp8 on CUDA, activations=row.
// Map      the kernels of quantize_fp8, then those of scaled_mm_fp8
//          (ops/gemm/linear/linear_codes.cuh). With input_act the codes are those of activation,
//          gated_activation or rms_norm. codes: the product, then the quantising op over it.
//          cublaslt: the product by cuBLASLt, where it is large and scaled_mm_fp8's would be.
// Traffic  x once, its codes once written and read, the weight and out once.
// Numerics the tensor cores add 128 products, f32 registers the rest (scaled_mm_fp8's accurate);
//          accumulation=fast: the tensor cores add all.
// Measured H200: 965 to 1070 TFLOP/s, quantising x included (linear_fp8.md); fast by cuBLASLt 1236
//          at 4608 x 12288 x 3072.
#include "formats/fp8.h"
#include "ops/gemm/linear/linear_codes.cuh"
#include "ops/gemm/linear_fp8/linear_fp8_spec.h"
#include "ops/gemm/select/matmul_choice.cuh"
#include "ops/quant/rowwise/fp8_scale_grid.h"

namespace pestle::ops::linear_fp8 {
namespace {

constexpr LinearCodesArgs kArgs{arg_index(spec, "x"),          arg_index(spec, "weight"),
                                arg_index(spec, "scale"),      arg_index(spec, "out"),
                                arg_index(spec, "alpha"),      arg_index(spec, "granularity"),
                                arg_index(spec, "activations")};

constexpr int kAccumulation = arg_index(spec, "accumulation");

std::string refuses_hopper(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (wants_pairs(call) && call.tensor(kArgs.weight).dtype != DType::kE4M3)
    return "gated: is for e4m3";
  return refuse_linear_codes(call, kArgs);
}

// Codes of the weight's dtype.
Status make_codes(const Call& call, CodedX* coded) {
  const TensorView& x = call.tensor(kArgs.x);
  const DType dtype = call.tensor(kArgs.weight).dtype;
  *coded = coded_x(call, x, dtype);
  return with_fp8(dtype, [&]<class F>(F) {
    return code_input<Fp8Code<F>>(call, "linear_fp8_codes", x, 0, *coded);
  });
}

template <hopper::Product kProduct>
Status start_product(const Call& call, const Operands& o, const HopperJob& job) {
  if (call.integer(kAccumulation) == 1)
    return start_tile<kProduct, true, true, hopper::Sum::kDirect, true>(call, "linear_fp8_hopper",
                                                                        o, job);
  return start_tile<kProduct, true, true, hopper::Sum::kPromoted, true>(call, "linear_fp8_hopper",
                                                                        o, job);
}

Status run_hopper(const Call& call) {
  CodedX coded;
  PESTLE_TRY(make_codes(call, &coded));
  Operands o;
  HopperJob job{};
  PESTLE_TRY(fill_linear(call, kArgs, coded, &o, &job));
  const bool e4m3 = o.b.dtype == DType::kE4M3;
  if (job.epilogue.pairs)
    return start_tile<hopper::Product::kE4m3, true, true, hopper::Sum::kPromoted, true, true>(
        call, "linear_fp8_hopper", o, job);
  if (!wants_late(call) && refuse_few_rows(o).empty()) {
    const char* name = "linear_fp8_few_rows";
    return e4m3 ? start_few_wide<FewKind::kE4m3>(call, name, o, job.epilogue)
                : start_few_wide<FewKind::kE5m2>(call, name, o, job.epilogue);
  }
  return e4m3 ? start_product<hopper::Product::kE4m3>(call, o, job)
              : start_product<hopper::Product::kE5m2>(call, o, job);
}

// ---- cuBLASLt, and which of the ways the product goes -------------------------------------------

ProductSums sums_of_call(const Call& call) {
  return call.integer(kAccumulation) == 1 ? ProductSums::kFast : ProductSums::kAccurate;
}

// Scales of x's rows lie in the workspace, at 256 bytes, and are none of them infinite where a
// row's codes are not NaN; the weight's are the caller's, one for all or one a row.
CublasEpilogue cublas_epilogue(const Call& call, const CodedX* coded) {
  CublasEpilogue e;
  if (call.has(kArgs.alpha + 1)) e.bias = &call.tensor(kArgs.alpha + 1);
  const TensorView& scale = call.tensor(kArgs.scale);
  e.scales = CublasScales::kRow;
  e.b.data = scale.as<float>();
  if (call.integer(kArgs.granularity) == 1) even_rows(scale, e.b.row);
  if (coded) e.a = {coded->scale.as<float>(), 1, 0, true};
  e.fast = sums_of_call(call) == ProductSums::kFast;
  return e;
}

std::string refuses_cublas(const Call& call, const Machine& machine) {
  if (wants_late(call)) return refuse_late(call);
  const std::string why = refuses_hopper(call, machine);
  if (!why.empty()) return why;
  const std::string epilogue = refuse_cublas_codes(call, kArgs.alpha);
  if (!epilogue.empty()) return epilogue;
  Operands o;
  read_linear(call, kArgs, &o);
  return refuse_cublas(o, cublas_epilogue(call, nullptr));
}

Status run_by_cublas(const Call& call) {
  CodedX coded;
  PESTLE_TRY(make_codes(call, &coded));
  Operands o;
  PESTLE_TRY(read_coded(call, kArgs, coded, &o));
  Call inner = call;
  inner.workspace = coded.rest;  // what input_act gave is done with
  return run_cublas(inner, "linear_fp8_cublaslt", o, cublas_epilogue(call, &coded),
                    algorithm_for(call, key_of(o, sums_of_call(call))));
}

// Few rows are taken by the same implementation as many.
constexpr ProductIds kIds{"cuda/linear_fp8_hopper", "cuda/linear_fp8_hopper",
                          "cuda/linear_fp8_cublaslt"};

// False: the product is none of Hopper's.
bool read_advised(const Call& call, const Machine& machine, AdvisedProduct* p) {
  Operands o;
  if (wants_pairs(call) || !refuses_hopper(call, machine).empty() ||
      !read_linear(call, kArgs, &o).empty())
    return false;
  p->key = key_of(o, sums_of_call(call));
  p->means.few_rows = !wants_late(call) && refuse_few_rows(o).empty();
  p->means.library = refuses_cublas(call, machine).empty();
  if (p->means.library)
    p->means.algorithms = cublas_algorithms(cublas_epilogue(call, nullptr).scales);
  fill_machine(call, machine, p);
  return true;
}

std::string refuses_portable(const Call& call, const Machine&) {
  return refuse_portable_linear(call, kArgs, call.tensor(kArgs.weight).dtype);
}

Status run_linear_portable(const Call& call) {
  CodedX coded;
  PESTLE_TRY(make_codes(call, &coded));
  return run_portable_linear(call, "linear_fp8_portable", kArgs, coded);
}

Status run_any(const Call& call) {
  if (numel(call.tensor(kArgs.out)) == 0) return {};
  CodedX coded;
  PESTLE_TRY(make_codes(call, &coded));
  return run_any_linear<float>(call, "linear_fp8_any", kArgs, coded);
}

using Refusals = LinearCodesRefusals<kArgs>;

constexpr Impl kImpls[] = {
    {.id = "cuda/linear_fp8_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_hopper,
     .run = run_hopper,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_fp8_cublaslt",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_cublas,
     .run = run_by_cublas,
     .workspace = kLibraryLinearWorkspace},
    {.id = "cuda/linear_fp8_portable",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_portable,
     .run = run_linear_portable,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_fp8_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::late,
     .run = run_late_on_cuda,
     .workspace = kLateLibraryLinearWorkspace},
    {.id = "cuda/linear_fp8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::any,
     .run = run_any,
     .workspace = kLinearInputWorkspace},
    {.id = "cuda/linear_fp8_codes",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = Refusals::out_codes,
     .run = run_with_codes,
     .workspace = kLinearCodesOutWorkspace},
};

[[maybe_unused]] const bool kAdvised = advise(ProductAdvice<kIds, read_advised>::of(spec.name));

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_fp8
