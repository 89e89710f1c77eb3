// The fast kernel of norm_backward.cu: subgroups of threads walk over rows that the copy unit
// brings into shared memory some rows ahead, and keep their columns' sums in registers.
// Map      a block (or a cluster) takes a run of rows, a stretch of them or, of a single group, its
//          turns of all; its subgroups take them in turns; a thread has the same kUnits units of 8
//          columns of every row, and reads only what it asked for itself, so that nothing but the
//          row's sums passes between threads. A row's sums are made while the row before it is
//          finished: their exchange is not waited for.
// Traffic  x, d_out (and residuals) once, d_x once; sums of columns once a block.
// Numerics f32. Squares and products are taken around the mean of the row's first 8 elements, which
//          all threads read: a provisional mean, so that large means cancel nothing; then around
//          the mean. At worst (an outlier among those 8) that costs K/64 roundings of the squares.
//          All sums are fixed trees. A sum that all terms share a factor of is multiplied once.
#pragma once

#include "ops/norm/backward/norm_backward_job.cuh"

namespace pestle::ops::norm_gradients {

#ifdef __CUDACC__

// Numbers of one row, or of a part, s being what is normalised, g the gradient behind weight: sums
// of (s - shift)^2, g * (s - shift), s - shift, g. kProducts: the first two, shift 0.
struct RowSums {
  float squares, products, distances, gradients;
};
// What a row's gradient needs.
struct RowFacts {
  float mean, rstd, m1, m2;
};

// 1 / sqrt(v) by the instruction and one Newton step; 0 for infinity.
__device__ inline float inverse_root(float v) {
  const float r = rsqrtf(v);
  const float better = r * __fmaf_rn(-0.5f * v * r, r, 1.5f);
  return v < __uint_as_float(0x7F800000u) && r < __uint_as_float(0x7F800000u) ? better : r;
}
// From a whole row's numbers.
__device__ inline RowFacts facts_of(RowSums all, float shift, const GradientJob& p) {
  RowFacts facts = {0, 0, 0, 0};
  if (p.subtract_mean) {
    const float away = all.distances * p.one_by_count;
    facts.mean = shift + away;
    facts.m1 = all.gradients * p.one_by_count;
    // NaN stays NaN.
    const float squares = __fmaf_rn(-away, all.distances, all.squares);
    all.squares = squares < 0 ? 0 : squares;
    all.products = __fmaf_rn(-away, all.gradients, all.products);
  }
  facts.rstd = inverse_root(__fmaf_rn(all.squares, p.one_by_count, p.eps));
  facts.m2 = all.products * facts.rstd * p.one_by_count;
  return facts;
}
// A unit of columns to a run's sums.
template <int kWide>
__device__ inline void keep_sums(const GradientJob& p, int64_t run, int array, int unit,
                                 const float (&v)[kWide], bool first) {
  auto* at = reinterpret_cast<float4*>(p.sums + (run * kArrays + array) * p.columns) +
             int64_t{unit} * (kWide / 4);
#pragma unroll
  for (int k = 0; k < kWide / 4; ++k) {
    float4 a = make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
    if (!first) {
      const float4 b = at[k];
      a = make_float4(b.x + a.x, b.y + a.y, b.z + a.z, b.w + a.w);
    }
    at[k] = a;
  }
}
// A sum times what its terms share. Of an infinite factor the signs of the terms are lost.
__device__ inline float times_shared(float sum, float by) {
  return isinf(by) ? __uint_as_float(formats::kF32Nan) : sum * by;
}

struct Parts {
  float4 of_warps[2][kMostWarps * kMostBlocks];  // by parity of the row
  uint64_t arrived[2][kMostSubgroups];
  float first_gates[kUnit];  // of the row's first 8 elements
};

template <class T, int kKind>
struct Gradients {
  using Limit = Limits<T, kKind>;
  static constexpr int kUnits = Limit::kUnits;
  static constexpr int kWide = Limit::kWide;
  static constexpr int kNumbers = Limit::kNumbers;
  static constexpr bool kGeneral = is_general(kKind);
  int unit_step;  // bytes between this thread's units
  enum Operand { kX, kG, kResidual, kDResidualOut };

