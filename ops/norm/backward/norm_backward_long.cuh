// Rows that no cluster's shared memory takes: without clusters (before sm_90) from some 16 thousand
// elements on. For norm_backward.cu.
// Map      facts: a block a row. columns: a block takes a stripe of 256 units of a run of rows, a
//          thread one unit of all of them, kAtOnce rows' loads at a time; sums in registers.
// Traffic  x and d_out (and residual) twice, the rest once; 4 bytes of sums a column, array and
//          run. Numerics as norm_backward_rows.cuh, around the mean of the row's first 8 elements.
#pragma once

#include "backends/cuda/device/row/block_sums.cuh"
#include "ops/norm/backward/norm_backward_rows.cuh"

namespace pestle::ops::norm_gradients {

#ifdef __CUDACC__

inline constexpr int kFactsThreads = 512;
inline constexpr int kColumnsThreads = 256;

// What rows of a group share, of a thread's unit of columns; units of a row as f32.
template <class T>
struct LongUnit {
  static constexpr int kWide = 16 / T::kBytes;
  const GradientJob& p;
  float factor[kWide], gate[kWide];

  __device__ void begin(int64_t group, int unit) {
    for (int j = 0; j < kWide; ++j) factor[j] = gate[j] = 1;
    if (p.weight.data != nullptr) load_columns(p.weight, p.weight.data, unit, factor);
    if (p.scale.data != nullptr) {
      float more[kWide];
      load_columns(p.scale, p.scale.row(group), unit, more);
      for (int j = 0; j < kWide; ++j) factor[j] *= 1.0f + more[j];
    }
    if (p.gate.data != nullptr) load_columns(p.gate, p.gate.row(group), unit, gate);
  }
  // What is normalised.
  __device__ void sum_of(const uint4& x, const uint4& residual, float (&s)[kWide]) const {
    float more[kWide];
    values_of<T>(x, s);
    values_of<T>(residual, more);
    for (int j = 0; j < kWide; ++j) s[j] = __fmaf_rn(s[j], gate[j], more[j]);
  }
  __device__ static uint4 load(const Side& t, int64_t row, int unit) {
    return t.data == nullptr ? make_uint4(0, 0, 0, 0) : load16(t.row(row) + int64_t{unit} * 16);
  }
  // The mean of the row's first 8 elements; all threads make it.
  __device__ float shift_of(int64_t row, int64_t group) const {
    if (!p.subtract_mean) return 0;
    const int j = threadIdx.x % kUnit;
    float s = value_of<T>(load_element<T>(p.x.row(row), j));
    if (p.gate.data != nullptr) s *= load_column(p.gate, p.gate.row(group), j);
    if (p.residual.data != nullptr) s += value_of<T>(load_element<T>(p.residual.row(row), j));
#pragma unroll
    for (int distance = 1; distance < kUnit; distance *= 2) {
      s += __shfl_xor_sync(~0u, s, distance);
    }
    return s * (1.0f / kUnit);
  }
};

template <class T>
__global__ void __launch_bounds__(kFactsThreads)
    facts_kernel(const __grid_constant__ GradientJob p, RowFacts* facts) {
  LongUnit<T> own{p, {}, {}};
  constexpr int kWide = LongUnit<T>::kWide;
  const int64_t row = blockIdx.x;
  const int64_t group = p.rows_of_group.divide(static_cast<uint32_t>(row));
  const int units = static_cast<int>(p.columns / kWide);
  const float shift = own.shift_of(row, group);
  RowSums sums = {0, 0, 0, 0};
#pragma unroll 2
  for (int unit = threadIdx.x; unit < units; unit += kFactsThreads) {
    const uint4 x = own.load(p.x, row, unit);
    const uint4 d_out = own.load(p.d_out, row, unit);
    const uint4 residual = own.load(p.residual, row, unit);
    own.begin(group, unit);
    float s[kWide], g[kWide];
    own.sum_of(x, residual, s);
    values_of<T>(d_out, g);
    for (int j = 0; j < kWide; ++j) {
      s[j] -= shift;
      g[j] *= own.factor[j];
      sums.distances += s[j];
      sums.gradients += g[j];
      sums.squares = __fmaf_rn(s[j], s[j], sums.squares);
      sums.products = __fmaf_rn(g[j], s[j], sums.products);
    }
  }
  RowSums all;
  all.squares = block_sum<kFactsThreads>(sums.squares);
  all.products = block_sum<kFactsThreads>(sums.products);
  all.distances = block_sum<kFactsThreads>(sums.distances);
  all.gradients = block_sum<kFactsThreads>(sums.gradients);
  if (threadIdx.x == 0) facts[row] = facts_of(all, shift, p);
}

// A thread's sums of a unit over rows.
template <class T>
struct LongColumns {
  static constexpr int kWide = LongUnit<T>::kWide;
  static constexpr int kAtOnce = 4;
  const GradientJob& p;
  LongUnit<T> own;
  int unit;
  int64_t group = 0;
  float products[kWide], sums[kWide], gate_sums[kWide];

