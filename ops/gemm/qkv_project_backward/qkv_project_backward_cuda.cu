// qkv_project_backward on CUDA: products by matmul, each by whichever kernel matmul takes for it,
// sums of rows by reduce, weights of codes decoded first (qkv_project_backward_parts.h).
// Map      one product after the other.
// Traffic  each d and weight once, d_x's sums in f32 written twice and read twice; a weight of codes
//          is written decoded and read again.
// Numerics f32 sums of all three products, one rounding.
#include "ops/gemm/qkv_project_backward/qkv_project_backward_parts.h"

namespace pestle::ops::qkv_project_backward {
namespace {

// What matmul's kernels ask for: the library's share; of f32 its parts; and reduce's.
#define PESTLE_QKV_BACKWARD_CUDA                                                              \
  PESTLE_QKV_BACKWARD_BYTES                                                                   \
  " + 33554688 + if(bytes(x) == 4 || bytes(d_q) == 4 || bytes(d_k) == 4 || bytes(d_v) == 4, " \
  "4096 + 6*(M*K + (M + K)*" PESTLE_QKV_WIDEST ") + 108*(M + K + " PESTLE_QKV_WIDEST "), 0)"

constexpr Impl kImpls[] = {
    {.id = "cuda/qkv_project_backward_matmul",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_uneven,
     .run = run,
     .workspace = PESTLE_QKV_BACKWARD_CUDA},
    {.id = "cuda/qkv_project_backward_copies",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_with_copies,
     .workspace = PESTLE_QKV_BACKWARD_CUDA " + " PESTLE_QKV_COPY_BYTES},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::qkv_project_backward