  const GradientJob& p;
  Parts& parts;
  float4* shared_factor;  // this lane's first, of kSharedSums
  int subgroup, lane;     // lane: of the subgroup
  int rank, unit0;
  uint32_t shared;  // this thread's first 16 bytes of the first stage
  uint32_t stage_step;
  int64_t group = 0;
  int parity = 0;                                          // of rows: whose parts lie where
  uint32_t phases = 0;                                     // bit: of each parity's barrier
  float factor[kKind == kSharedSums ? 1 : kUnits][kWide];  // (1 + scale) * weight
  float gate[kGeneral ? kUnits : 1][kWide];
  float products[kUnits][kWide];                       // d_out * y, over rows
  float sums[kKind == kProducts ? 1 : kUnits][kWide];  // d_out
  float gate_sums[kGeneral ? kUnits : 1][kWide];       // d_s * x

  __device__ Gradients(const GradientJob& job, Parts& shared_parts, uint4* ring)
      : p(job), parts(shared_parts) {
    const ThreadPlan& plan = p.plan;
    subgroup = plan.subgroups == 1 ? 0 : threadIdx.x / plan.lanes;
    lane = threadIdx.x - subgroup * plan.lanes;
    rank = plan.cluster == 1 ? 0 : static_cast<int>(blockIdx.x % plan.cluster);
    unit0 = rank * plan.lanes + lane;
    unit_step = plan.lanes * plan.cluster * 16;
    shared = shared_at(ring + threadIdx.x);
    stage_step = blockDim.x * Limit::kThreadBytes;
    shared_factor = reinterpret_cast<float4*>(ring) + plan.stages * (stage_step / 16) + lane;
  }

  // ---- places ----

  __device__ int unit(int i) const { return unit0 + i * p.plan.lanes * p.plan.cluster; }
  template <bool kWhole>
  __device__ bool has(int i) const {
    return kWhole || unit(i) < p.plan.units;
  }
  // A unit that exists.
  __device__ int near_unit(int i) const { return min(unit(i), p.plan.units - 1); }
  __device__ uint32_t piece(int i, int operand) const {
    return (i * Limit::kOperands + operand) * blockDim.x * 16;
  }

  // ---- what rows share ----

  // The same for all subgroups: one writes it where it is shared, and they meet afterwards.
  __device__ void keep_factor(int i, const float (&v)[kWide]) {
    if constexpr (kKind == kSharedSums) {
      for (int k = 0; k < kWide / 4 && subgroup == 0; ++k) {
        shared_factor[(i * (kWide / 4) + k) * p.plan.lanes] =
            make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
      }
    } else {
      for (int j = 0; j < kWide; ++j) factor[i][j] = v[j];
    }
  }
  // g becomes the gradient behind weight and scale.
  __device__ void times_factor(int i, float (&g)[kWide]) const {
    if constexpr (kKind == kSharedSums) {
#pragma unroll
      for (int k = 0; k < kWide / 4; ++k) {
        const float4 f = shared_factor[(i * (kWide / 4) + k) * p.plan.lanes];
        g[4 * k] *= f.x;
        g[4 * k + 1] *= f.y;
        g[4 * k + 2] *= f.z;
        g[4 * k + 3] *= f.w;
      }
    } else {
      for (int j = 0; j < kWide; ++j) g[j] *= factor[i][j];
    }
  }

  // ---- the ring ----

