// Starting many_rows.cuh for linear layers: what it refuses, its job, the tile, x put into the
// workspace where its rows lie otherwise than the kernel needs or input_act changes it.
#pragma once

#include "backends/cuda/host/tensor_amax.h"
#include "ops/copy/strided_copy_cuda.h"
#include "ops/gemm/gemv/gemv_weight_only.cuh"
#include "ops/gemm/sm90/gemm_launch.cuh"
#include "ops/gemm/weight_only/formats.cuh"
#include "ops/gemm/weight_only/many_rows.cuh"

namespace pestle::ops {

namespace many_rows = cuda::many_rows;

// Of a contract with symbols M and K: x in the workspace.
#define PESTLE_MANY_ROWS_X_BYTES "bytes(x)*M*K + 512"
inline constexpr const char* kManyRowsInputWorkspace = PESTLE_MANY_ROWS_X_BYTES;
inline constexpr const char* kManyRowsUnfusedWorkspace =
    PESTLE_UNFUSED_BYTES " + 512 + " PESTLE_MANY_ROWS_X_BYTES;

// All leading dimensions as one.
inline std::string read_even(const Call& call, int place, Stack* s) {
  const TensorView& t = call.tensor(place);
  *s = {t.data, t.dtype, row_count(t), row_length(t), 1, 0, 1, 0};
  if (even_rows(t, s->row_stride)) return "";
  return std::string(call.spec->args[static_cast<size_t>(place)].name) +
         "'s rows are not dense and evenly spaced";
}

// The epilogue's operands.
inline std::string read_outputs(const Call& call, const WeightOnlyArgs& args, Operands* o) {
  const int residual = args.alpha + 2, gate = args.alpha + kGatePlace;
  std::string why = read_even(call, args.out, &o->out);
  if (why.empty() && call.has(residual)) why = read_even(call, residual, &o->residual);
  Stack rows;
  if (why.empty() && call.has(gate)) why = read_even(call, gate, &rows);
  return why.empty() ? refuse_misaligned(call, {args.out, args.alpha, args.alpha + 1, residual,
                                                args.alpha + kBetaPlace, gate})
                     : why;
}

// Copies count 16 bytes in 32 bits, and run a tile past the end.
inline std::string refuse_far_rows(const char* name, const TensorView& t) {
  const bool far = (row_count(t) + 256) * cuda::row_distance(t) / 16 > UINT_MAX;
  return far ? std::string(name) + "'s rows span more than 64 GiB" : "";
}

// Why the kernel can't make the product of the call, wherever x lies; empty: it can. `bits` of a
// code of the weight.
inline std::string refuse_many_rows_of_any_dtype(const Call& call, const WeightOnlyArgs& args,
                                                 int bits) {
  const TensorView& weight = call.tensor(args.weight);
  const TensorView& x = call.tensor(args.x);
  const int64_t m = row_count(x), n = weight.shape[0], k = weight.shape[1] * 8 / bits;
  if (m == 0 || n == 0 || k == 0) return "is for products that are not empty";
  if (m > INT_MAX / 4 || n > INT_MAX / 4 || k > INT_MAX / 4) return "M, N and K must be below 2^29";
  if (k % 32 != 0) return "K must be a multiple of 32";
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  Operands o;
  if (std::string why = read_outputs(call, args, &o); !why.empty()) return why;
  const char* name = call.spec->args[static_cast<size_t>(args.weight)].name;
  if (std::string why = cuda::refuse_unaligned(name, weight); !why.empty()) return why;
  return refuse_far_rows(name, weight);
}
inline std::string refuse_many_rows_of_any_x(const Call& call, const WeightOnlyArgs& args,
                                             int bits) {
  if (call.tensor(args.x).dtype == DType::kF32)
    return "x: f32 has no CUDA kernel yet for more than 16 rows";
  return refuse_many_rows_of_any_dtype(call, args, bits);
}
inline std::string refuse_many_rows_x(const Call& call, const WeightOnlyArgs& args) {
  if (has_input_act(call)) return "input_act: another implementation's";
  const TensorView& x = call.tensor(args.x);
  if (std::string why = cuda::refuse_unaligned("x", x); !why.empty()) return why;
  return refuse_far_rows("x", x);
}

// x in the workspace: after input_act, or copied.
inline Status place_x(const Call& call, const char* name, const WeightOnlyArgs& args,
                      TensorView* x) {
  const auto at = (reinterpret_cast<uintptr_t>(call.workspace) + 255) & ~uintptr_t{255};
  const TensorView& given = call.tensor(args.x);
  *x = rows_like_x(call, reinterpret_cast<void*>(at), given.dtype, input_columns(call));
  if (has_input_act(call)) return run_input(call, *x);
  const CopyPlan plan(given, *x);
  return refuse_fast_copy(plan).empty() ? fast_copy(call, name, plan) : any_copy(call, name, plan);
}

#ifdef __CUDACC__

inline many_rows::Job many_rows_job(const Call& call, const WeightOnlyArgs& args,
                                    const TensorView& x, int bits) {
  const TensorView& weight = call.tensor(args.weight);
  many_rows::Job job;
  Operands o;
  read_outputs(call, args, &o);
  fill_factors(call, args.alpha, &job.epilogue);
  fill_extended_parts(call, args.alpha, o, &job.epilogue);
  fill_output_values(o, &job.epilogue);
  job.x = x.as<char>();
  job.weight = weight.as<char>();
  job.m = static_cast<int>(row_count(x));
  job.n = static_cast<int>(weight.shape[0]);
  job.k = static_cast<int>(weight.shape[1] * 8 / bits);
  job.x_row = static_cast<uint32_t>(cuda::row_distance(x) / 16);
  job.weight_row = static_cast<uint32_t>(cuda::row_distance(weight) / 16);
  return job;
}

template <class C, class Format>
Status start_many_rows_tile(const Call& call, const char* name, many_rows::Job job,
                            const Format& format, const typename C::X& x) {
  job.m_tiles = static_cast<int>(cuda::ceil_div(job.m, C::kTileM));
  job.n_tiles = static_cast<int>(cuda::ceil_div(job.n, C::kTileN));
  if (int64_t{job.m_tiles} * job.n_tiles > INT_MAX / many_rows::kGroup)
    return unsupported(std::string(name) + ": more than 2^27 tiles");
  const cuda::Grid grid{int64_t{job.m_tiles} * job.n_tiles, many_rows::kThreads, C::kSharedBytes};
  return cuda::launch(call, name, grid, many_rows::many_rows_kernel<C, Format>, job, format, x);
}

template <bool kBf16, class Format, class X = many_rows::PlainRows>
Status start_many_rows(const Call& call, const char* name, const many_rows::Job& job,
                       const Format& format, const X& x = {}) {
  using Large = many_rows::Config<kBf16, 128, 8, Format, X>;
  // 64 rows of x would spill where sums of 32 of k begin anew.
  constexpr int kSmallM = Format::kGroupSums || X::kDecoded ? 48 : 64;
  using Small = many_rows::Config<kBf16, kSmallM, 4, Format, X>;
  const int device = cuda::device_index(call);
  const int64_t multiprocessors = cuda::multiprocessors(device);
  const auto waves = [&](int64_t tile_m, int64_t tile_n) {
    const int64_t tiles = cuda::ceil_div(job.m, tile_m) * cuda::ceil_div(job.n, tile_n);
    return static_cast<double>(cuda::ceil_div(tiles, multiprocessors));
  };
  // A small tile of 64 rows is a quarter of a large one, and reckoned to take 0.3 of its time.
  const double share = 0.3 * kSmallM / 64;
  const bool large = cuda::most_shared_bytes(device) >= Large::kSharedBytes &&
                     waves(128, 256) <= share * waves(kSmallM, 128);
  return large ? start_many_rows_tile<Large>(call, name, job, format, x)
               : start_many_rows_tile<Small>(call, name, job, format, x);
}

// An MX weight: x of bf16 multiplies codes times scales, f16 codes alone.
template <int kBits>
Status run_mx_many_rows(const Call& call, const char* name, const WeightOnlyArgs& args,
                        const TensorView& x, const many_rows::MxWeight& weight) {
  const many_rows::Job job = many_rows_job(call, args, x, kBits);
  if (x.dtype == DType::kBF16)
    return start_many_rows<true>(call, name, job, many_rows::Mx<kBits, false>{weight});
  return start_many_rows<false>(call, name, job, many_rows::Mx<kBits, true>{weight});
}

template <class Format>
Status run_many_rows(const Call& call, const char* name, const WeightOnlyArgs& args,
                     const TensorView& x, const Format& format) {
  const many_rows::Job job = many_rows_job(call, args, x, Format::kBits);
  return x.dtype == DType::kBF16 ? start_many_rows<true>(call, name, job, format)
                                 : start_many_rows<false>(call, name, job, format);
}

#endif  // __CUDACC__

// ---- what the ops of such weights have in common ----
// Op: kArgs; kBits; refuse_many(call): why many_rows can't read its scales; run_many(call, x). Where
// few rows have a kernel of their own also refuse_gemv(call), run_gemv(call).
template <class Op>
concept HasGemv = requires(const Call& call) { Op::run_gemv(call); };

template <class Op>
struct WeightOnlyOp {
  static std::string gemv(const Call& call) {
    if constexpr (HasGemv<Op>) {
      const std::string why = refuse_weight_only(call, Op::kArgs);
      return why.empty() ? Op::refuse_gemv(call) : why;
    } else {
      return "few rows of x have no kernel of their own";
    }
  }
  static std::string many_of_any_x(const Call& call) {
    const std::string why = refuse_many_rows_of_any_x(call, Op::kArgs, Op::kBits);
    return why.empty() ? Op::refuse_many(call) : why;
  }

