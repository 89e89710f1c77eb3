// A linear layer that quantises its activations in the call, on CUDA: the quantiser's kernels (or,
// with input_act, those of activations and norms with quantised output) write codes and a scale a
// row into the caller's workspace, the GEMM of quantised operands reads them there: two launches.
// Map      the quantiser's (ops/quant/rowwise), then the GEMM's (ops/gemm/sm90, ops/gemm/sm80).
// Traffic  x once, codes once written and read (mostly out of the L2), the weight and out once.
// Numerics the codes are those of the quantising op; then as the op that multiplies codes.
#pragma once

#include "ops/gemm/cublaslt/gemm_cublaslt.h"
#include "ops/gemm/linear/linear_output.h"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm90/gemm_scaled.cuh"
#include "ops/quant/hadamard/quantize_rotated.cuh"
#include "ops/quant/rowwise/quantize_rows.cuh"
#include "ops/shared/inner_call.h"

namespace pestle::ops {

// Bytes, for a contract with symbols M and K: codes, scales, and a maximum for each scale; x after
// input_act.
#define PESTLE_LINEAR_INPUT_BYTES                                           \
  "if(activations == row, 256 + round_up(M*K,256) + 2*round_up(4*M,256) + " \
  "if(input_act == none, 0, bytes(x)*M*K), 0)"
inline constexpr const char* kLinearInputWorkspace = PESTLE_LINEAR_INPUT_BYTES;
// The same, and what split-K needs.
inline constexpr const char* kSplitKLinearWorkspace =
    PESTLE_LINEAR_INPUT_BYTES " + " PESTLE_SPLIT_K_BYTES("1");
#undef PESTLE_LINEAR_INPUT_BYTES
// The same, and what cuBLASLt needs.
inline constexpr const char* kLibraryLinearWorkspace =
    "256 + round_up(M*K,256) + 2*round_up(4*M,256) + " PESTLE_CUBLAS_SCALED_BYTES
    " + if(input_act == none, 0, bytes(x)*M*K)";
// x after input_act and rotated, where it is not quantised.
#define PESTLE_FLOAT_X_BYTES " + if(activations == float, 1536 + (bytes(x) + 4)*M*K, 0)"
// Beneath quantised output: out as bf16, then what the GEMM and its quantiser need.
inline constexpr const char* kLinearQuantizedOutputWorkspace =
    "if(keep_out, 0, 2*M*N) + 512 + 256 + round_up(M*K,256) + 2*round_up(4*M,256) + "
    "if(input_act == none, 0, bytes(x)*M*K) + 4*M*(cdiv(N,128) + 1) + 9216 + " PESTLE_UNFUSED_BYTES
    " + " PESTLE_SPLIT_K_BYTES("1") " + " PESTLE_UNFUSED_GEMM_BYTES PESTLE_FLOAT_X_BYTES;

// The unfused epilogue: the GEMM's f32 output, before what its kernels need.
#define PESTLE_UNFUSED_LINEAR_BYTES                           \
  "4*M*N + 8192 + round_up(M*K,256) + 2*round_up(4*M,256) + " \
  "if(input_act == none, 0, bytes(x)*M*K)"
inline constexpr const char* kUnfusedLinearWorkspace =
    PESTLE_UNFUSED_LINEAR_BYTES " + " PESTLE_SPLIT_K_BYTES("1") PESTLE_FLOAT_X_BYTES;
// The same where that GEMM may be cuBLASLt's.
inline constexpr const char* kUnfusedLibraryLinearWorkspace =
    PESTLE_UNFUSED_LINEAR_BYTES " + " PESTLE_CUBLAS_SCALED_BYTES PESTLE_FLOAT_X_BYTES;

struct QuantizedX {
  TensorView codes;  // [M, K] without gaps
  TensorView scale;  // [M, 1]
  uint32_t* amax = nullptr;
  char* rest = nullptr;  // of the workspace
};

inline QuantizedX quantized_x(const Call& call, const TensorView& x, DType dtype) {
  const auto round_up = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t m = row_count(x), k = input_columns(call);
  auto* p = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(call.workspace) + 255) &
                                    ~uintptr_t{255});
  const int64_t dims[2] = {m, k}, one[2] = {m, 1};
  QuantizedX quantized;
  quantized.codes = make_view(p, dtype, 2, dims);
  quantized.scale = make_view(p + round_up(m * k), DType::kF32, 2, one);
  quantized.codes.device = quantized.scale.device = x.device;
  quantized.amax = reinterpret_cast<uint32_t*>(p + round_up(m * k) + round_up(4 * m));
  quantized.rest = p + round_up(m * k) + 2 * round_up(4 * m);
  return quantized;
}