  // This thread's first unit of a row, in each tensor.
  struct Sources {
    const char* from[Limit::kOperands];
  };
  __device__ Sources sources_of(int64_t row) const {
    Sources s;
    s.from[kX] = p.x.row(row) + unit0 * 16;
    s.from[kG] = p.d_out.row(row) + unit0 * 16;
    if constexpr (kGeneral) {
      s.from[kResidual] = p.residual.row(row) + unit0 * 16;
      s.from[kDResidualOut] = p.d_residual_out.row(row) + unit0 * 16;
    }
    return s;
  }
  __device__ bool has_gate() const { return kKind == kGated || p.gate.data != nullptr; }
  __device__ bool is_there(int operand) const {
    if (operand < kResidual || (kKind == kGated && operand == kResidual)) return true;
    return (operand == kResidual ? p.residual : p.d_residual_out).data != nullptr;
  }
  // `read`: what was read from there and must have been.
  __device__ void copy_unit(const Sources& s, uint32_t stage, int i,
                            const uint4 (&read)[Limit::kOperands]) const {
#pragma unroll
    for (int operand = 0; operand < Limit::kOperands; ++operand) {
      if (is_there(operand)) {
        copy_ahead(stage + piece(i, operand), s.from[operand] + i * unit_step, read[operand].x);
      }
    }
  }
  // This subgroup's first rows of begin, begin + step, ... below end.
  __device__ void begin_rows(int64_t begin, int64_t end) const {
    uint32_t stage = shared;
    for (int n = 0; n < p.plan.stages; ++n) {
      const int64_t row = begin + subgroup + n * p.row_step;
      const Sources sources = sources_of(row);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (row < end && has<false>(i)) copy_unit(sources, stage, i, {});
      }
      commit_copies();
      stage += stage_step;
    }
  }
  // 16 bytes of this thread. No order but that `stage` comes out of wait_for.
  __device__ uint4 read(uint32_t stage, int i, int operand) const {
    uint4 raw;
    asm("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
        : "r"(stage + piece(i, operand)));
    return raw;
  }
  __device__ static void wait_for(uint32_t& stage, int pending) {
    wait_copies(pending);
    asm volatile("" : "+r"(stage)::"memory");
  }
  // What is normalised.
  __device__ void sum_of(const uint4 (&raw)[Limit::kOperands], int i, float (&s)[kWide]) const {
    values_of<T>(raw[kX], s);
    if constexpr (kGeneral) {
      float more[kWide] = {};
      if (is_there(kResidual)) values_of<T>(raw[kResidual], more);
      if (has_gate()) {
        for (int j = 0; j < kWide; ++j) s[j] = __fmaf_rn(s[j], gate[i][j], more[j]);
      } else {
        for (int j = 0; j < kWide; ++j) s[j] += more[j];
      }
    }
  }

  // ---- a row's sums ----