  static std::string refuses_gemv(const Call& call, const Machine&) {
    return wants_extended(call) ? refuse_extended(call) : gemv(call);
  }
  static std::string refuses_many(const Call& call, const Machine&) {
    const std::string why = many_of_any_x(call);
    return why.empty() ? refuse_many_rows_x(call, Op::kArgs) : why;
  }
  static std::string refuses_input(const Call& call, const Machine&) {
    if (refuse_many_rows_x(call, Op::kArgs).empty()) return "x needs no workspace";
    return many_of_any_x(call);
  }
  // The product alone, of which pairs are not, nor the epilogue's operands.
  static std::string refuses_unfused(const Call& call, const Machine& machine) {
    const std::string why = refuse_without_extended(call, machine);
    if (!why.empty() || gemv(call).empty()) return why;
    std::array<Value, kMaxArgs> values{};
    for (size_t i = 0; i < call.args.size(); ++i) values[i] = call.args[i];
    values[static_cast<size_t>(Op::kArgs.alpha + kGatedPlace)].i = 0;
    Call inner = call;
    inner.args = std::span<Value>(values.data(), call.args.size());
    return many_of_any_x(inner);
  }

  static Status run_many(const Call& call) { return Op::run_many(call, call.tensor(Op::kArgs.x)); }
  static Status run_input_first(const Call& call) {
    TensorView x;
    PESTLE_TRY(place_x(call, "many_rows_x", Op::kArgs, &x));
    return Op::run_many(call, x);
  }
};

template <class Op>
constexpr std::array<Impl, 3> many_rows_impls(const char* many, const char* input,
                                              const char* unfused) {
  using All = WeightOnlyOp<Op>;
  return {Impl{.id = many,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = All::refuses_many,
               .run = All::run_many},
          Impl{.id = input,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = All::refuses_input,
               .run = All::run_input_first,
               .workspace = kManyRowsInputWorkspace},
          Impl{.id = unfused,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = All::refuses_unfused,
               .run = run_unfused_on_cuda,
               .workspace = kManyRowsUnfusedWorkspace}};
}

template <class Op>
constexpr std::array<Impl, 4> weight_only_impls(const char* gemv, const char* many,
                                                const char* input, const char* unfused) {
  const auto [with_x, input_first, second_pass] = many_rows_impls<Op>(many, input, unfused);
  return {Impl{.id = gemv,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = WeightOnlyOp<Op>::refuses_gemv,
               .run = Op::run_gemv},
          with_x, input_first, second_pass};
}

}  // namespace pestle::ops
