// GEMMs of quantised operands with scales on CUDA: a [*M, K] and b [N, K], both along k.
#pragma once

#include "ops/gemm/cpu/quant_linear.h"
#include "ops/gemm/cublaslt/gemm_cublaslt.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/fallback/gemm_fallback.cuh"
#include "ops/gemm/gemv/gemv_mma.cuh"
#include "ops/gemm/linear/linear_output.h"
#include "ops/gemm/operands/gemm_pack.h"
#include "ops/gemm/sm80/gemm_portable.h"
#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {

// Positions in the contract; the epilogue's four arguments begin with alpha.
struct ScaledArgs {
  int a, b, scale_a, scale_b, out, alpha, granularity;
};
enum class Granularity : int64_t { kTensor, kRow, kBlock };

inline Granularity granularity_of(const Call& call, const ScaledArgs& args) {
  return static_cast<Granularity>(call.integer(args.granularity));
}

// All leading dimensions as one.
inline bool rows_stack(const TensorView& t, Stack* s) {
  *s = {t.data, t.dtype, row_count(t), row_length(t), 1, 0, 1, 0};
  return even_rows(t, s->row_stride);
}

// The output as bf16, copies of operands, the quantiser's maxima.
inline constexpr const char* kScaledQuantizedOutputWorkspace =
    "if(keep_out, 0, 2*M*N) + 1024 + numel(a) + numel(b) + 16*(M + 2*K + N) + 1024 + "
    "4*M*(cdiv(N,128) + 1) + 9216 + " PESTLE_UNFUSED_BYTES " + " PESTLE_UNFUSED_GEMM_BYTES;

inline std::string read_scaled(const Call& call, const ScaledArgs& args, Operands* o) {
  if (wants_quantized_output(call)) return refuse_quantized_output(call);
  if (!call.has(args.scale_a)) return "granularity=host: another implementation's";
  const int residual = args.alpha + 2;
  const std::string why =
      refuse_uneven_rows(call, {args.a, args.b, args.scale_a, args.scale_b, args.out, residual});
  if (!why.empty()) return why;
  Stack b;
  rows_stack(call.tensor(args.a), &o->a);
  rows_stack(call.tensor(args.b), &b);
  rows_stack(call.tensor(args.out), &o->out);
  if (call.has(residual)) rows_stack(call.tensor(residual), &o->residual);
  o->b = {b.data, b.dtype, b.columns, b.rows, 1, 1, b.row_stride, 0};
  return "";
}

inline std::string refuse_scaled(const Call& call, const ScaledArgs& args) {
  Operands o;
  std::string why = read_scaled(call, args, &o);
  if (why.empty()) why = refuse_operands(o);
  const bool blocks = granularity_of(call, args) == Granularity::kBlock;
  if (why.empty() && blocks && wants_pairs(call)) why = "gated: takes no scales of blocks";
  if (why.empty()) why = refuse_extended_parts(call, args.alpha, o, !blocks);
  return why.empty() ? refuse_misaligned(call, {args.out, args.scale_a, args.scale_b, args.alpha,
                                                args.alpha + 1, args.alpha + 2})
                     : why;
}

// Scales of rows, or one for all.
inline void fill_row_scales(const Call& call, const ScaledArgs& args,
                            hopper::EpilogueArguments* e) {
  const TensorView& a = call.tensor(args.scale_a);
  const TensorView& b = call.tensor(args.scale_b);
  int64_t a_row = 0, b_row = 0;
  if (granularity_of(call, args) != Granularity::kTensor) {
    even_rows(a, a_row);
    even_rows(b, b_row);
  }
  e->rows = {a.as<float>(), a_row};
  e->columns = {b.as<float>(), b_row};
}

// What the kernels of all granularities need; the GEMM is the caller's.
inline Status fill_scaled(const Call& call, const ScaledArgs& args, const Operands& o,
                          GemmJob* job) {
  PESTLE_TRY(fill_epilogue(call, args.alpha, o, &job->epilogue));
  if (granularity_of(call, args) != Granularity::kBlock) {
    fill_row_scales(call, args, &job->epilogue);
    return {};
  }
  const TensorView& a = call.tensor(args.scale_a);
  const TensorView& b = call.tensor(args.scale_b);
  int64_t a_row = 0, b_row = 0;
  even_rows(a, a_row);
  even_rows(b, b_row);
  hopper::BlockScales& s = job->tiles.scales;
  s.a = a.as<float>();
  s.b = b.as<float>();
  s.a_row = a_row;
  s.b_row = b_row;
  s.m = static_cast<int>(o.out.rows);
  s.n_blocks = static_cast<int>(row_count(b));
  return {};
}

inline Status read_and_fill(const Call& call, const ScaledArgs& args, Operands* o, GemmJob* job) {
  const std::string why = read_scaled(call, args, o);
  return why.empty() ? fill_scaled(call, args, *o, job) : unsupported(why);
}

inline std::string refuse_gemv_scaled(const Call& call, const ScaledArgs& args) {
  if (wants_extended(call)) return refuse_extended(call);
  Operands o;
  const std::string why = read_scaled(call, args, &o);
  return why.empty() ? refuse_gemv(o) : why;
}

