// qkv_project_backward on the CPU: products by matmul's pieces, sums of rows by reduce
// (qkv_project_backward_parts.h).
// Map      one product after the other; each spreads its columns over the threads.
// Traffic  each d and weight once, d_x's sums in f32 written twice and read twice; a weight of codes
//          is written decoded and read again.
// Numerics f32 sums of all three products, one rounding.
#include "ops/gemm/qkv_project_backward/qkv_project_backward_parts.h"

namespace pestle::ops::qkv_project_backward {
namespace {

#define PESTLE_QKV_BACKWARD_CPU                                                                 \
  PESTLE_QKV_BACKWARD_BYTES                                                                     \
  " + max((min(max(M," PESTLE_QKV_WIDEST "),128) + 3) * (round_up(max(M," PESTLE_QKV_WIDEST     \
  "),"                                                                                          \
  "128) + round_up(K,96)) * 4 + 64, 16 * (M*" PESTLE_QKV_WIDEST " / 65536 + " PESTLE_QKV_WIDEST \
  "))"

constexpr Impl kImpls[] = {
    {.id = "cpu/qkv_project_backward_matmul",
     .refuses = refuse_uneven,
     .run = run,
     .workspace = PESTLE_QKV_BACKWARD_CPU},
    {.id = "cpu/qkv_project_backward_copies",
     .run = run_with_copies,
     .workspace = PESTLE_QKV_BACKWARD_CPU " + " PESTLE_QKV_COPY_BYTES},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::qkv_project_backward
