// The instances of gemm_warp_specialized.cuh for bf16 and f16 whose epilogue follows its tile.
#include "ops/gemm/sm90/gemm_dense.cuh"

namespace pestle::ops {
namespace {

using hopper::WgmmaType;

template <WgmmaType kWgmma, bool kB_AlongK>
Status start_pairs(const Call& call, const char* name, const Operands& o, const GemmJob& job) {
  return start_tile<kWgmma, true, kB_AlongK, hopper::Sum::kDirect, false, true>(call, name, o, job);
}

template <WgmmaType kWgmma>
Status start_gemm(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                  bool split_k) {
  if (job.epilogue.pairs)  // a lies along k (refuse_extended_parts)
    return o.b_along_k ? start_pairs<kWgmma, true>(call, name, o, job)
                       : start_pairs<kWgmma, false>(call, name, o, job);
  if (o.a_along_k && o.b_along_k)
    return start_tile<kWgmma, true, true>(call, name, o, job, split_k);
  if (o.a_along_k) return start_tile<kWgmma, true, false>(call, name, o, job, split_k);
  if (o.b_along_k) return start_tile<kWgmma, false, true>(call, name, o, job, split_k);
  return start_tile<kWgmma, false, false>(call, name, o, job, split_k);
}

}  // namespace

Status start_dense_gemm(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                        bool split_k) {
  if (const int columns = split_k ? 0 : overlapped_columns(call, o, job.epilogue))
    return start_overlapped_gemm(call, name, o, job, columns);
  return o.a.dtype == DType::kBF16 ? start_gemm<WgmmaType::kBf16>(call, name, o, job, split_k)
                                   : start_gemm<WgmmaType::kF16>(call, name, o, job, split_k);
}

}  // namespace pestle::ops