// The kernel of quantize_rows.cuh for a computed scale a row, and no other of its kernels.
template <class T, class Code>
Status start_rows_of(const Call& call, const char* name, const QuantizeRows& b) {
  const RowMatrix m = row_matrix(b, nullptr);
  const auto threads = [&](int64_t each) {
    return static_cast<int>(cuda::ceil_div(cuda::ceil_div(m.units, each), 32) * 32);
  };
  if (m.units <= 1024)
    return cuda::launch_early(call, name, {m.rows, threads(4)}, quantize_row<T, Code, 4>, m);
  if (m.units <= 4096)
    return cuda::launch_early(call, name, {m.rows, threads(8)}, quantize_row<T, Code, 8>, m);
  return cuda::launch_early(call, name, {m.rows, threads(16)}, quantize_row<T, Code, 16>, m);
}
template <class Code>
Status start_rows_of(const Call& call, const char* name, const QuantizeRows& b) {
  switch (b.x.dtype) {
    case DType::kBF16: return start_rows_of<cuda::Bf16, Code>(call, name, b);
    case DType::kF16: return start_rows_of<cuda::F16, Code>(call, name, b);
    default: return start_rows_of<cuda::F32, Code>(call, name, b);
  }
}

inline QuantizeRows input_rows(const TensorView& x, int64_t hadamard, const QuantizedX& quantized) {
  const int64_t m = row_count(x), k = row_length(x);
  return {x,
          quantized.codes,
          quantized.scale,
          true,
          m,
          k,
          {1, k, m, 1},
          static_cast<int>(hadamard),
          {false, 0}};
}
// Does one kernel make the codes (quantize_row), which lets the next one begin when all before it has
// ended? Then that one may read what this call has not written.
inline bool quantizes_by_rows(const Call& call, const TensorView& x, int64_t hadamard,
                              const QuantizedX& quantized) {
  return !has_input_act(call) && refuse_quantize_rows(input_rows(x, hadamard, quantized)).empty();
}

// Rows of x to codes: the quantising op's kernels, whichever takes x; their codes are the same.
template <class Code>
Status quantize_input_rows(const Call& call, const char* name, const TensorView& x,
                           int64_t hadamard, const QuantizedX& quantized) {
  if (row_count(x) == 0 || row_length(x) == 0) return {};
  const QuantizeRows rows = input_rows(x, hadamard, quantized);
  Call inner = call;
  inner.workspace = quantized.amax;
  if (refuse_quantize_rows(rows).empty()) return start_rows_of<Code>(inner, name, rows);
  if constexpr (std::is_same_v<Code, Int8Code>) {
    if (refuse_quantize_rotated(rows).empty()) return run_quantize_rotated(inner, name, rows);
  }
  return run_quantize_any<Code>(inner, name, rows);
}

// x after input_act to codes: by that op's own quantised output, or, where it has none of these
// codes or is an activation that would rotate on the way (200 us for 4608 x 12288 pairs on an H200,
// 81 without codes), by what it gives in the workspace.
template <class Code>
Status quantize_input(const Call& call, const char* name, const TensorView& x, int64_t hadamard,
                      const QuantizedX& quantized) {
  if (!has_input_act(call)) return quantize_input_rows<Code>(call, name, x, hadamard, quantized);
  const int64_t k = row_length(quantized.codes);
  if (numel(quantized.codes) == 0) return {};
  const bool turns = hadamard > 0 && label_of(call, "input_act") != "rms_norm";
  if (quantized.codes.dtype != DType::kE5M2 && !turns) {
    const char* format = quantized.codes.dtype == DType::kI8 ? "int8_row" : "fp8_row";
    return run_input_quantized(call, format, hadamard,
                               rows_like_x(call, quantized.codes.data, quantized.codes.dtype, k),
                               rows_like_x(call, quantized.scale.data, DType::kF32, 1));
  }
  const TensorView y = rows_like_x(call, quantized.rest, x.dtype, k);
  PESTLE_TRY(run_input(call, y));
  return quantize_input_rows<Code>(call, name, y, hadamard, quantized);
}

// Positions in the contract.
struct LinearQuantizedArgs {
  int x, weight, scale, out, alpha, granularity, activations;
};

inline std::string refuse_float(const Call& call, const LinearQuantizedArgs& args) {
  return call.integer(args.activations) == 0 ? "activations=float: another implementation's" : "";
}
inline std::string refuse_float_activations(const Call& call, const LinearQuantizedArgs& args) {
  const std::string why = refuse_float(call, args);
  return why.empty() ? refuse_quantized_output(call) : why;
}

// What the implementations beyond the first say; the unfused epilogue and quantised output call the
// op again, which takes activations=float elsewhere.
template <const LinearQuantizedArgs& kArgs>
struct LinearQuantizedRefusals {
  static std::string fallback(const Call& call, const Machine&) {
    return wants_extended(call) ? refuse_extended(call) : refuse_float_activations(call, kArgs);
  }
  static std::string unfused(const Call& call, const Machine& machine) {
    const std::string why = refuse_without_extended(call, machine);
    return why.empty() ? refuse_quantized_output(call) : why;
  }
  static std::string quantized_output(const Call& call, const Machine& machine) {
    return refuse_plain(call, machine);
  }
};

