// matmul on the CPU: products of 128 rows at a time (ops/gemm/cpu/cpu_gemm.h), then rows of sums
// get their epilogue (ops/gemm/epilogue/epilogue_rows.h), in f32 with one rounding.
#include "backends/cpu/parallel.h"
#include "core/op.h"
#include "ops/gemm/cpu/cpu_gemm.h"
#include "ops/gemm/epilogue/epilogue_rows.h"
#include "ops/gemm/matmul/matmul_spec.h"
#include "ops/gemm/select/gemm_tuned_reader.h"

namespace pestle::ops::matmul {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kAlpha = arg_index(spec, "alpha");

Status run(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  if (numel(out) == 0) return {};
  const Epilogue epilogue(call, kAlpha, out);
  const int64_t m = out.shape[out.rank - 2];
  for (int64_t batch = 0; batch < row_count(out) / m; ++batch) {
    const CpuMatrix a(call.tensor(kA), batch), b(call.tensor(kB), batch);
    multiply_matrices(a, b, call.workspace, [&](const GemmRows& p) {
      cpu::parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          finish_row(epilogue, out, batch * m + p.first + i, p.sums + i * p.stride);
      });
    });
  }
  return {};
}

std::string refuses(const Call& call, const Machine&) { return refuse_quantized_output(call); }

constexpr Impl kImpls[] = {
    {.id = "cpu/matmul_simd",
     .refuses = refuses,
     .run = run,
     .workspace = "(min(M,128) + 3) * (round_up(K,128) + round_up(N,96)) * 4 + 64"},
    {.id = "cpu/matmul_codes",
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = "if(keep_out, 0, 2*B*M*N) + 512 + "
                  "(min(M,128) + 3) * (round_up(K,128) + round_up(N,96)) * 4 + 64"},
};

[[maybe_unused]] const bool kReadsTuned = reads_tuned_gemms();

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::matmul
