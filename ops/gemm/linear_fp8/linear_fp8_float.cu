// linear_fp8 on CUDA, activations=float, with FP8 codes whose scales are the epilogue's, or of blocks of
// 128 columns: GEMV (up to 16 rows of x) by ops/gemm/gemv/gemv_weight_mma.cuh, more rows by
// few_rows.cuh, many_rows_hopper.cuh or many_rows.cuh of ops/gemm/weight_only, very many by slab_launch.cuh.
// Measured H200, 14336 x 4096, 1, 4 and 16 rows: 27, 29 and 44 us. H100, 4608 x 12288 x 3072: 1,486.
#include "ops/gemm/linear_fp8/linear_fp8_float.h"
#include "ops/gemm/linear_fp8/linear_fp8_spec.h"
#include "ops/gemm/weight_only/byte_formats.cuh"
#include "ops/gemm/weight_only/few_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_launch.cuh"

namespace pestle::ops::linear_fp8 {
namespace {

constexpr WeightOnlyArgs kArgs{arg_index(spec, "x"), arg_index(spec, "weight"),
                               arg_index(spec, "out"), arg_index(spec, "alpha")};

// of_rows(scale), or of_blocks(scale, rows of the weight that share one) of 128 columns.
template <class OfRows, class OfBlocks>
Status by_scales(const Call& call, const OfRows& of_rows, const OfBlocks& of_blocks) {
  const TensorView& scale = call.tensor(arg_index(spec, "scale"));
  if (!scales_are_of_blocks(call)) return of_rows(scale);
  return of_blocks(scale, label_of(call, "granularity") == "block_128x128" ? 128 : 1);
}

template <many_rows::ByteCode kCode>
Status run(const Call& call, const TensorView& x) {
  const char* name = "linear_fp8_float";
  return by_scales(
      call, [&](auto& scale) { return run_row_bytes<kCode>(call, name, kArgs, x, scale); },
      [&](auto& scale, int rows) {
        return run_group_bytes<kCode>(call, name, kArgs, x, scale, rows, 128);
      });
}

template <many_rows::ByteCode kCode>
Status run_hopper(const Call& call) {
  const char* name = "linear_fp8_float_hopper";
  return by_scales(
      call, [&](auto& scale) { return run_row_bytes_hopper<kCode>(call, name, kArgs, scale); },
      [&](auto& scale, int rows) {
        return run_group_bytes_hopper<kCode>(call, name, kArgs, scale, rows, 128);
      });
}

}  // namespace

bool scales_are_of_blocks(const Call& call) {
  const std::string_view granularity = label_of(call, "granularity");
  return granularity != "tensor" && granularity != "row";
}

Status run_float_hopper(const Call& call) {
  return call.tensor(kArgs.weight).dtype == DType::kE5M2
             ? run_hopper<many_rows::ByteCode::kE5m2>(call)
             : run_hopper<many_rows::ByteCode::kE4m3>(call);
}

Status run_float_slabs(const Call& call) {
  const char* name = "linear_fp8_decoded";
  const TensorView& scale = call.tensor(arg_index(spec, "scale"));
  return call.tensor(kArgs.weight).dtype == DType::kE5M2
             ? run_row_bytes_slabs<many_rows::ByteCode::kE5m2>(call, name, kArgs, scale)
             : run_row_bytes_slabs<many_rows::ByteCode::kE4m3>(call, name, kArgs, scale);
}

Status run_float_gemv(const Call& call) {
  constexpr auto kCode = many_rows::ByteCode::kE4m3;
  const char* name = "linear_fp8_gemv";
  return by_scales(
      call, [&](auto& scale) { return run_row_bytes_gemv<kCode>(call, name, kArgs, scale); },
      [&](auto& scale, int rows) {
        return run_group_bytes_gemv<kCode>(call, name, kArgs, scale, rows, 128);
      });
}

Status run_float_few(const Call& call) {
  constexpr auto kCode = many_rows::ByteCode::kE4m3;
  const char* name = "linear_fp8_128_rows";
  return by_scales(
      call, [&](auto& scale) { return run_row_bytes_few<kCode>(call, name, kArgs, scale); },
      [&](auto& scale, int rows) {
        return run_group_bytes_few<kCode>(call, name, kArgs, scale, rows, 128);
      });
}

Status run_float_x(const Call& call, const TensorView& x) {
  return call.tensor(kArgs.weight).dtype == DType::kE5M2 ? run<many_rows::ByteCode::kE5m2>(call, x)
                                                         : run<many_rows::ByteCode::kE4m3>(call, x);
}

}  // namespace pestle::ops::linear_fp8