  __device__ LongColumns(const GradientJob& job, int which)
      : p(job), own{job, {}, {}}, unit(which) {}
  __device__ void begin_group(int64_t which) {
    group = which;
    own.begin(group, unit);
    for (int j = 0; j < kWide; ++j) products[j] = sums[j] = gate_sums[j] = 0;
  }
  __device__ void finish(const RowFacts& of, int64_t row, const uint4& x, const uint4& d_out) {
    float y[kWide], g[kWide], d[kWide], more[kWide];
    own.sum_of(x, own.load(p.residual, row, unit), y);
    values_of<T>(d_out, g);
    values_of<T>(own.load(p.d_residual_out, row, unit), more);
    const float by_m1 = -of.rstd * of.m1, by_m2 = -of.rstd * of.m2;
    const float by_mean = -of.rstd * of.mean;
    for (int j = 0; j < kWide; ++j) {
      y[j] = __fmaf_rn(y[j], of.rstd, by_mean);
      d[j] = __fmaf_rn(g[j] * own.factor[j], of.rstd, __fmaf_rn(y[j], by_m2, by_m1)) + more[j];
      products[j] = __fmaf_rn(g[j], y[j], products[j]);
      sums[j] += g[j];
    }
    const int64_t at = int64_t{unit} * 16;
    if (p.d_residual.data != nullptr) store_values<T>(p.d_residual.row(row) + at, d);
    if (p.gate.data != nullptr) {
      values_of<T>(x, more);
      for (int j = 0; j < kWide; ++j) {
        gate_sums[j] = __fmaf_rn(d[j], more[j], gate_sums[j]);
        d[j] *= own.gate[j];
      }
    }
    store_values<T>(p.d_x.row(row) + at, d);
  }
  __device__ void walk(const RowFacts* facts, int64_t row, int64_t end) {
    for (; row < end; row += kAtOnce) {
      uint4 x[kAtOnce], d_out[kAtOnce];
      RowFacts of[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int64_t one = min(row + n, end - 1);
        x[n] = own.load(p.x, one, unit);
        d_out[n] = own.load(p.d_out, one, unit);
        of[n] = facts[one];
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (row + n < end) finish(of[n], row + n, x[n], d_out[n]);
      }
    }
  }
  // To the group's row if it has no other run, else to the run's sums.
  __device__ void give(const Side& to, int64_t run, int array, const float (&v)[kWide]) const {
    if (to.data == nullptr) return;
    if (p.runs.splits_groups())
      keep_sums(p, run, array, unit, v, true);
    else
      store_columns(to, to.row(group), unit, v);
  }
  __device__ void end_group(int64_t run, bool first) const {
    float v[kWide], more[kWide];
    if (p.keeps_weight) {
      for (int j = 0; j < kWide; ++j) v[j] = products[j];
      if (p.scale.data != nullptr) {
        load_columns(p.scale, p.scale.row(group), unit, more);
        for (int j = 0; j < kWide; ++j) v[j] = times_shared(v[j], 1.0f + more[j]);
      }
      keep_sums(p, run, kWeightSum, unit, v, first);
    }
    if (p.d_shift.data != nullptr)
      give(p.d_shift, run, kBiasSum, sums);
    else
      keep_sums(p, run, kBiasSum, unit, sums, first);
    if (p.d_scale.data != nullptr) {
      for (int j = 0; j < kWide; ++j) v[j] = products[j];
      if (p.weight.data != nullptr) {
        load_columns(p.weight, p.weight.data, unit, more);
        for (int j = 0; j < kWide; ++j) v[j] = times_shared(v[j], more[j]);
      }
      give(p.d_scale, run, kScaleSum, v);
    }
    give(p.d_gate, run, kGateSum, gate_sums);
  }
};

// stripes: of a row, each kColumnsThreads units.
template <class T>
__global__ void __launch_bounds__(kColumnsThreads, 2)
    columns_kernel(const __grid_constant__ GradientJob p, const RowFacts* facts, int stripes) {
  const int64_t run = blockIdx.x / stripes;
  const int stripe = static_cast<int>(blockIdx.x - run * stripes);
  LongColumns<T> own(p, stripe * kColumnsThreads + static_cast<int>(threadIdx.x));
  if (own.unit >= p.columns / LongUnit<T>::kWide) return;
  const int64_t end = p.runs.end(run);
  bool first = true;
  for (int64_t row = p.runs.begin(run); row < end;) {
    const int64_t group = p.rows_of_group.divide(static_cast<uint32_t>(row));
    const int64_t stop = min(end, (group + 1) * p.runs.group_rows);
    own.begin_group(group);
    own.walk(facts, row, stop);
    own.end_group(run, first);
    first = false;
    row = stop;
  }
}

#endif  // __CUDACC__

}  // namespace pestle::ops::norm_gradients
