// Weight-only products of very many rows of x on sm_90: the weight is decoded to x's dtype, a slab of
// its rows at a time, and multiplied by the GEMM of such matrices (ops/gemm/sm90/gemm_dense.cuh), whose
// result is a slice of out's columns. many_rows_hopper.cuh decodes once for every 256 rows of x; here
// it is once for all.
//
// Map      For each slab, in stream order: slab_kernel, then the GEMM. One slab's memory serves all:
//          each kernel begins to run as the one before ends (early_launch.h) but waits for its
//          results, so the next slab is written when the GEMM has read the last one. At the end
//          odd_kernel, where the format may have such rows.
// Traffic  codes once, the slab written and read in the L2 where it stays; x once for each slab.
// Numerics the GEMM's, of exact products; factors of columns in its epilogue (slab_formats.cuh).
#pragma once

#include "ops/gemm/sm90/gemm_dense.cuh"
#include "ops/gemm/weight_only/many_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_kernels.cuh"
#include "ops/gemm/weight_only/slabs.h"

namespace pestle::ops {

// A slab as b.
inline Stack slab_columns(const void* matrix, DType dtype, int64_t rows, int64_t k) {
  return {matrix, dtype, k, rows, 1, 1, k, 0};
}
// x, out and residual of the whole call, and a slab of so many rows.
inline std::string read_slab_operands(const Call& call, const WeightOnlyArgs& args, int64_t k,
                                      const void* matrix, int64_t rows, Operands* o) {
  std::string why = read_outputs(call, args, o);
  if (why.empty()) why = read_even(call, args.x, &o->a);
  o->b = slab_columns(matrix, call.tensor(args.x).dtype, rows, k);
  return why;
}

// `factors`: columns have them.
inline std::string refuse_slabs(const Call& call, const WeightOnlyArgs& args, int bits,
                                bool factors) {
  const TensorView& weight = call.tensor(args.weight);
  const int64_t n = weight.shape[0], k = weight.shape[1] * 8 / bits;
  if (n > kMostSlabRows) return "N must be at most 2^19";
  if (most_slab_rows(n, k) < std::min(n, kLeastSlab))
    return "K: fewer than 256 rows of the weight fit the workspace";
  Operands o;
  std::string why = read_slab_operands(call, args, k, nullptr, n, &o);
  if (why.empty()) why = refuse_operands(o);
  return why.empty() ? refuse_extended_parts(call, args.alpha, o, factors) : why;
}

#ifdef __CUDACC__

// The job of an operand's slabs, without its first row. Its memory begins at `at`, which goes on to
// what follows: `rows` of a matrix and their factors, flags of all rows.
inline many_rows::SlabJob slab_job(const TensorView& codes, int64_t rows, int64_t k,
                                   uintptr_t* at) {
  const uintptr_t matrix = round_up_256(*at);
  const uintptr_t factors = matrix + static_cast<uintptr_t>(rows * k * 2);
  const uintptr_t odd = round_up_256(factors + static_cast<uintptr_t>(rows * 4 + 4));
  *at = odd + static_cast<uintptr_t>((row_count(codes) + 7) / 8 * 8);  // read by eights
  many_rows::SlabJob job;
  job.codes = codes.as<char>();
  job.code_row = cuda::row_distance(codes);
  job.matrix = reinterpret_cast<char*>(matrix);
  job.factors = reinterpret_cast<float*>(factors);
  job.odd = reinterpret_cast<uint8_t*>(odd);
  job.k = static_cast<int>(k);
  return job;
}

// kPair: both operands are decoded.
template <bool kBf16, bool kPair, class Format>
Status decode_slab(const Call& call, const char* name, const many_rows::SlabJob& job, int64_t rows,
                   const Format& format) {
  const cuda::Grid grid{rows, many_rows::kSlabThreads};
  return cuda::launch_early(call, name, grid, many_rows::slab_kernel<kBf16, kPair, Format>, job,
                            format);
}

// A block of out.
struct OutBlock {
  int64_t row, rows, column, columns;
};
inline void take_block(const OutBlock& block, Stack* s) {
  if (s->data == nullptr) return;
  const int64_t first = block.row * s->row_stride + block.column * s->column_stride;
  s->data = static_cast<const char*>(s->data) + first * dtype_bytes(s->dtype);
  s->rows = block.rows;
  s->columns = block.columns;
}
inline void skip_columns(int64_t first, hopper::FloatMatrix* t) {
  if (t->data != nullptr) t->data += first * t->column_stride * t->element_bytes();
}

// The block of out that decoded slabs give. `rows` and `columns`: a 1, then the factors of the block's;
// null: none, as rows alone may be.
inline Status multiply_slab(const Call& call, const char* name, int alpha, Operands o,
                            const OutBlock& block, const float* rows, const float* columns) {
  take_block(block, &o.out);
  take_block(block, &o.residual);
  o.a.rows = block.rows;
  o.b.columns = block.columns;
  GemmJob job{};
  PESTLE_TRY(fill_epilogue(call, alpha, o, &job.epilogue));
  skip_columns(block.column, &job.epilogue.bias);
  skip_columns(block.column, &job.epilogue.gate);
  if (columns == nullptr) return start_dense_gemm(call, name, o, job);
  job.epilogue.rows = rows == nullptr ? hopper::Factors{columns, 0} : hopper::Factors{rows + 1, 1};
  job.epilogue.columns = {columns + 1, 1};
  return start_dense_gemm_with_factors(call, name, o, job);
}

// What odd rows and columns have of out.
template <bool kBf16, class Format, class X>
Status make_odd(const Call& call, const char* name, const WeightOnlyArgs& args,
                const many_rows::OddFlags& odd, const Format& format, const X& source) {
  const many_rows::Job job = many_rows_job(call, args, call.tensor(args.x), Format::kBits);
  const int64_t multiprocessors = cuda::multiprocessors(cuda::device_index(call));
  const int64_t blocks =
      cuda::ceil_div(job.n, 8) * cuda::ceil_div(job.m, many_rows::kOddThreads / 8);
  const cuda::Grid grid{std::min(blocks, multiprocessors), many_rows::kOddThreads};
  return cuda::launch_early(call, name, grid, many_rows::odd_kernel<kBf16, Format, X>, job, odd,
                            format, source);
}

template <bool kBf16, class Format>
Status start_slabs(const Call& call, const char* name, const WeightOnlyArgs& args,
                   const Format& format) {
  using Decoder = many_rows::Decoder<kBf16, Format>;
  const TensorView& weight = call.tensor(args.weight);
  const int64_t m = row_count(call.tensor(args.x));
  const int64_t n = weight.shape[0], k = weight.shape[1] * 8 / Format::kBits;
  const int64_t rows = slab_rows(m, n, k, cuda::multiprocessors(cuda::device_index(call)));
  auto at = reinterpret_cast<uintptr_t>(call.workspace);
  many_rows::SlabJob job = slab_job(weight, rows, k, &at);
  Operands o;
  if (std::string why = read_slab_operands(call, args, k, job.matrix, rows, &o); !why.empty())
    return unsupported(why);
  for (job.first = 0; job.first < n; job.first += rows) {
    const int64_t columns = std::min(rows, n - job.first);
    PESTLE_TRY((decode_slab<kBf16, false>(call, name, job, columns, format)));
    PESTLE_TRY(multiply_slab(call, name, args.alpha, o, {0, m, job.first, columns}, nullptr,
                             Decoder::kFactors ? job.factors : nullptr));
  }
  if constexpr (Decoder::kOdd)
    return make_odd<kBf16>(call, name, args, {nullptr, job.odd}, format, many_rows::PlainRows{});
  return {};
}

// Of a format for bf16 and f16.
template <class Format>
Status run_slabs(const Call& call, const char* name, const WeightOnlyArgs& args,
                 const Format& format) {
  return call.tensor(args.x).dtype == DType::kBF16 ? start_slabs<true>(call, name, args, format)
                                                   : start_slabs<false>(call, name, args, format);
}

template <many_rows::ByteCode kCode>
Status run_row_bytes_slabs(const Call& call, const char* name, const WeightOnlyArgs& args,
                           const TensorView& scale) {
  return run_slabs(call, name, args, row_bytes<kCode>(scale));
}

#endif  // __CUDACC__

// Op, beside what WeightOnlyOp asks for: kSlabFactors: sums have factors of their columns;
// kRowsForSlabs: rows of x, at least, for the decoding to be a small share; run_slabs(call).
template <class Op>
std::string refuses_slabs(const Call& call, const Machine& machine) {
  std::string why = refuse_machine(machine);
  if (!why.empty()) return why;
  const TensorView& x = call.tensor(Op::kArgs.x);
  if (x.dtype == DType::kF32) return "is for x of bf16 or f16";
  if (row_count(x) < Op::kRowsForSlabs)
    return "is for " + std::to_string(Op::kRowsForSlabs) + " rows of x or more";
  why = WeightOnlyOp<Op>::refuses_many(call, machine);
  if (why.empty() && Op::sums_groups(call)) why = "scales multiply sums of groups, not codes";
  return why.empty() ? refuse_slabs(call, Op::kArgs, Op::kBits, Op::kSlabFactors) : why;
}

template <class Op>
constexpr Impl slabs_impl(const char* id) {
  return {.id = id,
          .device = DeviceType::kCuda,
          .min_compute_capability = 90,
          .refuses = refuses_slabs<Op>,
          .run = Op::run_slabs,
          .workspace = PESTLE_SLAB_BYTES};
}

// Slabs first, then what weight_only_impls has.
template <class Op>
constexpr std::array<Impl, 8> weight_only_impls_and_slabs(const char* slabs, const char* hopper,
                                                          const char* mma, const char* gemv,
                                                          const char* many, const char* input,
                                                          const char* unfused,
                                                          const char* fallback) {
  const auto rest = weight_only_impls<Op>(hopper, mma, gemv, many, input, unfused, fallback);
  return {slabs_impl<Op>(slabs), rest[0], rest[1], rest[2], rest[3], rest[4], rest[5], rest[6]};
}

}  // namespace pestle::ops
