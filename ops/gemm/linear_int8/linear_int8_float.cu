// linear_int8 on CUDA, activations=float, with INT8 codes whose scales are the epilogue's, or of groups
// of a multiple of 32 columns (64 for GEMV): GEMV (up to 16 rows of x) by
// ops/gemm/gemv/gemv_weight_mma.cuh, more rows by ops/gemm/weight_only/many_rows_hopper.cuh
// or many_rows.cuh, very many by slab_launch.cuh.
// Measured H200, 14336 x 4096, 1, 4 and 16 rows: 27, 30 and 44 us. H100, 4608 x 12288 x 3072: 1,523.
#include "ops/gemm/linear_int8/linear_int8_float.h"
#include "ops/gemm/linear_int8/linear_int8_spec.h"
#include "ops/gemm/weight_only/byte_formats.cuh"
#include "ops/gemm/weight_only/few_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_launch.cuh"

namespace pestle::ops::linear_int8 {
namespace {

constexpr WeightOnlyArgs kArgs{arg_index(spec, "x"), arg_index(spec, "weight"),
                               arg_index(spec, "out"), arg_index(spec, "alpha"),
                               arg_index(spec, "hadamard")};

constexpr auto kCode = many_rows::ByteCode::kInt8;

int group_of(const Call& call) {
  return static_cast<int>(
      std::min(call.integer(arg_index(spec, "group_size")), call.tensor(kArgs.weight).shape[1]));
}

}  // namespace

Status run_float_hopper(const Call& call) {
  const char* name = "linear_int8_float_hopper";
  const TensorView& scale = call.tensor(arg_index(spec, "scale"));
  if (label_of(call, "granularity") != "group")
    return run_row_bytes_hopper<kCode>(call, name, kArgs, scale);
  return run_group_bytes_hopper<kCode>(call, name, kArgs, scale, 1, group_of(call));
}

Status run_float_slabs(const Call& call) {
  return run_row_bytes_slabs<kCode>(call, "linear_int8_decoded", kArgs,
                                    call.tensor(arg_index(spec, "scale")));
}

Status run_float_gemv(const Call& call) {
  const TensorView& scale = call.tensor(arg_index(spec, "scale"));
  if (label_of(call, "granularity") != "group")
    return run_row_bytes_gemv<kCode>(call, "linear_int8_gemv", kArgs, scale);
  return run_group_bytes_gemv<kCode>(call, "linear_int8_gemv", kArgs, scale, 1, group_of(call));
}

Status run_float_few(const Call& call) {
  const char* name = "linear_int8_128_rows";
  const TensorView& scale = call.tensor(arg_index(spec, "scale"));
  if (label_of(call, "granularity") != "group")
    return run_row_bytes_few<kCode>(call, name, kArgs, scale);
  return run_group_bytes_few<kCode>(call, name, kArgs, scale, 1, group_of(call));
}

Status run_float_x(const Call& call, const TensorView& x) {
  const TensorView& scale = call.tensor(arg_index(spec, "scale"));
  if (label_of(call, "granularity") != "group")
    return run_row_bytes<kCode>(call, "linear_int8_float", kArgs, x, scale);
  return run_group_bytes<kCode>(call, "linear_int8_float", kArgs, x, scale, 1, group_of(call));
}

}  // namespace pestle::ops::linear_int8