inline std::string read_linear(const Call& call, const LinearQuantizedArgs& args, Operands* o) {
  const int residual = args.alpha + 2;
  const std::string why = refuse_uneven_rows(call, {args.weight, args.scale, args.out, residual});
  if (!why.empty()) return why;
  const TensorView& x = call.tensor(args.x);
  Stack weight;
  rows_stack(call.tensor(args.weight), &weight);
  rows_stack(call.tensor(args.out), &o->out);
  if (call.has(residual)) rows_stack(call.tensor(residual), &o->residual);
  // In the workspace: aligned, dense.
  const int64_t k = weight.columns;
  o->a = {nullptr, weight.dtype, row_count(x), k, 1, k, 1, 0};
  o->b = {weight.data, weight.dtype, weight.columns, weight.rows, 1, 1, weight.row_stride, 0};
  return "";
}

inline std::string refuse_linear_quantized(const Call& call, const LinearQuantizedArgs& args) {
  std::string why = refuse_float_activations(call, args);
  if (why.empty() && numel(call.tensor(args.x)) == 0) why = "is for products that are not empty";
  Operands o;
  if (why.empty()) why = read_linear(call, args, &o);
  if (why.empty()) why = refuse_operands(o);
  if (why.empty()) why = refuse_extended_parts(call, args.alpha, o, true);
  return why.empty() ? refuse_misaligned(
                           call, {args.out, args.scale, args.alpha, args.alpha + 1, args.alpha + 2})
                     : why;
}

// The operands after the codes are made.
inline Status read_quantized(const Call& call, const LinearQuantizedArgs& args,
                             const QuantizedX& quantized, Operands* o) {
  const std::string why = read_linear(call, args, o);
  if (!why.empty()) return unsupported(why);
  o->a.data = quantized.codes.data;
  o->a.dtype = quantized.codes.dtype;
  return {};
}
inline void fill_quantized_scales(const Call& call, const LinearQuantizedArgs& args,
                                  const QuantizedX& quantized, hopper::EpilogueArguments* e) {
  const TensorView& scale = call.tensor(args.scale);
  int64_t step = 0;
  if (call.integer(args.granularity) == 1) even_rows(scale, step);
  e->rows = {quantized.scale.as<float>(), 1};
  e->columns = {scale.as<float>(), step};
}

// After the codes are made: the operands and the job of their GEMM with the weight.
inline Status fill_linear(const Call& call, const LinearQuantizedArgs& args,
                          const QuantizedX& quantized, Operands* o, GemmJob* job) {
  PESTLE_TRY(read_quantized(call, args, quantized, o));
  PESTLE_TRY(fill_epilogue(call, args.alpha, *o, &job->epilogue));
  fill_quantized_scales(call, args, quantized, &job->epilogue);
  return {};
}

// A product whose codes of x are made.
struct QuantizedLinear {
  QuantizedX x;
  Operands o;
  GemmJob job{};
};

// `why`: what whole tiles refuse.
inline std::string refuse_linear_split_k(const Call& call, const Machine& machine, std::string why,
                                         const LinearQuantizedArgs& args, GemmSums sums) {
  Operands o;
  if (why.empty()) read_linear(call, args, &o);
  if (why.empty() && !wants_extended(call) && refuse_gemv(o).empty())
    why = "few rows have a kernel of their own";
  return refuse_split_k(call, machine, why, o, sums);
}

inline std::string refuse_portable_linear(const Call& call, const LinearQuantizedArgs& args,
                                          DType codes) {
  if (wants_extended(call)) return refuse_extended(call);
  std::string why = refuse_float_activations(call, args);
  Operands o;
  if (why.empty()) why = read_linear(call, args, &o);
  o.a.dtype = codes;
  if (why.empty()) why = refuse_portable(o);
  return why.empty() ? refuse_misaligned(
                           call, {args.out, args.scale, args.alpha, args.alpha + 1, args.alpha + 2})
                     : why;
}
inline Status run_portable_linear(const Call& call, const char* name,
                                  const LinearQuantizedArgs& args, const QuantizedX& quantized) {
  Operands o;
  PESTLE_TRY(read_quantized(call, args, quantized, &o));
  hopper::EpilogueArguments e;
  fill_epilogue_values(call, args.alpha, o, &e);
  fill_quantized_scales(call, args, quantized, &e);
  return run_portable(call, name, o, e);
}

// T: float, or int for codes of i8.
template <class T>
Status run_fallback_linear(const Call& call, const char* name, const LinearQuantizedArgs& args,
                           const QuantizedX& quantized) {
  const TensorView& weight = call.tensor(args.weight);
  FallbackGemm job;
  job.a = AnyTensor(quantized.codes);
  job.b = AnyTensor(weight);
  job.b_is_rows = true;
  job.m = row_count(quantized.codes);
  job.n = row_count(weight);
  job.k = row_length(weight);
  if (job.k > 0) job.scale_a = {AnyTensor(quantized.scale), 1, false};
  job.scale_b = {AnyTensor(call.tensor(args.scale)), call.integer(args.granularity), false};
  return run_fallback_gemm<T>(call, name, args.out, args.alpha, job);
}

}  // namespace pestle::ops
