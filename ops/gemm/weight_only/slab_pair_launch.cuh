// Products of two matrices of codes on sm_90: both are decoded to bf16, a slab of rows at a time, and
// slabs are multiplied by the GEMM of such matrices, whose result is a block of out.
//
// Map      As slab_launch.cuh, with two slabs in memory: each of one operand meets all of the other
//          (slabs.h says which, and how large they are).
// Traffic  codes of the outer operand once, of the other once for each slab of the first; slabs are
//          written and read in the L2.
// Numerics the GEMM's, of exact products, in bf16 (slab_formats.cuh). What is f32 in a format's rule
//          is a factor of rows and columns. Rows of either operand with values that bf16 doesn't hold,
//          or such that sums might overflow on their way, are odd: made again from f32 values with
//          sums in f64.
#pragma once

#include "ops/gemm/weight_only/decoded_launch.cuh"
#include "ops/gemm/weight_only/slab_launch.cuh"

namespace pestle::ops {

// Rows of a and of b, at least: for fewer, decoding and its launches take longer than many_rows.cuh
// loses by decoding once for each tile.
constexpr int64_t kRowsForSlabPairs = 512;

// Slabs of so many rows beside out and residual of the whole call.
inline std::string read_slab_pair(const Call& call, const DecodedArgs& args, int64_t k,
                                  const void* a, int64_t rows, const void* b, int64_t columns,
                                  Operands* o) {
  const std::string why = read_outputs(call, args.product(), o);
  o->a = {a, DType::kBF16, rows, k, 1, k, 1, 0};
  o->b = slab_columns(b, DType::kBF16, columns, k);
  return why;
}

// `bits` of a code of b; `factors`: rows and columns have them.
inline std::string refuse_slab_pairs(const Call& call, const Machine& machine,
                                     const DecodedArgs& args, int bits, bool factors) {
  std::string why = refuse_machine(machine);
  if (why.empty()) why = refuse_decoded(call, args, bits);
  if (!why.empty()) return why;
  const TensorView& b = call.tensor(args.b);
  const int64_t m = row_count(call.tensor(args.a)), n = b.shape[0], k = b.shape[1] * 8 / bits;
  if (std::min(m, n) < kRowsForSlabPairs) return "is for 512 rows or more of a and of b";
  if (m + n > kMostSlabRows) return "M and N must be at most 2^19 together";
  const int64_t fit = pair_rows_that_fit(k);
  if (fit < std::min(m + n, kLeastPair)) return "K: fewer than 1792 rows fit the workspace";
  if (call.has(args.alpha + kGatePlace) && m + n > fit)
    return "gate: is for operands that fit the workspace together";
  Operands o;
  why = read_slab_pair(call, args, k, nullptr, m, nullptr, n, &o);
  if (why.empty()) why = refuse_operands(o);
  return why.empty() ? refuse_extended_parts(call, args.alpha, o, factors) : why;
}

// Op, beside what decoded_impls asks for: kSlabFactors: rows and columns have factors; run_slabs(call).
template <class Op>
std::string refuses_slab_pairs(const Call& call, const Machine& machine) {
  return refuse_slab_pairs(call, machine, Op::kArgs, Op::kBits, Op::kSlabFactors);
}

// Slabs first, then what decoded_impls has.
template <class Op>
constexpr std::array<Impl, 4> slab_pair_impls(const char* slabs, const char* fast,
                                              const char* unfused, const char* fallback) {
  auto rest = decoded_impls<Op>(fast, unfused, fallback);
  rest[1].workspace =
      PESTLE_UNFUSED_BYTES " + 512 + " PESTLE_SLAB_PAIR_BYTES;  // its product's, too
  return {Impl{.id = slabs,
               .device = DeviceType::kCuda,
               .min_compute_capability = 90,
               .refuses = refuses_slab_pairs<Op>,
               .run = Op::run_slabs,
               .workspace = PESTLE_SLAB_PAIR_BYTES},
          rest[0], rest[1], rest[2]};
}

#ifdef __CUDACC__

// One operand's slabs.
template <class Format>
struct SlabRows {
  const Format& format;
  int64_t all, rows;  // of a slab
  many_rows::SlabJob job;

  int64_t count() const { return std::min(rows, all - job.first); }
  Status decode(const Call& call, const char* name) const {
    return decode_slab<true, true>(call, name, job, count(), format);
  }
};

// run(), for each slab of `outer` and each of `inner`, both decoded.
template <class Outer, class Inner, class Run>
Status for_slabs(const Call& call, const char* name, Outer* outer, Inner* inner, const Run& run) {
  for (outer->job.first = 0; outer->job.first < outer->all; outer->job.first += outer->rows) {
    PESTLE_TRY(outer->decode(call, name));
    for (inner->job.first = 0; inner->job.first < inner->all; inner->job.first += inner->rows) {
      // The only slab of all is decoded already.
      if (outer->job.first == 0 || inner->rows < inner->all) PESTLE_TRY(inner->decode(call, name));
      PESTLE_TRY(run());
    }
  }
  return {};
}

template <class A, class B>
Status start_slab_pairs(const Call& call, const char* name, const DecodedArgs& args,
                        const A& format_a, const B& format_b) {
  constexpr bool kFactors = many_rows::Decoder<true, B>::kFactors;
  static_assert(many_rows::Decoder<true, A>::kFactors == kFactors);
  const TensorView &codes_a = call.tensor(args.a), &codes_b = call.tensor(args.b);
  const int64_t m = row_count(codes_a), n = codes_b.shape[0];
  const int64_t k = codes_b.shape[1] * 8 / B::kBits;
  const SlabPair slabs = slab_pair(m, n, k, cuda::multiprocessors(cuda::device_index(call)));
  auto at = reinterpret_cast<uintptr_t>(call.workspace);
  SlabRows<A> a{format_a, m, slabs.a, slab_job(codes_a, slabs.a, k, &at)};
  SlabRows<B> b{format_b, n, slabs.b, slab_job(codes_b, slabs.b, k, &at)};
  Operands o;
  if (std::string why =
          read_slab_pair(call, args, k, a.job.matrix, slabs.a, b.job.matrix, slabs.b, &o);
      !why.empty())
    return unsupported(why);
  const auto multiply = [&] {
    return multiply_slab(call, name, args.alpha, o,
                         {a.job.first, a.count(), b.job.first, b.count()},
                         kFactors ? a.job.factors : nullptr, kFactors ? b.job.factors : nullptr);
  };
  PESTLE_TRY(slabs.a_outer ? for_slabs(call, name, &a, &b, multiply)
                           : for_slabs(call, name, &b, &a, multiply));
  return make_odd<true>(call, name, args.product(), {a.job.odd, b.job.odd}, format_b,
                        many_rows::DecodedRows<A>{format_a});
}

#endif  // __CUDACC__

}  // namespace pestle::ops
