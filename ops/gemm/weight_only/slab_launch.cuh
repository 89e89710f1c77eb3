// Weight-only products of very many rows of x on sm_90: the weight is decoded to x's dtype, a slab of
// its rows at a time, and multiplied by the GEMM of such matrices (ops/gemm/sm90/gemm_dense.cuh), whose
// result is a slice of out's columns. many_rows_hopper.cuh decodes once for every 256 rows of x; here
// it is once for all.
//
// Map      For each slab, in stream order: slab_kernel, then the GEMM. One slab's memory serves all:
//          each kernel begins to run as the one before ends (early_launch.h) but waits for its
//          results, so the next slab is written when the GEMM has read the last one. At the end
//          odd_columns_kernel, where the format may have such rows.
// Traffic  codes once, the slab written and read in the L2 where it stays; x once for each slab.
// Numerics the GEMM's, of exact products; factors of columns in its epilogue (slab_formats.cuh).
#pragma once

#include "ops/gemm/sm90/gemm_dense.cuh"
#include "ops/gemm/weight_only/many_rows_launch.cuh"
#include "ops/gemm/weight_only/slab_kernels.cuh"
#include "ops/gemm/weight_only/slabs.h"

namespace pestle::ops {

// Rows of x, at least, for the decoding to be a small share.
constexpr int64_t kRowsForSlabs = 2048;

// x, out and residual of the whole call, and a slab of so many rows.
inline std::string read_slab_operands(const Call& call, const WeightOnlyArgs& args, int64_t k,
                                      const void* matrix, int64_t rows, Operands* o) {
  std::string why = read_outputs(call, args, o);
  if (why.empty()) why = read_even(call, args.x, &o->a);
  o->b = {matrix, call.tensor(args.x).dtype, k, rows, 1, 1, k, 0};
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

struct SlabMemory {
  char* matrix;
  float* factors;  // a 1, then those of the slab's rows
  uint8_t* odd;    // of all rows of the weight

  SlabMemory(const Call& call, int64_t rows, int64_t k) {
    const uintptr_t at = round_up_256(reinterpret_cast<uintptr_t>(call.workspace));
    const uintptr_t behind = at + static_cast<uintptr_t>(rows * k * 2);
    const uintptr_t last = behind + static_cast<uintptr_t>(rows * 4 + 4);
    matrix = reinterpret_cast<char*>(at);
    factors = reinterpret_cast<float*>(behind);
    odd = reinterpret_cast<uint8_t*>(last);
  }
};

// Columns of a matrix, from `first` on.
inline void take_columns(int64_t first, int64_t columns, Stack* s) {
  if (s->data == nullptr) return;
  s->data = static_cast<const char*>(s->data) + first * s->column_stride * dtype_bytes(s->dtype);
  s->columns = columns;
}
inline void skip_columns(int64_t first, hopper::FloatMatrix* t) {
  if (t->data != nullptr) t->data += first * t->column_stride * t->element_bytes();
}

// The columns of out that a decoded slab gives. `factors`: null, or a 1 and those of its rows.
inline Status multiply_slab(const Call& call, const char* name, const WeightOnlyArgs& args,
                            Operands o, int64_t first, int64_t columns, const float* factors) {
  take_columns(first, columns, &o.out);
  take_columns(first, columns, &o.residual);
  o.b.columns = columns;
  GemmJob job{};
  PESTLE_TRY(fill_epilogue(call, args.alpha, o, &job.epilogue));
  skip_columns(first, &job.epilogue.bias);
  skip_columns(first, &job.epilogue.gate);
  if (factors == nullptr) return start_dense_gemm(call, name, o, job);
  job.epilogue.rows = {factors, 0};
  job.epilogue.columns = {factors + 1, 1};
  return start_dense_gemm_with_factors(call, name, o, job);
}

template <bool kBf16, class Format>
Status make_odd_columns(const Call& call, const char* name, const WeightOnlyArgs& args,
                        const Format& format, const uint8_t* odd) {
  const many_rows::Job job = many_rows_job(call, args, call.tensor(args.x), Format::kBits);
  const int64_t multiprocessors = cuda::multiprocessors(cuda::device_index(call));
  const cuda::Grid grid{std::min(cuda::ceil_div(job.n, 8), multiprocessors),
                        many_rows::kOddThreads};
  return cuda::launch_early(call, name, grid, many_rows::odd_columns_kernel<kBf16, Format>, job,
                            odd, format);
}

template <bool kBf16, class Format>
Status start_slabs(const Call& call, const char* name, const WeightOnlyArgs& args,
                   const Format& format) {
  using Decoder = many_rows::Decoder<kBf16, Format>;
  const TensorView& weight = call.tensor(args.weight);
  const int64_t n = weight.shape[0], k = weight.shape[1] * 8 / Format::kBits;
  const int64_t rows = slab_rows(row_count(call.tensor(args.x)), n, k,
                                 cuda::multiprocessors(cuda::device_index(call)));
  const SlabMemory memory(call, rows, k);
  Operands o;
  if (std::string why = read_slab_operands(call, args, k, memory.matrix, rows, &o); !why.empty())
    return unsupported(why);
  many_rows::SlabJob job;
  job.codes = weight.as<char>();
  job.code_row = cuda::row_distance(weight);
  job.matrix = memory.matrix;
  job.factors = memory.factors;
  job.odd = memory.odd;
  job.k = static_cast<int>(k);
  for (job.first = 0; job.first < n; job.first += rows) {
    const int64_t columns = std::min(rows, n - job.first);
    const cuda::Grid grid{columns, many_rows::kSlabThreads};
    PESTLE_TRY(
        cuda::launch_early(call, name, grid, many_rows::slab_kernel<kBf16, Format>, job, format));
    PESTLE_TRY(multiply_slab(call, name, args, o, job.first, columns,
                             Decoder::kFactors ? memory.factors : nullptr));
  }
  if constexpr (Decoder::kOdd) return make_odd_columns<kBf16>(call, name, args, format, memory.odd);
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
// run_slabs(call).
template <class Op>
std::string refuses_slabs(const Call& call, const Machine& machine) {
  std::string why = refuse_machine(machine);
  if (!why.empty()) return why;
  const TensorView& x = call.tensor(Op::kArgs.x);
  if (x.dtype == DType::kF32) return "is for x of bf16 or f16";
  if (row_count(x) < kRowsForSlabs) return "is for 2048 rows of x or more";
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
