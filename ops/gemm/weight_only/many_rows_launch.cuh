// Starting many_rows.cuh for linear layers: what it refuses, its job, the tile, x put into the
// workspace where its rows lie otherwise than the kernel needs or input_act changes it.
#pragma once

#include <type_traits>

#include "backends/cuda/host/clusters_at_once.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/copy/strided_copy_cuda.h"
#include "ops/gemm/fallback/decoded_weights.cuh"
#include "ops/gemm/gemv/gemv_weight_launch.cuh"
#include "ops/gemm/weight_only/byte_formats.cuh"
#include "ops/gemm/weight_only/formats.cuh"
#include "ops/gemm/weight_only/k_parts.h"
#include "ops/gemm/weight_only/many_rows.cuh"
#include "ops/gemm/weight_only/many_rows_hopper.cuh"
#include "ops/gemm/weight_only/outputs.h"
#include "ops/gemm/weight_only/row_choice.h"
#include "ops/shared/inner_call.h"

namespace pestle::ops {

namespace many_rows = cuda::many_rows;

// Of a contract with symbols M and K: x in the workspace, after input_act or copied; and, where the
// weight may be rotated, f32 as x is then.
#define PESTLE_MANY_ROWS_X_BYTES "bytes(x)*M*K + 512"
#define PESTLE_ROTATED_X_BYTES PESTLE_MANY_ROWS_X_BYTES " + if(hadamard > 0, 4*M*K + 512, 0)"
struct WeightOnlyWorkspace {
  const char *input, *unfused;
};
inline constexpr WeightOnlyWorkspace kPlainX = {
    PESTLE_MANY_ROWS_X_BYTES, PESTLE_UNFUSED_BYTES " + 512 + " PESTLE_MANY_ROWS_X_BYTES};
inline constexpr WeightOnlyWorkspace kRotatedX = {
    PESTLE_ROTATED_X_BYTES, PESTLE_UNFUSED_BYTES " + 512 + " PESTLE_ROTATED_X_BYTES};

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
// Columns that are rotated together; 0: none.
inline int64_t rotation(const Call& call, const WeightOnlyArgs& args) {
  return args.hadamard < 0 ? 0 : call.integer(args.hadamard);
}
inline std::string refuse_many_rows_x(const Call& call, const WeightOnlyArgs& args) {
  if (has_input_act(call)) return "input_act: another implementation's";
  if (rotation(call, args) != 0) return "hadamard: x is rotated in the workspace first";
  const TensorView& x = call.tensor(args.x);
  if (std::string why = cuda::refuse_unaligned("x", x); !why.empty()) return why;
  return refuse_far_rows("x", x);
}

inline uintptr_t round_up_256(uintptr_t n) { return (n + 255) / 256 * 256; }

// x in the workspace: after input_act; rotated, which makes it f32; or copied.
inline Status place_x(const Call& call, const char* name, const WeightOnlyArgs& args,
                      TensorView* x) {
  const uintptr_t at = round_up_256(reinterpret_cast<uintptr_t>(call.workspace));
  const int64_t columns = input_columns(call), hadamard = rotation(call, args);
  TensorView from = call.tensor(args.x);
  const DType dtype = hadamard == 0 ? from.dtype : DType::kF32;
  *x = rows_like_x(call, reinterpret_cast<void*>(at), dtype, columns);
  if (numel(*x) == 0) return {};
  if (has_input_act(call)) {
    if (hadamard == 0) return run_input(call, *x);
    const uintptr_t behind = round_up_256(at + static_cast<uintptr_t>(size_bytes(*x)));
    from = rows_like_x(call, reinterpret_cast<void*>(behind), from.dtype, columns);
    PESTLE_TRY(run_input(call, from));
  }
  if (hadamard == 0) {
    const CopyPlan plan(from, *x);
    return refuse_fast_copy(plan).empty() ? fast_copy(call, name, plan)
                                          : any_copy(call, name, plan);
  }
  InnerCall inner(call, "hadamard");
  inner.set("x", from);
  inner.set("out", *x);
  inner.set("hadamard", hadamard);
  return inner.run(nullptr, 0);
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
  job.plain = many_rows::is_plain(job.epilogue);
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

// So many weights, whose jobs lack their tiles. For up to 64 rows of x.
template <bool kBf16, class Format>
Status start_many_rows_parts(const Call& call, const char* name, int count,
                             many_rows::Parts<Format>& weights) {
  using C = many_rows::Config<kBf16, 64, 4, Format>;
  int64_t widths[kGemvParts];
  const auto m_tiles = static_cast<int>(cuda::ceil_div(weights.jobs[0].m, C::kTileM));
  for (int p = 0; p < count; ++p) {
    many_rows::Job& job = weights.jobs[p];
    widths[p] = job.n;
    job.m_tiles = m_tiles;
    job.n_tiles = static_cast<int>(cuda::ceil_div(job.n, C::kTileN));
  }
  weights.tiles =
      lay_out_parts(std::span(widths).first(static_cast<size_t>(count)), C::kTileN, m_tiles);
  const cuda::Grid grid{weights.tiles.tiles, many_rows::kThreads, C::kSharedBytes};
  return cuda::launch(call, name, grid, many_rows::many_rows_parts_kernel<C, Format>, weights);
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

// ---- sm_90a -------------------------------------------------------------------------------------
template <class C, class Format>
Status start_hopper_tile(const Call& call, const char* name, const many_rows::Job& job,
                         const Format& format, const KPlan& plan) {
  many_rows::HopperJob of;
  of.job = job;
  of.job.m_tiles = static_cast<int>(cuda::ceil_div(job.m, C::kTileM));
  of.job.n_tiles = static_cast<int>(cuda::ceil_div(job.n, C::kTileN));
  of.parts.count = plan.parts;
  of.parts.steps = static_cast<int>(k_part_steps(job.k, plan.parts));
  const int64_t tiles = int64_t{of.job.m_tiles} * of.job.n_tiles;
  if (tiles > INT_MAX / (2 * many_rows::kGroup))
    return unsupported(std::string(name) + ": more than 2^26 tiles");
  BoxedTensor x;
  x.data = job.x;
  x.element_bytes = 2;
  x.size[0] = job.k, x.size[1] = job.m, x.size[2] = 1;
  x.stride_bytes[0] = x.stride_bytes[1] = int64_t{job.x_row} * 16;
  x.box[0] = many_rows::kStepK, x.box[1] = C::kTileM;
  PESTLE_TRY(cuda::make_tensor_map(x, &of.x));
  BoxedTensor codes;
  codes.data = job.weight;
  codes.element_bytes = 1;
  codes.size[0] = int64_t{job.k} * C::kBits / 8, codes.size[1] = job.n, codes.size[2] = 1;
  codes.stride_bytes[0] = codes.stride_bytes[1] = int64_t{job.weight_row} * 16;
  codes.box[0] = codes.swizzle = C::kCodeRow, codes.box[1] = C::kTileN;
  PESTLE_TRY(cuda::make_tensor_map(codes, &of.codes));
  of.parts.clusters = static_cast<int>(std::min(tiles, plan.at_once));
  const cuda::Grid grid{int64_t{of.parts.clusters} * plan.parts, C::kThreads, C::kSharedBytes,
                        plan.parts};
  return cuda::launch_early(call, name, grid, many_rows::many_rows_hopper_kernel<C, Format>, of,
                            format);
}
// C: one of the tiles.
template <class C, class Format>
Result<KPlan> hopper_plan(const Call& call, const many_rows::Job& job, const Format&,
                          std::span<const TileTime> tiles) {
  const int device = cuda::device_index(call);
  const auto* const kernel =
      reinterpret_cast<const void*>(many_rows::many_rows_hopper_kernel<C, Format>);
  ClusterRoom room;
  room.clusters[1] = cuda::multiprocessors(device);
  for (int size = 2; size <= kMostKParts; ++size) {
    const auto at_once =
        cuda::clusters_at_once(device, kernel, {size, C::kThreads, C::kSharedBytes, size});
    PESTLE_TRY(at_once.status());
    room.clusters[static_cast<size_t>(size)] = at_once.value();
  }
  return choose_k_plan(job.m, job.n, job.k, tiles, room);
}
// So few rows of x, whose tiles have 128, 192 or 256 rows of the weight.
template <bool kBf16, int kRows, int kGroup = 0, class Format>
Status start_hopper_few(const Call& call, const char* name, const many_rows::Job& job,
                        const Format& format, const KPlan& of) {
  using many_rows::HopperConfig;
  switch (of.columns) {
    case 128:
      return start_hopper_tile<HopperConfig<kBf16, kRows, Format, kGroup, 2>>(call, name, job,
                                                                              format, of);
    case 192:
      return start_hopper_tile<HopperConfig<kBf16, kRows, Format, kGroup, 3>>(call, name, job,
                                                                              format, of);
    default:
      // Two sets of sums of more rows leave no registers for four consumers.
      if constexpr (kGroup == 0 || kRows == 16)
        return start_hopper_tile<HopperConfig<kBf16, kRows, Format, kGroup, 4>>(call, name, job,
                                                                                format, of);
      return unsupported(std::string(name) + ": no tile of so many columns");
  }
}
// Of a format whose scales multiply codes.
template <bool kBf16, class Format>
Result<KPlan> hopper_scaled_plan(const Call& call, const many_rows::Job& job,
                                 const Format& format) {
  return hopper_plan<many_rows::HopperConfig<kBf16, 64, Format>>(call, job, format, kScaledTiles);
}
template <bool kBf16, class Format>
Status start_hopper(const Call& call, const char* name, const many_rows::Job& job,
                    const Format& format, const KPlan& of) {
  using many_rows::HopperConfig;
  switch (of.rows) {
    case 16: return start_hopper_few<kBf16, 16>(call, name, job, format, of);
    case 32: return start_hopper_few<kBf16, 32>(call, name, job, format, of);
    case 64: return start_hopper_few<kBf16, 64>(call, name, job, format, of);
    case 128:
      return start_hopper_tile<HopperConfig<kBf16, 128, Format>>(call, name, job, format, of);
    case 192:
      return start_hopper_tile<HopperConfig<kBf16, 192, Format>>(call, name, job, format, of);
    default:
      return start_hopper_tile<HopperConfig<kBf16, 256, Format>>(call, name, job, format, of);
  }
}
template <bool kBf16, class Format>
Status start_hopper(const Call& call, const char* name, const many_rows::Job& job,
                    const Format& format) {
  const auto plan = hopper_scaled_plan<kBf16>(call, job, format);
  PESTLE_TRY(plan.status());
  return start_hopper<kBf16>(call, name, job, format, plan.value());
}
// Up to 32 rows sums of 32 columns are few_rows.cuh's.
template <int kGroup>
constexpr bool kForFewRows = kGroup != 32;
template <bool kBf16, int kGroup, class Format>
Result<KPlan> hopper_sums_plan(const Call& call, const many_rows::Job& job, const Format& format) {
  // Two sets of sums lie in registers: 192 rows of x take all of them.
  constexpr double kMore = kGroup == 32 ? 1.7 : 1;
  static constexpr TileTime kTiles[] = {
      {192, 128, 0.8 * kMore}, {128, 128, 0.56 * kMore}, {64, 192, 0.6 * kMore},
      {64, 128, 0.46 * kMore}, {32, 192, 0.51 * kMore},  {32, 128, 0.4 * kMore},
      {16, 256, 0.63 * kMore}, {16, 192, 0.48 * kMore},  {16, 128, 0.38 * kMore}};
  constexpr size_t kFirst = Format::kMostSums < 192 ? 1 : 0, kEnd = kForFewRows<kGroup> ? 9 : 4;
  constexpr std::span<const TileTime> kAll = kTiles;
  return hopper_plan<many_rows::HopperConfig<kBf16, 128, Format, kGroup>>(
      call, job, format, kAll.subspan(kFirst, kEnd - kFirst));
}
template <bool kBf16, int kGroup, class Format>
Status start_hopper_sums(const Call& call, const char* name, const many_rows::Job& job,
                         const Format& format, const KPlan& of) {
  using many_rows::HopperConfig;
  if constexpr (kForFewRows<kGroup>) {
    if (of.rows == 16) return start_hopper_few<kBf16, 16, kGroup>(call, name, job, format, of);
    if (of.rows == 32) return start_hopper_few<kBf16, 32, kGroup>(call, name, job, format, of);
  }
  switch (of.rows) {
    case 64: return start_hopper_few<kBf16, 64, kGroup>(call, name, job, format, of);
    case 128:
      return start_hopper_tile<HopperConfig<kBf16, 128, Format, kGroup>>(call, name, job, format,
                                                                         of);
    default:
      if constexpr (Format::kMostSums >= 192)
        return start_hopper_tile<HopperConfig<kBf16, 192, Format, kGroup>>(call, name, job, format,
                                                                           of);
      return unsupported(std::string(name) + ": no tile of so many rows of x");
  }
}
template <bool kBf16, int kGroup, class Format>
Status start_hopper_sums(const Call& call, const char* name, const many_rows::Job& job,
                         const Format& format) {
  const auto plan = hopper_sums_plan<kBf16, kGroup>(call, job, format);
  PESTLE_TRY(plan.status());
  return start_hopper_sums<kBf16, kGroup>(call, name, job, format, plan.value());
}
// f() of the columns that kernels sum before they scale, as a type, where scales are of `group`: a
// multiple of 32.
template <class F>
Status with_summed_columns(int group, const F& f) {
  switch (columns_summed(group)) {
    case 128: return f(std::integral_constant<int, 128>{});
    case 64: return f(std::integral_constant<int, 64>{});
    default: return f(std::integral_constant<int, 32>{});
  }
}
template <bool kBf16, class Format>
Status start_hopper_groups(const Call& call, const char* name, const many_rows::Job& job,
                           const Format& format, int group) {
  return with_summed_columns(group, [&](auto columns) {
    return start_hopper_sums<kBf16, decltype(columns)::value>(call, name, job, format);
  });
}
template <class Format>
Status run_hopper_groups(const Call& call, const char* name, const WeightOnlyArgs& args,
                         const Format& format, int group) {
  const TensorView& x = call.tensor(args.x);
  const many_rows::Job job = many_rows_job(call, args, x, Format::kBits);
  return x.dtype == DType::kBF16 ? start_hopper_groups<true>(call, name, job, format, group)
                                 : start_hopper_groups<false>(call, name, job, format, group);
}
// Of groups that are always a multiple of 128 columns.
template <class Format>
Status run_hopper_groups_of_128(const Call& call, const char* name, const WeightOnlyArgs& args,
                                const Format& format) {
  const TensorView& x = call.tensor(args.x);
  const many_rows::Job job = many_rows_job(call, args, x, Format::kBits);
  return x.dtype == DType::kBF16 ? start_hopper_sums<true, 128>(call, name, job, format)
                                 : start_hopper_sums<false, 128>(call, name, job, format);
}
template <class Format>
Status run_many_rows_hopper(const Call& call, const char* name, const WeightOnlyArgs& args,
                            const Format& format, const hopper::Factors& columns = {}) {
  const TensorView& x = call.tensor(args.x);
  many_rows::Job job = many_rows_job(call, args, x, Format::kBits);
  job.epilogue.columns = columns;
  return x.dtype == DType::kBF16 ? start_hopper<true>(call, name, job, format)
                                 : start_hopper<false>(call, name, job, format);
}

// x of f32 is split into parts of bf16: a format for bf16.
template <class Format>
Status start_split_x(const Call& call, const char* name, const many_rows::Job& job,
                     const Format& format) {
  using Tile = many_rows::Config<true, 32, 4, Format, many_rows::SplitRows>;
  return start_many_rows_tile<Tile>(call, name, job, format, {});
}

// An MX weight: x of bf16 multiplies codes times scales, f16 codes alone.
template <int kBits>
Status run_mx_many_rows(const Call& call, const char* name, const WeightOnlyArgs& args,
                        const TensorView& x, const many_rows::MxWeight& weight) {
  const many_rows::Job job = many_rows_job(call, args, x, kBits);
  const many_rows::Mx<kBits, false> scaled{weight};
  switch (x.dtype) {
    case DType::kBF16: return start_many_rows<true>(call, name, job, scaled);
    case DType::kF32: return start_split_x(call, name, job, scaled);
    default: return start_many_rows<false>(call, name, job, many_rows::Mx<kBits, true>{weight});
  }
}

template <int kBits>
Status run_mx_hopper(const Call& call, const char* name, const WeightOnlyArgs& args,
                     const many_rows::MxWeight& weight) {
  const TensorView& x = call.tensor(args.x);
  const many_rows::Job job = many_rows_job(call, args, x, kBits);
  if (x.dtype == DType::kBF16)
    return start_hopper<true>(call, name, job, many_rows::Mx<kBits, false>{weight});
  return start_hopper_sums<false, 32>(call, name, job, many_rows::Mx<kBits, true>{weight});
}

// `columns`: what the epilogue multiplies sums by, where the format has them.
template <class Format>
Status run_many_rows(const Call& call, const char* name, const WeightOnlyArgs& args,
                     const TensorView& x, const Format& format,
                     const hopper::Factors& columns = {}) {
  many_rows::Job job = many_rows_job(call, args, x, Format::kBits);
  job.epilogue.columns = columns;
  switch (x.dtype) {
    case DType::kBF16: return start_many_rows<true>(call, name, job, format);
    case DType::kF32: return start_split_x(call, name, job, format);
    default: return start_many_rows<false>(call, name, job, format);
  }
}

// Scales of so many rows and columns of the weight; 0: of all.
inline many_rows::ScaleGrid scale_grid(const TensorView& scale, int rows, int columns) {
  many_rows::ScaleGrid grid;
  grid.data = scale.as<char>();
  grid.row_bytes = scale.rank < 2 ? 0 : scale.strides[0] * 4;
  grid.column_bytes = scale.rank < 2 ? 0 : scale.strides[1] * 4;
  grid.rows = rows;
  grid.columns = columns;
  return grid;
}

// Bytes with a scale of all ([1]) or one a row ([N, 1]), and what the epilogue takes of it.
template <many_rows::ByteCode kCode>
many_rows::RowBytes<kCode> row_bytes(const TensorView& scale) {
  many_rows::RowBytes<kCode> format;
  format.scale = scale_grid(scale, scale.rank < 2 ? 0 : 1, 0);
  return format;
}
inline hopper::Factors row_factors(const TensorView& scale) {
  return {scale.as<float>(), scale.rank < 2 ? 0 : scale.strides[0]};
}
template <many_rows::ByteCode kCode>
Status run_row_bytes(const Call& call, const char* name, const WeightOnlyArgs& args,
                     const TensorView& x, const TensorView& scale) {
  return run_many_rows(call, name, args, x, row_bytes<kCode>(scale), row_factors(scale));
}
// Bytes with scales of groups of a multiple of 32 columns.
template <many_rows::ByteCode kCode>
many_rows::GroupBytes<kCode> group_bytes(const Call& call, const WeightOnlyArgs& args,
                                         const TensorView& scale, int rows, int columns) {
  many_rows::GroupBytes<kCode> format;
  format.scale = scale_grid(scale, rows, columns);
  format.k = static_cast<int>(call.tensor(args.weight).shape[1]);
  format.groups = cuda::FastDivisor(static_cast<uint32_t>(std::max(columns, 1)));
  return format;
}
template <many_rows::ByteCode kCode>
Status run_group_bytes(const Call& call, const char* name, const WeightOnlyArgs& args,
                       const TensorView& x, const TensorView& scale, int rows, int columns) {
  return run_many_rows(call, name, args, x, group_bytes<kCode>(call, args, scale, rows, columns));
}

template <many_rows::ByteCode kCode>
Status run_row_bytes_hopper(const Call& call, const char* name, const WeightOnlyArgs& args,
                            const TensorView& scale) {
  return run_many_rows_hopper(call, name, args, row_bytes<kCode>(scale), row_factors(scale));
}

template <many_rows::ByteCode kCode>
Status run_group_bytes_hopper(const Call& call, const char* name, const WeightOnlyArgs& args,
                              const TensorView& scale, int rows, int columns) {
  const auto format = group_bytes<kCode>(call, args, scale, rows, columns);
  if constexpr (kCode != many_rows::ByteCode::kInt8)  // FP8's blocks
    return run_hopper_groups_of_128(call, name, args, format);
  else
    return run_hopper_groups(call, name, args, format, columns);
}

// The same by GEMV.
template <class Format>
Status run_weight_mma(const Call& call, const char* name, const WeightOnlyArgs& args,
                      const Format& format) {
  return call.tensor(args.x).dtype == DType::kBF16
             ? gemv::start_weight_mma<true>(call, name, args, format)
             : gemv::start_weight_mma<false>(call, name, args, format);
}
// kE4m3: FP8 of either kind.
template <many_rows::ByteCode kCode>
gemv::GemvRowBytes<kCode> gemv_row_bytes(const Call& call, const WeightOnlyArgs& args,
                                         const TensorView& scale) {
  gemv::GemvRowBytes<kCode> format;
  format.e5m2 = call.tensor(args.weight).dtype == DType::kE5M2;
  format.scale = scale_grid(scale, scale.rank < 2 ? 0 : 1, 0);
  return format;
}
template <many_rows::ByteCode kCode>
gemv::GemvGroupBytes<kCode> gemv_group_bytes(const Call& call, const WeightOnlyArgs& args,
                                             const TensorView& scale, int rows, int columns) {
  gemv::GemvGroupBytes<kCode> format;
  format.e5m2 = call.tensor(args.weight).dtype == DType::kE5M2;
  format.scale = scale_grid(scale, rows, columns);
  format.k = static_cast<int>(call.tensor(args.weight).shape[1]);
  return format;
}
template <many_rows::ByteCode kCode>
Status run_row_bytes_gemv(const Call& call, const char* name, const WeightOnlyArgs& args,
                          const TensorView& scale) {
  return run_weight_mma(call, name, args, gemv_row_bytes<kCode>(call, args, scale));
}
template <many_rows::ByteCode kCode>
Status run_group_bytes_gemv(const Call& call, const char* name, const WeightOnlyArgs& args,
                            const TensorView& scale, int rows, int columns) {
  return run_weight_mma(call, name, args,
                        gemv_group_bytes<kCode>(call, args, scale, rows, columns));
}

#endif  // __CUDACC__

// ---- what the ops of such weights have in common ----
// Op: kArgs; kBits; kWorkspace; refuse_call(call): why none of the implementations takes it;
// refuse_many(call): why many_rows can't read its scales; run_many(call, x); summed_columns(call):
// those whose sums are scaled together, and may be, on sm_90a, 0: none; sums_groups(call): must they be;
// run_hopper(call); kFallback, a name, and
// fallback_weight(call), which gemm_fallback_decoded.cuh multiplies by. Where few rows have a kernel
// of their own also refuse_gemv(call), and for bf16 and f16 mma_scale_row(call), bytes of a row's scales
// in shared memory, and run_mma(call); of 4 bits run_gemv(call) too.
template <class Op>
RowKernel row_kernel(const Call& call, const Machine& machine) {
  const TensorView& weight = call.tensor(Op::kArgs.weight);
  RowCall of;
  of.m = row_count(call.tensor(Op::kArgs.x));
  of.n = weight.shape[0], of.k = weight.shape[1] * 8 / Op::kBits;
  of.bits = Op::kBits;
  of.summed = Op::summed_columns(call);
  of.row_bytes = Op::kBits == 8 && Op::kSlabFactors;
  of.wgmma = refuse_machine(machine).empty();
  of.clusters = machine.compute_capability >= 90;
  return choose_row_kernel(of);
}
template <class Op>
struct WeightOnlyOp {
  static std::string refuses_gemv(const Call& call, const Machine&) {
    if (wants_extended(call)) return refuse_extended(call);
    std::string why = Op::refuse_call(call);
    if (why.empty()) why = refuse_weight_only(call, Op::kArgs, Op::kBits);
    return why.empty() ? Op::refuse_gemv(call) : why;
  }
  static std::string refuses_mma(const Call& call, const Machine& machine) {
    const std::string why = refuses_gemv(call, machine);
    return why.empty()
               ? gemv::refuse_mma(call, Op::kArgs, machine, Op::kBits, Op::mma_scale_row(call))
               : why;
  }
  static std::string many_of_any_x(const Call& call) {
    std::string why = Op::refuse_call(call);
    if (why.empty()) why = refuse_many_rows_of_any_dtype(call, Op::kArgs, Op::kBits);
    return why.empty() ? Op::refuse_many(call) : why;
  }
  static std::string refuses_many(const Call& call, const Machine&) {
    const std::string why = many_of_any_x(call);
    return why.empty() ? refuse_many_rows_x(call, Op::kArgs) : why;
  }
  static std::string refuses_hopper(const Call& call, const Machine& machine) {
    std::string why = refuse_machine(machine);
    if (!why.empty()) return why;
    const TensorView& x = call.tensor(Op::kArgs.x);
    if (x.dtype == DType::kF32) return "is for x of bf16 or f16";
    if (row_kernel<Op>(call, machine) != RowKernel::kMany)
      return "others are faster with so few rows of x and such a weight";
    return refuses_many(call, machine);
  }
  static std::string refuses_input(const Call& call, const Machine&) {
    if (refuse_many_rows_x(call, Op::kArgs).empty()) return "x needs no workspace";
    return many_of_any_x(call);
  }
  static std::string refuses_fallback(const Call& call, const Machine&) {
    const std::string why = refuse_extended(call);
    return why.empty() ? Op::refuse_call(call) : why;
  }

  static Status run_many(const Call& call) { return Op::run_many(call, call.tensor(Op::kArgs.x)); }
  static Status run_input_first(const Call& call) {
    TensorView x;
    PESTLE_TRY(place_x(call, "many_rows_x", Op::kArgs, &x));
    return Op::run_many(call, x);
  }
  static Status run_fallback(const Call& call) {
    if (numel(call.tensor(Op::kArgs.out)) == 0) return {};
    TensorView x = call.tensor(Op::kArgs.x);
    if (has_input_act(call) || rotation(call, Op::kArgs) != 0)
      PESTLE_TRY(place_x(call, "fallback_x", Op::kArgs, &x));
    return run_fallback_decoded(call, Op::kFallback, Op::kArgs.out, Op::kArgs.alpha, row_length(x),
                                AnyFloatRows{AnyTensor(x)}, Op::fallback_weight(call));
  }
};

template <class Op>
constexpr Impl mma_impl(const char* id) {
  return {.id = id,
          .device = DeviceType::kCuda,
          .min_compute_capability = 80,
          .refuses = WeightOnlyOp<Op>::refuses_mma,
          .run = Op::run_mma};
}

template <class Op>
constexpr Impl hopper_impl(const char* id) {
  return {.id = id,
          .device = DeviceType::kCuda,
          .min_compute_capability = 90,
          .refuses = WeightOnlyOp<Op>::refuses_hopper,
          .run = Op::run_hopper};
}

// Without the unfused epilogue.
template <class Op>
constexpr std::array<Impl, 3> float_x_impls(const char* many, const char* input,
                                            const char* fallback) {
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
               .workspace = Op::kWorkspace.input},
          Impl{.id = fallback,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = All::refuses_fallback,
               .run = All::run_fallback,
               .workspace = Op::kWorkspace.input}};
}

template <class Op>
constexpr std::array<Impl, 4> many_rows_impls(const char* many, const char* input,
                                              const char* unfused, const char* fallback) {
  const auto [with_x, input_first, any] = float_x_impls<Op>(many, input, fallback);
  return {with_x, input_first,
          Impl{.id = unfused,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = refuse_without_extended,
               .run = run_unfused_on_cuda,
               .workspace = Op::kWorkspace.unfused},
          any};
}

template <class Op>
constexpr std::array<Impl, 7> weight_only_impls(const char* hopper, const char* mma,
                                                const char* gemv, const char* many,
                                                const char* input, const char* unfused,
                                                const char* fallback) {
  const auto [with_x, input_first, second_pass, any] =
      many_rows_impls<Op>(many, input, unfused, fallback);
  return {hopper_impl<Op>(hopper),
          mma_impl<Op>(mma),
          Impl{.id = gemv,
               .device = DeviceType::kCuda,
               .min_compute_capability = 80,
               .refuses = WeightOnlyOp<Op>::refuses_gemv,
               .run = Op::run_gemv},
          with_x,
          input_first,
          second_pass,
          any};
}

}  // namespace pestle::ops
