// qkv_project on CUDA: few rows of x in one launch (qkv_project_one_launch.cu); else three products
// by matmul, or by the linear op of the codes' format, each by whichever kernel that op takes for it.
#include "ops/gemm/qkv_project/qkv_project_one_launch.h"
#include "ops/gemm/qkv_project/qkv_project_parts.h"
#include "ops/shared/inner_call.h"

namespace pestle::ops::qkv_project {
namespace {

// A weight as matmul's right side, the same one for all of x's leading dimensions.
TensorView right_side(const TensorView& weight, const TensorView& x) {
  TensorView b = weight;
  b.rank = x.rank;
  for (int d = 0; d < x.rank - 2; ++d) b.shape[d] = x.shape[d], b.strides[d] = 0;
  b.shape[b.rank - 2] = weight.shape[1];
  b.shape[b.rank - 1] = weight.shape[0];
  b.strides[b.rank - 2] = weight.strides[1];
  b.strides[b.rank - 1] = weight.strides[0];
  return b;
}

Status multiply(const Call& call, const QkvPart& part) {
  TensorView x, out;
  if (numel(call.tensor(part.out)) == 0) return {};
  if (!as_matrix(call.tensor(kX), &x) || !as_matrix(call.tensor(part.out), &out)) {
    x = call.tensor(kX);
    out = call.tensor(part.out);
  }
  InnerCall inner(call, "matmul");
  inner.set("a", x);
  inner.set("b", right_side(call.tensor(part.weight), x));
  inner.set("out", out);
  if (call.has(part.bias)) inner.set("bias", call.tensor(part.bias));
  return inner.run(call.workspace, call.workspace_bytes);
}

Status run(const Call& call) {
  for (const QkvPart& part : kParts) PESTLE_TRY(multiply(call, part));
  return {};
}

// What matmul's kernels ask for: of more rows than a few the library's share; of f32 its parts.
#define PESTLE_QKV_COLUMNS "max(max(NQ,NK),NV)"
constexpr Impl kImpls[] = {
    {.id = "cuda/qkv_project_few_rows",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuse_gemv_of_floats,
     .run = run_gemv_of_floats},
    {.id = "cuda/qkv_project_gemv",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_gemv_of_codes,
     .run = run_gemv_of_codes},
    {.id = "cuda/qkv_project_many_rows",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_many_rows_of_codes,
     .run = run_many_rows_of_codes},
    {.id = "cuda/qkv_project_matmul",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_codes,
     .run = run,
     .workspace =
         "if(M <= 16, 0, 33554688) + if(bytes(x) == 4, 4096 + 6*(M*K + K*" PESTLE_QKV_COLUMNS
         " + 8*(M + " PESTLE_QKV_COLUMNS " + 2*K)) + 12*(M + " PESTLE_QKV_COLUMNS "), 0)"},
    {.id = "cuda/qkv_project_linear",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_floats,
     .run = run_by_linear,
     .workspace = "bytes(x)*M*K + 512 + if(hadamard > 0, 4*M*K + 512, 0)"},
};
#undef PESTLE_QKV_COLUMNS

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::qkv_project