  // The row's first 8 elements, to be asked for long before they are needed.
  struct Beginning {
    uint4 x[kUnit / kWide];
    uint4 residual[kGeneral ? kUnit / kWide : 1];
  };
  __device__ Beginning beginning_of(int64_t row) const {
    Beginning b = {};
#pragma unroll
    for (int k = 0; k < kUnit / kWide; ++k) {
      if (kKind == kProducts || !p.subtract_mean) continue;
      b.x[k] = load16(p.x.row(row) + k * 16);
      if (kGeneral && is_there(kResidual)) b.residual[k] = load16(p.residual.row(row) + k * 16);
    }
    return b;
  }
  // Their mean.
  __device__ float shift_of(const Beginning& b) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kUnit / kWide; ++k) {
      if (kKind == kProducts || !p.subtract_mean) continue;
      float s[kWide], more[kWide];
      values_of<T>(b.x[k], s);
      if constexpr (kGeneral) {
        if (has_gate()) {
          for (int j = 0; j < kWide; ++j) s[j] *= parts.first_gates[k * kWide + j];
        }
        if (is_there(kResidual)) {
          values_of<T>(b.residual[k], more);
          for (int j = 0; j < kWide; ++j) s[j] += more[j];
        }
      }
      float part = (s[0] + s[1]) + (s[2] + s[3]);
      if constexpr (kWide == kUnit) part += (s[4] + s[5]) + (s[6] + s[7]);
      sum += part;
    }
    return sum * (1.0f / kUnit);
  }
  // One of the numbers for each lane of the warp: number lane % kNumbers.
  __device__ static float over_warp(const RowSums& own) {
    const bool odd = threadIdx.x & 1;
    float v = odd ? own.products : own.squares;
    v += __shfl_xor_sync(~0u, odd ? own.squares : own.products, 1);
    if constexpr (kNumbers == 4) {
      float w = odd ? own.gradients : own.distances;
      w += __shfl_xor_sync(~0u, odd ? own.distances : own.gradients, 1);
      const bool high = threadIdx.x & 2;
      const float kept = high ? w : v;
      v = kept + __shfl_xor_sync(~0u, high ? v : w, 2);
    }
    return over_lanes(v);
  }
  // Of lanes that have the same number.
  __device__ static float over_lanes(float v) {
#pragma unroll
    for (int distance = kNumbers; distance < 32; distance *= 2) {
      v += __shfl_xor_sync(~0u, v, distance);
    }
    return v;
  }
  __device__ static RowSums all_numbers(float v) {
    RowSums all = {__shfl_sync(~0u, v, 0), __shfl_sync(~0u, v, 1), 0, 0};
    if constexpr (kNumbers == 4) {
      all.distances = __shfl_sync(~0u, v, 2);
      all.gradients = __shfl_sync(~0u, v, 3);
    }
    return all;
  }
  // The warp's numbers, as over_warp.
  template <bool kWhole>
  __device__ float warp_sums(uint32_t stage, float shift) const {
    RowSums own = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has<kWhole>(i)) continue;
      uint4 raw[Limit::kOperands];
      raw[kX] = read(stage, i, kX);
      raw[kG] = read(stage, i, kG);
      if constexpr (kGeneral) {
        if (is_there(kResidual)) raw[kResidual] = read(stage, i, kResidual);
      }
      float s[kWide], g[kWide];
      sum_of(raw, i, s);
      values_of<T>(raw[kG], g);
      times_factor(i, g);
      for (int j = 0; j < kWide; ++j) {
        if constexpr (kKind != kProducts) {
          s[j] -= shift;
          own.distances += s[j];
          own.gradients += g[j];
        }
        own.squares = __fmaf_rn(s[j], s[j], own.squares);
        own.products = __fmaf_rn(g[j], s[j], own.products);
      }
    }
    return over_warp(own);
  }
  // To all blocks that share the row.
  __device__ void post(float number) {
    const ThreadPlan& plan = p.plan;
    const int in_warp = lane % 32;
    if (plan.cluster > 1) {
      const RowSums all = all_numbers(number);
      const int part0 = subgroup * plan.slots();
      if (lane == 0) expect_bytes(&parts.arrived[parity][subgroup], plan.slots() * 16);
      if (in_warp < plan.cluster) {
        tell_block(&parts.of_warps[parity][part0 + rank * plan.warps() + lane / 32],
                   &parts.arrived[parity][subgroup], static_cast<unsigned>(in_warp),
                   make_float4(all.squares, all.products, all.distances, all.gradients));
      }
    } else if (plan.lanes > 32 && in_warp < kNumbers) {
      reinterpret_cast<float*>(&parts.of_warps[parity][threadIdx.x / 32])[in_warp] = number;
    }
  }
  // Until what was posted for the row is there.
  __device__ void wait_posts() {
    if (p.plan.cluster > 1) {
      wait_bytes_here(&parts.arrived[parity][subgroup], phases >> parity & 1);
      phases ^= 1u << parity;
    } else if (p.plan.subgroups == 1) {
      __syncthreads();
    } else if (p.plan.lanes > 32) {
      meet_subgroup();
    }
  }
  __device__ void meet_subgroup() const {
    asm volatile("bar.sync %0, %1;" ::"r"(subgroup + 1), "r"(p.plan.lanes) : "memory");
  }
  __device__ RowFacts join(float number, float shift) const {
    if (p.plan.slots() > 1) {
      const auto* from =
          reinterpret_cast<const float*>(parts.of_warps[parity] + subgroup * p.plan.slots());
      const int in_warp = threadIdx.x % 32;
      number = 0;
      for (int i = in_warp / kNumbers; i < p.plan.slots(); i += 32 / kNumbers) {
        number += from[4 * i + in_warp % kNumbers];
      }
      number = over_lanes(number);
    }
    return facts_of(all_numbers(number), shift, p);
  }

  // ---- a row's end ----

  // The row's gradient; row `next` follows into the stage if there is such a row.
  template <bool kWhole>
  __device__ void finish(const RowFacts& of, int64_t row, uint32_t stage, int64_t next,
                         bool has_next) {
    const Sources sources = sources_of(next);
    char* d_x = p.d_x.row(row) + unit0 * 16;
    const float by_m1 = -of.rstd * of.m1, by_m2 = -of.rstd * of.m2;
    const float by_mean = -of.rstd * of.mean;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has<kWhole>(i)) continue;
      uint4 raw[Limit::kOperands];
