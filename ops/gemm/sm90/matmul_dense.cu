// The instances of Hopper's matrix product (matmul_hopper.cuh) for bf16 and f16.
#include "ops/gemm/sm90/matmul_dense.cuh"

namespace pestle::ops {
namespace {

using hopper::Product;

template <Product kProduct, bool kB_AlongK>
Status start_pairs(const Call& call, const char* name, const Operands& o, const HopperJob& job) {
  return start_tile<kProduct, true, kB_AlongK, hopper::Sum::kDirect, false, true>(call, name, o,
                                                                                  job);
}

template <Product kProduct>
Status start_product(const Call& call, const char* name, const Operands& o, const HopperJob& job,
                     bool slices) {
  if (job.epilogue.pairs)  // a lies along k (refuse_late_parts)
    return o.b_along_k ? start_pairs<kProduct, true>(call, name, o, job)
                       : start_pairs<kProduct, false>(call, name, o, job);
  if (o.a_along_k && o.b_along_k)
    return start_tile<kProduct, true, true>(call, name, o, job, slices);
  if (o.a_along_k) return start_tile<kProduct, true, false>(call, name, o, job, slices);
  if (o.b_along_k) return start_tile<kProduct, false, true>(call, name, o, job, slices);
  return start_tile<kProduct, false, false>(call, name, o, job, slices);
}

}  // namespace

Status start_dense_product(const Call& call, const char* name, const Operands& o,
                           const HopperJob& job, bool slices) {
  if (const int columns = slices ? 0 : held_columns(call, o, job.epilogue))
    return start_held_product(call, name, o, job, columns);
  return o.a.dtype == DType::kBF16 ? start_product<Product::kBf16>(call, name, o, job, slices)
                                   : start_product<Product::kF16>(call, name, o, job, slices);
}

}  // namespace pestle::ops
