// qkv_project_simd: the three products one after the other, each as matmul's; qkv_project_linear:
// each as the linear op of the codes' format (ops/gemm/cpu/quant_linear.h).
// Map      ops/gemm/cpu/cpu_gemm.h: 128 rows of x at a time, blocks of columns over the threads
// Traffic  x three times, each weight once for every 128 rows of x
// Numerics f32 sums, the bias added in f32, one rounding
// Needs    any strides
#include "backends/cpu/parallel.h"
#include "ops/gemm/cpu/cpu_gemm.h"
#include "ops/gemm/cpu/quant_linear.h"
#include "ops/gemm/epilogue/epilogue_rows.h"
#include "ops/gemm/qkv_project/qkv_project_parts.h"

namespace pestle::ops::qkv_project {
namespace {

void multiply(const Call& call, const QkvPart& part) {
  const TensorView& out = call.tensor(part.out);
  if (numel(out) == 0) return;
  TensorView x;
  if (!as_matrix(call.tensor(kX), &x)) x = call.tensor(kX);
  Epilogue epilogue;
  epilogue.columns = row_length(out);
  if (call.has(part.bias)) epilogue.bias = call.tensor(part.bias);
  const int64_t m = x.shape[x.rank - 2];
  const CpuMatrix weight = CpuMatrix(call.tensor(part.weight), 0).transposed();
  for (int64_t batch = 0; batch < row_count(out) / m; ++batch) {
    multiply_matrices(CpuMatrix(x, batch), weight, call.workspace, [&](const GemmRows& p) {
      cpu::parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          finish_row(epilogue, out, batch * m + p.first + i, p.sums + i * p.stride);
      });
    });
  }
}

Status run(const Call& call) {
  for (const QkvPart& part : kParts) multiply(call, part);
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/qkv_project_simd",
     .refuses = refuse_codes,
     .run = run,
     .workspace = "(min(M,128) + 3) * (round_up(K,128) + round_up(max(max(NQ,NK),NV),96)) * 4 "
                  "+ 64"},
    {.id = "cpu/qkv_project_linear",
     .refuses = refuse_floats,
     .run = run_by_linear,
     .workspace = kQuantLinearWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::qkv_project