inline std::string refuse_portable_scaled(const Call& call, const ScaledArgs& args) {
  if (wants_extended(call)) return refuse_extended(call);
  if (granularity_of(call, args) == Granularity::kBlock) return "takes no scales of blocks";
  Operands o;
  std::string why = read_scaled(call, args, &o);
  if (why.empty()) why = refuse_portable(o);
  return why.empty() ? refuse_misaligned(call, {args.out, args.scale_a, args.scale_b, args.alpha,
                                                args.alpha + 1, args.alpha + 2})
                     : why;
}

inline Status start_portable_scaled(const Call& call, const char* name, const ScaledArgs& args,
                                    const Operands& o) {
  hopper::EpilogueArguments e;
  fill_epilogue_values(call, args.alpha, o, &e);
  fill_row_scales(call, args, &e);
  return run_portable(call, name, o, e);
}

inline Status run_portable_scaled(const Call& call, const char* name, const ScaledArgs& args) {
  Operands o;
  const std::string why = read_scaled(call, args, &o);
  if (!why.empty()) return unsupported(why);
  return start_portable_scaled(call, name, args, o);
}

// All leading dimensions as one; columns may lie apart.
inline bool strided_stack(const TensorView& t, Stack* s) {
  TensorView dense = t;
  dense.strides[t.rank - 1] = 1;
  if (!rows_stack(dense, s)) return false;
  s->column_stride = t.strides[t.rank - 1];
  return true;
}

// Codes of any strides, for packing.
inline std::string read_strided(const Call& call, const ScaledArgs& args, Operands* o) {
  if (wants_quantized_output(call)) return refuse_quantized_output(call);
  if (!call.has(args.scale_a)) return "granularity=host: another implementation's";
  const int residual = args.alpha + 2;
  const std::string why =
      refuse_uneven_rows(call, {args.scale_a, args.scale_b, args.out, residual});
  if (!why.empty()) return why;
  Stack b;
  if (!strided_stack(call.tensor(args.a), &o->a) || !strided_stack(call.tensor(args.b), &b))
    return "the rows of a or b are not evenly spaced";
  rows_stack(call.tensor(args.out), &o->out);
  if (call.has(residual)) rows_stack(call.tensor(residual), &o->residual);
  o->b = {b.data, b.dtype, b.columns, b.rows, 1, b.column_stride, b.row_stride, 0};
  o->a_along_k = lies_along_k(o->a, true);
  o->b_along_k = lies_along_k(o->b, false);
  return "";
}

// Blocks have a kernel on Hopper alone.
inline std::string refuse_packed_scaled(const Call& call, const ScaledArgs& args) {
  if (wants_extended(call)) return refuse_extended(call);
  Operands o;
  std::string why = read_strided(call, args, &o);
  if (why.empty() && granularity_of(call, args) == Granularity::kBlock && !on_hopper(call))
    why = "takes scales of blocks on Hopper alone";
  if (why.empty()) why = refuse_packing(o);
  return why.empty() ? refuse_misaligned(call, {args.out, args.scale_a, args.scale_b, args.alpha,
                                                args.alpha + 1, args.alpha + 2})
                     : why;
}

inline Status read_packed(const Call& call, const char* name, const ScaledArgs& args, Operands* o) {
  const std::string why = read_strided(call, args, o);
  return why.empty() ? pack_operands(call, name, o) : unsupported(why);
}

// The unfused epilogue: the GEMM's f32 output, before what its kernels need.
#define PESTLE_UNFUSED_SCALED_BYTES "4*M*N + numel(a) + numel(b) + 16*(M + 2*K + N) + 8192"
// The same where that GEMM may be by split-K.
inline constexpr const char* kUnfusedScaledWorkspace =
    PESTLE_UNFUSED_SCALED_BYTES " + " PESTLE_SPLIT_K_BYTES("1");

inline std::string refuses_unfused_scaled(const Call& call, const Machine& machine) {
  return wants_quantized_output(call) ? refuse_quantized_output(call)
                                      : refuse_without_extended(call, machine);
}

// T: float, or int for codes of i8.
template <class T>
Status run_fallback_scaled(const Call& call, const char* name, const ScaledArgs& args) {
  const Granularity granularity = granularity_of(call, args);
  FallbackGemm job;
  job.a = AnyTensor(call.tensor(args.a));
  job.b = AnyTensor(call.tensor(args.b));
  job.b_is_rows = true;
  job.m = row_count(call.tensor(args.a));
  job.n = row_count(call.tensor(args.b));
  job.k = row_length(call.tensor(args.a));
  const bool blocks = granularity == Granularity::kBlock;
  const int64_t rows = granularity == Granularity::kTensor ? 0 : 1;
  job.scale_a = {AnyTensor(call.tensor(args.scale_a)), rows, blocks};
  job.scale_b = {AnyTensor(call.tensor(args.scale_b)), blocks ? 128 : rows, blocks};
  return run_fallback_gemm<T>(call, name, args.out, args.alpha, job);
}

}  // namespace pestle::ops