#pragma unroll
      for (int operand = 0; operand < Limit::kOperands; ++operand) {
        if (is_there(operand)) raw[operand] = read(stage, i, operand);
      }
      if (has_next) copy_unit(sources, stage, i, raw);
      float y[kWide], g[kWide], d[kWide];
      sum_of(raw, i, y);
      values_of<T>(raw[kG], g);
      for (int j = 0; j < kWide; ++j) d[j] = g[j];
      times_factor(i, d);
      for (int j = 0; j < kWide; ++j) {
        if constexpr (kKind == kProducts) {
          y[j] *= of.rstd;
          d[j] = of.rstd * __fmaf_rn(-y[j], of.m2, d[j]);
        } else {
          y[j] = __fmaf_rn(y[j], of.rstd, by_mean);
          d[j] = __fmaf_rn(d[j], of.rstd, __fmaf_rn(y[j], by_m2, by_m1));
        }
        products[i][j] = __fmaf_rn(g[j], y[j], products[i][j]);
        if constexpr (kKind != kProducts) sums[i][j] += g[j];
      }
      const int offset = i * unit_step;
      if constexpr (kGeneral) {
        float more[kWide];
        if (is_there(kDResidualOut)) {
          values_of<T>(raw[kDResidualOut], more);
          for (int j = 0; j < kWide; ++j) d[j] += more[j];
        }
        if (kKind == kGated || p.d_residual.data != nullptr) {
          store_values<T>(p.d_residual.row(row) + unit0 * 16 + offset, d);
        }
        if (has_gate()) {
          values_of<T>(raw[kX], more);
          for (int j = 0; j < kWide; ++j) {
            gate_sums[i][j] = __fmaf_rn(d[j], more[j], gate_sums[i][j]);
            d[j] *= gate[i][j];
          }
        }
      }
      store_values<T>(d_x + offset, d);
    }
    commit_copies();
  }

  // This subgroup's rows of [begin, end), of which the first ones are on their way.
  template <bool kWhole>
  __device__ void walk(int64_t begin, int64_t end) {
    const ThreadPlan& plan = p.plan;
    const int64_t step = p.row_step;
    int64_t row = begin + subgroup;
    if (row >= end) return meet_as_often(row, end);
    const uint32_t last = shared + plan.stages * stage_step;
    uint32_t stage = shared;
    float shift = shift_of(beginning_of(row));
    Beginning next_beginning = beginning_of(min(row + step, end - 1));
    wait_for(stage, plan.stages - 1);
    float number = warp_sums<kWhole>(stage, shift);
    post(number);
    while (row < end) {
      wait_posts();
      const RowFacts facts = join(number, shift);
      uint32_t next_stage = stage + stage_step;
      if (next_stage == last) next_stage = shared;
      parity ^= 1;
      if (row + step < end) {
        shift = shift_of(next_beginning);
        next_beginning = beginning_of(min(row + 2 * step, end - 1));
        wait_for(next_stage, plan.stages - 2);
        number = warp_sums<kWhole>(next_stage, shift);
        post(number);
      }
      const int64_t next = row + plan.stages * step;
      finish<kWhole>(facts, row, stage, next, next < end);
      stage = next_stage;
      row += step;
    }
    meet_as_often(row, end);
  }
  // As often as the first subgroup, by one that has no row where the first one's last is: racecheck
  // takes warps for ordered only if they have passed equally many barriers.
  __device__ void meet_as_often(int64_t row, int64_t end) const {
    const bool meets = p.plan.cluster == 1 && p.plan.subgroups > 1 && p.plan.lanes > 32;
    if (meets && row - subgroup < end) meet_subgroup();
  }

  // ---- groups and runs ----

  __device__ void begin_group(int64_t which) {
    group = which;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float f[kWide];
      for (int j = 0; j < kWide; ++j) {
        f[j] = 1;
        products[i][j] = 0;
        if constexpr (kKind != kProducts) sums[i][j] = 0;
        if constexpr (kGeneral) gate_sums[i][j] = 0;
      }
      if (p.weight.data != nullptr) load_columns(p.weight, p.weight.data, near_unit(i), f);
      if (kKind != kProducts && p.scale.data != nullptr) {
        float more[kWide];
        load_columns(p.scale, p.scale.row(group), near_unit(i), more);
        for (int j = 0; j < kWide; ++j) f[j] *= 1.0f + more[j];
      }
      keep_factor(i, f);
      if constexpr (kGeneral) {
        if (has_gate()) load_columns(p.gate, p.gate.row(group), near_unit(i), gate[i]);
      }
    }
    if (kKind == kSharedSums) __syncthreads();
    if (kGeneral && has_gate()) begin_first_gate();
  }
  __device__ void begin_first_gate() {
    __syncthreads();
    if (threadIdx.x < kUnit) {
      parts.first_gates[threadIdx.x] = load_column(p.gate, p.gate.row(group), threadIdx.x);
    }
    __syncthreads();
  }
  // The first subgroup's v becomes the sum of all subgroups'.
  __device__ void add_subgroups(float (&v)[kUnits][kWide]) const {
    if (p.plan.subgroups == 1) return;
    __syncthreads();
    extern __shared__ uint4 ring[];
    auto* at = reinterpret_cast<float4*>(ring) + threadIdx.x;
    constexpr int kFours = kUnits * kWide / 4;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float* from = &v[i * 4 / kWide][i * 4 % kWide];
      at[i * blockDim.x] = make_float4(from[0], from[1], from[2], from[3]);
    }
    __syncthreads();
    if (subgroup != 0) return;
    for (int other = 1; other < p.plan.subgroups; ++other) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float4 more = at[i * blockDim.x + other * p.plan.lanes];
        float* to = &v[i * 4 / kWide][i * 4 % kWide];
        to[0] += more.x;
        to[1] += more.y;
        to[2] += more.z;
        to[3] += more.w;
      }
    }
  }
  __device__ void keep(int64_t run, int array, int i, const float (&v)[kWide], bool first) const {
    keep_sums(p, run, array, unit(i), v, first);
  }
  __device__ void end_group(int64_t run, bool first) {
    add_subgroups(products);
    if constexpr (kKind != kProducts) add_subgroups(sums);
    if constexpr (kGeneral) add_subgroups(gate_sums);
    if (subgroup == 0) leave(run, first);
    if (p.plan.subgroups > 1) __syncthreads();  // the ring is free again
  }
  // To the group's row if it has no other run, else to the run's sums.
  __device__ void give(const Side& to, int64_t run, int array, int i, const float (&v)[kWide]) {
    if (to.data == nullptr) return;
    if (p.runs.splits_groups())
      keep(run, array, i, v, true);
    else
      store_columns(to, to.row(group), unit(i), v);
  }
  __device__ void leave(int64_t run, bool first) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has<false>(i)) continue;
      float v[kWide], more[kWide];
      if (p.keeps_weight) {
        for (int j = 0; j < kWide; ++j) v[j] = products[i][j];
        if (kKind != kProducts && p.scale.data != nullptr) {
          load_columns(p.scale, p.scale.row(group), unit(i), more);
          for (int j = 0; j < kWide; ++j) v[j] = times_shared(v[j], 1.0f + more[j]);
        }
        keep(run, kWeightSum, i, v, first);
      }
      if constexpr (kKind != kProducts) {
        if (p.d_shift.data != nullptr)
          give(p.d_shift, run, kBiasSum, i, sums[i]);
        else
          keep(run, kBiasSum, i, sums[i], first);
        if (p.d_scale.data != nullptr) {
          for (int j = 0; j < kWide; ++j) v[j] = products[i][j];
          if (p.weight.data != nullptr) {
            load_columns(p.weight, p.weight.data, unit(i), more);
            for (int j = 0; j < kWide; ++j) v[j] = times_shared(v[j], more[j]);
          }
          give(p.d_scale, run, kScaleSum, i, v);
        }
      }
      if constexpr (kGeneral) give(p.d_gate, run, kGateSum, i, gate_sums[i]);
    }
  }
};

