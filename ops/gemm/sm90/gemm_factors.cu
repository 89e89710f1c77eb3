// The instances of gemm_warp_specialized.cuh for bf16 and f16 whose sums are multiplied by factors of
// rows and columns.
#include "ops/gemm/sm90/gemm_dense.cuh"

namespace pestle::ops {

Status start_dense_gemm_with_factors(const Call& call, const char* name, const Operands& o,
                                     const GemmJob& job) {
  using hopper::Sum;
  using hopper::WgmmaType;
  return o.a.dtype == DType::kBF16
             ? start_tile<WgmmaType::kBf16, true, true, Sum::kDirect, true>(call, name, o, job)
             : start_tile<WgmmaType::kF16, true, true, Sum::kDirect, true>(call, name, o, job);
}

}  // namespace pestle::ops
