// d_x of norms of rows that begin anywhere (row_units.cuh), and the rows' statistics.
// Map      a row in the registers of lanes, a CTA or a cluster, as f32: x and d_out, 32 elements of
//          each a thread
// Traffic  x and d_out (and residuals) once, d_x once; parameters out of the L1 or L2
#pragma once

#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/row/row_units.cuh"
#include "backends/cuda/host/early_launch.h"
#include "core/machine.h"
#include "ops/norm/backward/norm_backward.h"

namespace pestle::ops::norm_gradients {

struct GradientUnits {
  cuda::RowGroups groups;
  cuda::RowTensor x, residual, gate, weight, scale, d_out, d_residual_out, d_x, d_residual;
  float4* statistics;  // mean, 1 / root of the mean square, mean and slope of the gradient
  int64_t rows_of_group;
  float share;  // of an element in a row's mean
  float eps;
  bool subtract_mean;
};

#ifdef __CUDACC__
struct TwoSums {
  float a, b;
  __device__ static TwoSums none() { return {0, 0}; }
  __device__ static TwoSums from(const float4& p) { return {p.x, p.y}; }
  __device__ float4 packed() const { return make_float4(a, b, 0, 0); }
  __device__ TwoSums over_lanes(int width) const {
    return {cuda::sum_over_lanes(a, width), cuda::sum_over_lanes(b, width)};
  }
};

using UnitValues = float[cuda::kRowChunks][cuda::kUnit];

// s: what is normalised, then without its mean; h: its gradient before the norm's own part.
__device__ inline float4 statistics_of(const GradientUnits& p, const cuda::RowPlace& place,
                                       const cuda::RowUnits& at, UnitValues& s, UnitValues& h) {
  using namespace cuda;
  __shared__ RowParts parts[2];
  float4 of = make_float4(0, 0, 0, 0);
  TwoSums own{0, 0};
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    at.clear_missing(c, s[c]);
    at.clear_missing(c, h[c]);
    for (int i = 0; i < kUnit; ++i) own.a += s[c][i];
    for (int i = 0; i < kUnit; ++i) own.b += h[c][i];
  }
  if (p.subtract_mean) {
    own = join_units(place, own, parts[0]);
    of.x = own.a * p.share;
    of.z = own.b * p.share;
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) {
      for (int i = 0; i < kUnit; ++i) s[c][i] -= of.x;
      at.clear_missing(c, s[c]);
    }
  }
  own = TwoSums::none();
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    for (int i = 0; i < kUnit; ++i) own.a = __fmaf_rn(s[c][i], s[c][i], own.a);
    for (int i = 0; i < kUnit; ++i) own.b = __fmaf_rn(h[c][i], s[c][i], own.b);
  }
  own = join_units(place, own, parts[1]);
  of.y = __frsqrt_rn(__fmaf_rn(own.a, p.share, p.eps));
  of.w = own.b * of.y * p.share;
  return of;
}

template <class T>
__global__ void __launch_bounds__(cuda::kRowThreads)
    units_kernel(const __grid_constant__ GradientUnits p) {
  using namespace cuda;
  wait_previous_kernel();
  const RowPlace place = row_place(p.groups);
  const RowUnits at(place, p.d_x);
  const int64_t row = min(place.row, p.groups.rows - 1);
  const int64_t group = AnyTensor::quotient(row, p.rows_of_group);
  UnitValues s, h;
  const auto combine = [&](UnitValues& v, const RowTensor& with, int64_t of_row, auto f) {
    each_unit(with, of_row, at, [&](int c, const float(&w)[kUnit]) {
      for (int i = 0; i < kUnit; ++i) v[c][i] = f(v[c][i], w[i]);
    });
  };
  const auto take = [&](UnitValues& v, const RowTensor& from) {
    const auto keep = [&](int c, const float(&w)[kUnit]) {
      for (int i = 0; i < kUnit; ++i) v[c][i] = w[i];
    };
    each_unit_of<T>(from, row, at, keep);
  };
  const auto product = [](float a, float b) { return a * b; };
  const auto sum = [](float a, float b) { return a + b; };
  const auto put = [&](const RowTensor& t) {
    const UnitTarget to(t, row, at);
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) to.put<T>(at, c, T::pack(h[c]));
  };
  take(s, p.x);
  take(h, p.d_out);
  combine(s, p.gate, group, product);
  combine(s, p.residual, row, sum);
  combine(h, p.scale, group, [](float a, float b) { return a * (1.0f + b); });
  combine(h, p.weight, 0, product);
  const float4 of = statistics_of(p, place, at, s, h);
  if (place.lane == 0 && place.rank == 0 && place.units > 0) p.statistics[row] = of;
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    for (int i = 0; i < kUnit; ++i) {
      h[c][i] = of.y * (__fmaf_rn(-s[c][i] * of.y, of.w, h[c][i]) - of.z);
    }
  }
  combine(h, p.d_residual_out, row, sum);
  if (p.d_residual.is_present) put(p.d_residual);
  combine(h, p.gate, group, product);
  put(p.d_x);
}
#endif

// taken: whether it took the call. Not rows that the registers of a cluster do not hold, nor
// elements that are no neighbours.
inline Status start_units(const Call& call, const char* name, const NormBackward& b,
                          int64_t rows_of_group, float4* statistics, bool& taken) {
  const NormRows& n = b.forward;
  const Device device{DeviceType::kCuda, cuda::device_index(call)};
  const int most_blocks = cuda::largest_cluster(machine_for(device).compute_capability);
  GradientUnits p{};
  const struct {
    const TensorView& from;
    cuda::RowTensor& to;
  } all[] = {{n.x, p.x},
             {n.residual, p.residual},
             {n.gate, p.gate},
             {n.weight, p.weight},
             {n.scale, p.scale},
             {b.d_out, p.d_out},
             {b.d_residual_out, p.d_residual_out},
             {b.d_x, p.d_x},
             {b.d_residual, p.d_residual}};
  for (const auto& [from, to] : all) {
    if (from.data == nullptr) continue;
    to = cuda::RowTensor(from);
    if (!cuda::has_neighbours(to)) return {};
  }
  // With clusters rather CTAs that leave a multiprocessor room for others.
  const int most_threads = most_blocks > 1 ? cuda::kRowThreads / 2 : cuda::kRowThreads;
  p.groups = cuda::RowGroups::holding(n.rows(), cuda::units_of_any(n.columns()), most_blocks,
                                      most_threads, cuda::kRowChunks);
  if (p.groups.cluster == 0 || p.groups.blocks() == 0) return {};
  p.statistics = statistics;
  p.rows_of_group = rows_of_group;
  p.share = 1.0f / static_cast<float>(n.columns());
  p.eps = n.eps;
  p.subtract_mean = n.subtract_mean;
  taken = true;
  const cuda::Grid grid{p.groups.blocks(), p.groups.threads(), 0, p.groups.cluster};
  switch (n.x.dtype) {
    case DType::kBF16: return cuda::launch_early(call, name, grid, units_kernel<cuda::Bf16>, p);
    case DType::kF16: return cuda::launch_early(call, name, grid, units_kernel<cuda::F16>, p);
    default: return cuda::launch_early(call, name, grid, units_kernel<cuda::F32>, p);
  }
}

}  // namespace pestle::ops::norm_gradients