template <class T, int kKind>
__global__ void __launch_bounds__(Limits<T, kKind>::kThreads, 1)
    gradients_kernel(const __grid_constant__ GradientJob p) {
  extern __shared__ uint4 ring[];
  __shared__ Parts parts;
  Gradients<T, kKind> own(p, parts, ring);
  if (p.plan.cluster > 1) {  // others' shared memory is theirs only once they have begun
    if (threadIdx.x < 2 * kMostSubgroups) begin_barrier(&parts.arrived[0][0] + threadIdx.x);
    cluster_arrive();
  }
  wait_previous_kernel();
  const int64_t run = blockIdx.x / p.plan.cluster;
  const bool dealt =
      p.row_step > p.plan.subgroups;  // one group, whose rows are dealt out to the runs
  const int64_t end = dealt ? p.runs.group_rows : p.runs.end(run);
  bool first = true;
  for (int64_t row = dealt ? run * p.plan.subgroups : p.runs.begin(run); row < end;) {
    const int64_t group = dealt ? 0 : p.rows_of_group.divide(static_cast<uint32_t>(row));
    const int64_t stop = min(end, (group + 1) * p.runs.group_rows);
    own.begin_rows(row, stop);
    own.begin_group(group);
    if (first && p.plan.cluster > 1) cluster_wait();
    if (p.plan.whole)
      own.template walk<true>(row, stop);
    else
      own.template walk<false>(row, stop);
    own.end_group(run, first);
    first = false;
    row = stop;
  }
  start_next_kernel();
}

#endif  // __CUDACC__

}  // namespace pestle::ops::norm_gradients
