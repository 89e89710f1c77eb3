// Norms of rows that begin anywhere (row_units.cuh), without codes or with one scale a row.
// Map      a row in the registers of lanes, a CTA or a cluster, as f32, 32 elements a thread
// Traffic  x (and residual) once, out (or codes) once; parameters out of the L1 or L2
// Numerics as norm_rows.cu
#pragma once

#include "backends/cuda/device/row/row_units.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/norm/forward/norm_rows.h"
#include "ops/quant/rowwise/quantize_units.cuh"

namespace pestle::ops::norm_device {

struct NormUnits {
  cuda::RowGroups groups;
  cuda::RowTensor x, residual, gate, weight, bias, scale, shift, out, residual_out;
  cuda::RowTensor lead;
  UnitCodes codes;
  int64_t rows_of_group;
  float share;  // of an element in a row's mean
  float eps;
  bool subtract_mean;
};

// What makes no codes.
struct NoCode {};

using UnitValues = float[cuda::kRowChunks][cuda::kUnit];

// v: what is normalised, to that divided by its root mean square about the mean, or about 0.
__device__ inline void normalize_units(const NormUnits& p, const cuda::RowPlace& place,
                                       const cuda::RowUnits& at, cuda::RowParts (&parts)[3],
                                       UnitValues& v) {
  using namespace cuda;
  float mean = 0;
  if (p.subtract_mean) {
    SumPart own{0};
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) {
      at.clear_missing(c, v[c]);
      for (int i = 0; i < kUnit; ++i) own.v += v[c][i];
    }
    mean = join_units(place, own, parts[0]).v * p.share;
  }
  SumPart own{0};
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    for (int i = 0; i < kUnit; ++i) v[c][i] -= mean;
    at.clear_missing(c, v[c]);
    for (int i = 0; i < kUnit; ++i) own.v = __fmaf_rn(v[c][i], v[c][i], own.v);
  }
  const float squares = join_units(place, own, parts[1]).v;
  const float rstd = __frsqrt_rn(__fmaf_rn(squares, p.share, p.eps));
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    for (int i = 0; i < kUnit; ++i) v[c][i] *= rstd;
  }
}

template <class T, class Code>
constexpr int kUnitRegisters = T::kBytes == 2 && std::is_same_v<Code, NoCode> ? 112 : 128;

template <class T, class Code>
__global__ void __launch_bounds__(cuda::kRowThreads) __maxnreg__((kUnitRegisters<T, Code>))
    units_kernel(const __grid_constant__ NormUnits p) {
  using namespace cuda;
  wait_previous_kernel();
  __shared__ RowParts parts[3];
  const RowPlace place = row_place(p.groups);
  const RowUnits at(place, p.lead);
  const int64_t row = min(place.row, p.groups.rows - 1);
  const int64_t group = AnyTensor::quotient(row, p.rows_of_group);
  UnitValues v;
  const auto combine = [&](const RowTensor& with, int64_t of_row, auto f) {
    each_unit(with, of_row, at, [&](int c, const float(&w)[kUnit]) {
      for (int i = 0; i < kUnit; ++i) v[c][i] = f(v[c][i], w[i]);
    });
  };
  const auto take = [&](int c, const float(&w)[kUnit]) {
    for (int i = 0; i < kUnit; ++i) v[c][i] = w[i];
  };
  each_unit_of<T>(p.x, row, at, take);
  combine(p.gate, group, [](float a, float g) { return a * g; });
  combine(p.residual, row, [](float a, float r) { return a + r; });
  if (p.residual_out.is_present) {
    const UnitTarget to(p.residual_out, row, at);
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) to.put<T>(at, c, T::pack(v[c]));
  }
  normalize_units(p, place, at, parts, v);
  combine(p.weight, 0, [](float a, float w) { return a * w; });
  combine(p.bias, 0, [](float a, float b) { return a + b; });
  combine(p.scale, group, [](float a, float s) { return a * (1.0f + s); });
  combine(p.shift, group, [](float a, float s) { return a + s; });
  typename T::Raw raw[kRowChunks];
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    at.clear_missing(c, v[c]);
    raw[c] = T::pack(v[c]);
  }
  if (p.out.is_present) {
    const UnitTarget to(p.out, row, at);
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) to.put<T>(at, c, raw[c]);
  }
  if constexpr (!std::is_same_v<Code, NoCode>) {
    put_unit_codes<T, Code>(p.codes, place, at, parts[2], raw, row);
  }
}

// ---- host ----

// False: some tensor's elements are no neighbours.
inline bool norm_units(const NormRows& n, NormUnits& p) {
  const struct {
    const TensorView& from;
    cuda::RowTensor& to;
  } all[] = {{n.x, p.x},         {n.residual, p.residual},
             {n.gate, p.gate},   {n.weight, p.weight},
             {n.bias, p.bias},   {n.scale, p.scale},
             {n.shift, p.shift}, {n.residual_out, p.residual_out},
             {n.out, p.out}};
  for (const auto& [from, to] : all) {
    if (from.data == nullptr) continue;
    to = p.lead = cuda::RowTensor(from);  // the last one: what is written
    if (!cuda::has_neighbours(to)) return false;
  }
  if (n.quant.format != OutFormat::kNone) {
    p.codes = unit_codes(n.quant, n.rows(), n.columns());
    p.lead = p.codes.q;
    if (!cuda::has_neighbours(p.lead)) return false;
  }
  p.share = 1.0f / static_cast<float>(n.columns());
  p.eps = n.eps;
  p.subtract_mean = n.subtract_mean;
  return true;
}

template <class T>
Status start_units(const Call& call, const char* name, const NormUnits& p, OutFormat format) {
  const cuda::Grid grid{p.groups.blocks(), p.groups.threads(), 0, p.groups.cluster};
  switch (format) {
    case OutFormat::kNone: return cuda::launch_early(call, name, grid, units_kernel<T, NoCode>, p);
    case OutFormat::kInt8Row:
      return cuda::launch_early(call, name, grid, units_kernel<T, Int8Code>, p);
    default:
      return cuda::launch_early(call, name, grid, units_kernel<T, Fp8Code<formats::E4m3>>, p);
  }
}

// taken: whether it took the call. Not codes of blocks or of rotated rows, rows that the registers
// of a cluster of `most_blocks` do not hold, nor elements that are no neighbours.
inline Status start_units_norm(const Call& call, const char* name, const NormRows& n,
                               int64_t groups, int most_blocks, bool& taken) {
  if (n.quant.block_scales() || n.quant.hadamard > 0 || n.columns() == 0) return {};
  NormUnits p{};
  // With clusters rather blocks that leave a multiprocessor room for others.
  const int most_threads = most_blocks > 1 ? cuda::kRowThreads / 2 : cuda::kRowThreads;
  p.groups = cuda::RowGroups::holding(n.rows(), cuda::units_of_any(n.columns()), most_blocks,
                                      most_threads, cuda::kRowChunks);
  p.rows_of_group = n.rows() / groups;
  if (p.groups.cluster == 0 || !norm_units(n, p)) return {};
  taken = true;
  switch (n.x.dtype) {
    case DType::kBF16: return start_units<cuda::Bf16>(call, name, p, n.quant.format);
    case DType::kF16: return start_units<cuda::F16>(call, name, p, n.quant.format);
    default: return start_units<cuda::F32>(call, name, p, n.quant.format);
  }
}

}  // namespace pestle::ops::norm_device
