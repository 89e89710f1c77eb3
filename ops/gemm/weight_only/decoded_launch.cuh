// Products of two matrices of codes on CUDA: many_rows.cuh with a left side that is decoded in
// shared memory, and what the ops of such matrices have in common.
#pragma once

#include "ops/gemm/fallback/gemm_fallback_decoded.cuh"
#include "ops/gemm/weight_only/many_rows_launch.cuh"

namespace pestle::ops {

// Positions in the contract.
struct DecodedArgs {
  int a, b, scale_a, scale_b, out, alpha, scale_layout;

  constexpr WeightOnlyArgs product() const { return {a, b, out, alpha}; }
  bool swizzled(const Call& call) const { return call.integer(scale_layout) == 0; }
};

// `bits` of a code.
inline std::string refuse_decoded(const Call& call, const DecodedArgs& args, int bits) {
  const TensorView& a = call.tensor(args.a);
  std::string why = refuse_many_rows_of_any_dtype(call, args.product(), bits);
  if (why.empty()) why = cuda::refuse_unaligned("a", a);
  if (why.empty()) why = refuse_far_rows("a", a);
  const bool swizzled = args.swizzled(call);
  if (why.empty()) why = cuda::refuse_scale_strides("scale_a", call.tensor(args.scale_a), swizzled);
  if (why.empty()) why = cuda::refuse_scale_strides("scale_b", call.tensor(args.scale_b), swizzled);
  return why;
}

// Op: kArgs; kBits; run_decoded(call); run_fallback(call).
template <class Op>
std::string refuses_decoded(const Call& call, const Machine&) {
  return refuse_decoded(call, Op::kArgs, Op::kBits);
}
inline std::string refuses_decoded_fallback(const Call& call, const Machine&) {
  return refuse_extended(call);
}

template <class Op>
constexpr std::array<Impl, 3> decoded_impls(const char* fast, const char* unfused,
                                            const char* fallback) {
  return {Impl{.id = fast,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = refuses_decoded<Op>,
               .run = Op::run_decoded},
          Impl{.id = unfused,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = refuse_without_extended,
               .run = run_unfused_on_cuda,
               .workspace = PESTLE_UNFUSED_BYTES},
          Impl{.id = fallback,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = refuses_decoded_fallback,
               .run = Op::run_fallback}};
}

#ifdef __CUDACC__

template <class A, class B>
Status start_decoded(const Call& call, const char* name, const DecodedArgs& args, const A& a,
                     const B& b) {
  const many_rows::Job job = many_rows_job(call, args.product(), call.tensor(args.a), B::kBits);
  return start_many_rows<true>(call, name, job, b, many_rows::DecodedRows<A>{a});
}

// An MX operand: codes of 4 bits, or of 8.
template <int kBits>
many_rows::Mx<kBits, false> mx_rows(const TensorView& codes, const TensorView& scale, bool swizzled,
                                    bool high_first = false) {
  many_rows::MxWeight w;
  w.scale =
      many_rows::scale_bytes(scale, swizzled, row_length(codes) * 8 / kBits / formats::kMxBlock, 2);
  w.high_first = high_first;
  w.e5m2 = codes.dtype == DType::kE5M2;
  w.codes = codes.as<char>();
  w.code_row = cuda::row_distance(codes);
  return {w};
}

#endif  // __CUDACC__

}  // namespace pestle::ops
