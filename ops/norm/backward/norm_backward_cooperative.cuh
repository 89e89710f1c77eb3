// Long rows by groups of CTAs that all run at the same time
// (backends/cuda/host/launch_together.h), on any GPU; taken where no cluster holds a row. For
// norm_backward.cu.
// Map      a group's CTAs have stripes of its rows; a thread has one unit of 16 bytes of
//          kRows rows at once (a batch; the warps that share a row may be fewer than a block's,
//          which then has several slots of rows). Batches are dealt out to the CTA groups. A
//          batch's sums are told while the batch before it is finished: words that are never 0, in
//          places that were cleared before the launch.
// Traffic  x and d_out once, d_x once; 4 bytes of sums a column, array and CTA group; words: 8 or
//          16 bytes a row and block, read by each of the CTA group's blocks.
// Numerics as norm_backward_rows.cuh, around the mean of the row's first 8 elements.
// Needs    sm_80 and a cooperative launch.
// Measured H200, code of sm_80: 65 to 78 % of the copy (norm_backward.md)
#pragma once

#include "backends/cuda/host/launch_together.h"
#include "ops/norm/backward/norm_backward_rows.cuh"

namespace pestle::ops::norm_gradients {

#ifdef __CUDACC__

inline constexpr int kCooperativeThreads = 256;
inline constexpr int kCooperativeRows = 4;  // of a batch
inline constexpr int kCooperativeWarps = kCooperativeThreads / 32;

struct CooperativeJob {
  GradientJob job;  // of one group
  int blocks;       // of a CTA group
  int cta_groups;
  int warps;  // of a block that share a row
  int stages;
  int units;  // of a row
  int rows;
  uint64_t* words;  // of each row's blocks
  bool keeps_sums;  // of d_out
};

struct CooperativeShared {
  float parts[kCooperativeWarps][16];  // of a batch's rows
  float4 facts[kCooperativeWarps];     // of a batch's rows: rstd and what is made of it
  float shifts[2][kCooperativeWarps];  // by parity of the batch
};

// Lane l ends with the sum over the warp of v[l * kCount / 32].
template <int kCount, int kDistance = 16>
__device__ inline float sum_across(float (&v)[kCount]) {
  if constexpr (kCount == 1) {
#pragma unroll
    for (int distance = kDistance; distance > 0; distance /= 2) {
      v[0] += __shfl_xor_sync(~0u, v[0], distance);
    }
    return v[0];
  } else {
    constexpr int kHalf = kCount / 2;
    const bool high = threadIdx.x & kDistance;
    float half[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float sent = high ? v[i] : v[i + kHalf];
      half[i] = (high ? v[i + kHalf] : v[i]) + __shfl_xor_sync(~0u, sent, kDistance);
    }
    return sum_across<kHalf, kDistance / 2>(half);
  }
}

template <class T, int kKind, int kRows>
struct CooperativeGradients {
  static constexpr int kWide = 16 / T::kBytes;
  static constexpr bool kAll = kKind != kProducts;  // four numbers of a row, else two
  static constexpr int kNumbers = kAll ? 4 : 2;
  static constexpr int kWords = kNumbers / 2;
  static constexpr int kHeard = 4;  // words that a lane asks for at once
  static constexpr int kStageBytes = kRows * 2 * kCooperativeThreads * 16;

  const CooperativeJob& t;
  const GradientJob& p;
  CooperativeShared& shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int cta_group, rank, slot, slots;
  const int unit;
  const bool has;       // the unit exists
  const uint32_t ring;  // this thread's first 16 bytes
  float factor[kWide], products[kWide], sums[kAll ? kWide : 1];

  __device__ CooperativeGradients(const CooperativeJob& of, CooperativeShared& parts,
                                  const uint4* stages)
      : t(of),
        p(of.job),
        shared(parts),
        cta_group(static_cast<int>(blockIdx.x) / of.blocks),
        rank(static_cast<int>(blockIdx.x) % of.blocks),
        slot(static_cast<int>(threadIdx.x) / 32 / of.warps),
        slots(kCooperativeWarps / of.warps),
        unit((rank * of.warps + static_cast<int>(threadIdx.x) / 32 % of.warps) * 32 +
             static_cast<int>(threadIdx.x) % 32),
        has(unit < of.units),
        ring(shared_at(stages + threadIdx.x)) {}

  // ---- places ----

  __device__ int batch_rows() const { return slots * kRows; }
  __device__ uint32_t piece(uint32_t stage, int r, int operand) const {
    return stage + (r * 2 + operand) * kCooperativeThreads * 16;
  }
  __device__ static uint4 read(uint32_t from) {
    uint4 raw;
    asm("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
        : "r"(from));
    return raw;
  }
  // This thread's unit of a row.
  __device__ char* at(const Side& side, int64_t row) const {
    return side.data + row * side.row_bytes + unit * 16;
  }
  __device__ uint64_t* words_of(int64_t row) const { return t.words + row * t.blocks * kWords; }

  // ---- copies ----

  __device__ void begin_batch(int row, uint32_t stage) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!has || row + r >= t.rows) continue;
      copy_ahead(piece(stage, r, 0), at(p.x, row + r), 0);
      copy_ahead(piece(stage, r, 1), at(p.d_out, row + r), 0);
    }
    commit_copies();
  }

  // ---- a batch's sums ----

  // The sums of this warp's columns of its slot's rows, to shared memory.
  __device__ void add_up(int row, uint32_t stage, const float* shifts) {
    float all[kRows * kNumbers];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float own[4] = {0, 0, 0, 0};
      if (has && row + r < t.rows) {
        float s[kWide], g[kWide];
        values_of<T>(read(piece(stage, r, 0)), s);
        values_of<T>(read(piece(stage, r, 1)), g);
        const float shift = kAll ? shifts[slot * kRows + r] : 0;
        for (int j = 0; j < kWide; ++j) {
          g[j] *= factor[j];
          if constexpr (kAll) {
            s[j] -= shift;
            own[2] += s[j];
            own[3] += g[j];
          }
          own[0] = __fmaf_rn(s[j], s[j], own[0]);
          own[1] = __fmaf_rn(g[j], s[j], own[1]);
        }
      }
      for (int n = 0; n < kNumbers; ++n) all[r * kNumbers + n] = own[n];
    }
    const float mine = sum_across(all);
    constexpr int kLanes = 32 / (kRows * kNumbers);  // that have the same number
    if (lane % kLanes == 0) shared.parts[warp][lane / kLanes] = mine;
  }
  // The mean of a row's first 8 elements, of which each lane has one.
  __device__ static float mean_of(uint32_t raw) {
    float s = value_of<T>(raw);
#pragma unroll
    for (int distance = 1; distance < kUnit; distance *= 2) {
      s += __shfl_xor_sync(~0u, s, distance);
    }
    return s * (1.0f / kUnit);
  }
  __device__ uint32_t beginning_of(const char* row, bool there) const {
    return kAll && p.subtract_mean && there ? load_element<T>(row, lane % kUnit) : 0;
  }

  // ---- what blocks tell one another; by the warp that has the row ----

  __device__ void tell(uint64_t* words) const {
    const int of_slot = warp / kRows, r = warp % kRows;
    const int part = lane / kNumbers;
    float v = 0;
    if (part < t.warps) v = shared.parts[of_slot * t.warps + part][r * kNumbers + lane % kNumbers];
#pragma unroll
    for (int distance = kNumbers; distance < 32; distance *= 2) {
      v += __shfl_xor_sync(~0u, v, distance);
    }
    const float next = __shfl_xor_sync(~0u, v, 1);
    // No word is 0: squares change their sign, and sums of distances that are 0 become -0.
    if (lane == 0) tell_all(words + rank * kWords, make_float2(-v, next));
    if (kAll && lane == 2) {
      const float first = __float_as_uint(v) == 0 ? -0.0f : v;
      tell_all(words + rank * kWords + 1, make_float2(first, next));
    }
  }
  __device__ void ask(const uint64_t* words, int first, uint64_t (&heard)[kHeard]) const {
    const int count = t.blocks * kWords;
#pragma unroll
    for (int k = 0; k < kHeard; ++k) {
      heard[k] = ~uint64_t{0};
      if (first + 32 * k < count) heard[k] = look_at(words + min(first + 32 * k + lane, count - 1));
    }
  }
  // heard: the first words, asked for before.
  __device__ RowSums hear(const uint64_t* words, uint64_t (&heard)[kHeard]) const {
    const int count = t.blocks * kWords;
    float a = 0, b = 0;
    for (int first = 0; first < count; first += 32 * kHeard) {
      if (first > 0) ask(words, first, heard);
      while (heard[0] == 0 || heard[1] == 0 || heard[2] == 0 || heard[3] == 0) {
        ask(words, first, heard);
      }
#pragma unroll
      for (int k = 0; k < kHeard; ++k) {
        if (first + 32 * k + lane >= count) continue;
        const float2 one = told(heard[k]);
        a += one.x;
        b += one.y;
      }
    }
    __syncwarp();
#pragma unroll
    for (int distance = kWords; distance < 32; distance *= 2) {
      a += __shfl_xor_sync(~0u, a, distance);
      b += __shfl_xor_sync(~0u, b, distance);
    }
    RowSums all = {-__shfl_sync(~0u, a, 0), __shfl_sync(~0u, b, 0), 0, 0};
    if constexpr (kAll) {
      all.distances = __shfl_sync(~0u, a, 1);
      all.gradients = __shfl_sync(~0u, b, 1);
    }
    return all;
  }
  __device__ void keep_facts(const RowSums& all, float shift) const {
    const RowFacts of = facts_of(all, shift, p);
    if (lane != 0) return;
    shared.facts[warp] =
        make_float4(of.rstd, kAll ? -of.rstd * of.mean : of.m2, -of.rstd * of.m1, -of.rstd * of.m2);
  }

  // ---- a batch's end ----

  // Where this thread's unit of a batch's first row is.
  struct Places {
    const char *x, *d_out;  // of the batch that follows into the stage
    char* d_x;
  };
  __device__ void finish(int row, uint32_t stage, int next, const Places& places) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!has || row + r >= t.rows) continue;
      const uint4 raw_x = read(piece(stage, r, 0)), raw_g = read(piece(stage, r, 1));
      if (next + r < t.rows) {
        copy_ahead(piece(stage, r, 0), places.x + r * p.x.row_bytes, raw_x.x);
        copy_ahead(piece(stage, r, 1), places.d_out + r * p.d_out.row_bytes, raw_g.x);
      }
      const float4 of = shared.facts[slot * kRows + r];
      float y[kWide], g[kWide], d[kWide];
      values_of<T>(raw_x, y);
      values_of<T>(raw_g, g);
      for (int j = 0; j < kWide; ++j) {
        if constexpr (kAll) {
          y[j] = __fmaf_rn(y[j], of.x, of.y);
          d[j] = __fmaf_rn(g[j] * factor[j], of.x, __fmaf_rn(y[j], of.w, of.z));
          sums[j] += g[j];
        } else {
          y[j] *= of.x;
          d[j] = of.x * __fmaf_rn(-y[j], of.y, g[j] * factor[j]);
        }
        products[j] = __fmaf_rn(g[j], y[j], products[j]);
      }
      store_values<T>(places.d_x + r * p.d_x.row_bytes, d);
    }
    commit_copies();
  }

  __device__ static void wait_for(uint32_t& stage, int pending) {
    wait_copies(pending);
    asm volatile("" : "+r"(stage)::"memory");
  }

  __device__ void walk() {
    const int step = batch_rows() * t.cta_groups;  // from batch to batch
    const int64_t words_step = int64_t{step} * t.blocks * kWords, x_step = step * p.x.row_bytes;
    const int64_t g_step = step * p.d_out.row_bytes, d_x_step = step * p.d_x.row_bytes;
    const int first = cta_group * batch_rows();
    int row = first + slot * kRows;  // of this slot
    // The row of this warp, of those that blocks tell one another of.
    int told_row = warp < batch_rows() ? first + warp : t.rows;
    const auto is_row = [&](int one) { return one < t.rows; };
    uint32_t stage = ring;
    for (int s = 0; s < t.stages; ++s) {
      begin_batch(min(row + int64_t{s} * step, int64_t{t.rows}), stage);
      stage += kStageBytes;
    }
    stage = ring;
    const int64_t follows = int64_t{row} + int64_t{t.stages} * step;
    Places places = {at(p.x, follows), at(p.d_out, follows), at(p.d_x, row)};
    uint64_t* words = words_of(told_row);
    const char* beginnings = p.x.row(told_row);
    float shift = mean_of(beginning_of(beginnings, is_row(told_row)));
    uint32_t beginning = beginning_of(beginnings + x_step, told_row < t.rows - step);
    if (lane == 0) shared.shifts[0][warp] = shift;
    __syncthreads();
    wait_for(stage, t.stages - 1);
    add_up(row, stage, shared.shifts[0]);
    __syncthreads();
    if (is_row(told_row)) tell(words);
    float next_shift = mean_of(beginning);
    if (lane == 0) shared.shifts[1][warp] = next_shift;
    __syncthreads();
    int parity = 1;
    for (int batch = first; batch < t.rows;) {
      const int left = t.rows - batch;  // rows, from this batch on
      const bool mine = told_row < t.rows, mine_next = told_row < t.rows - step;
      uint64_t heard[kHeard];
      if (mine) ask(words, 0, heard);
      beginnings += x_step;
      beginning = beginning_of(beginnings + x_step, told_row < t.rows - 2 * int64_t{step});
      uint32_t next_stage = stage + kStageBytes;
      if (next_stage == ring + t.stages * kStageBytes) next_stage = ring;
      if (step < left) {
        wait_for(next_stage, t.stages - 2);
        add_up(row + step, next_stage, shared.shifts[parity]);
      }
      __syncthreads();
      if (mine_next) tell(words + words_step);
      if (mine) keep_facts(hear(words, heard), shift);
      shift = next_shift;
      next_shift = mean_of(beginning);
      parity ^= 1;
      if (lane == 0) shared.shifts[parity][warp] = next_shift;
      __syncthreads();
      const int64_t next = int64_t{row} + int64_t{t.stages} * step;
      finish(row, stage, static_cast<int>(min(next, int64_t{t.rows})), places);
      places.x += x_step;
      places.d_out += g_step;
      places.d_x += d_x_step;
      words += words_step;
      stage = next_stage;
      if (step >= left) break;
      row += step;
      told_row += step;
      batch += step;
    }
  }

  // ---- what rows share, and sums of columns ----

  __device__ void begin() {
    const int near = min(unit, t.units - 1);
    for (int j = 0; j < kWide; ++j) {
      factor[j] = 1;
      products[j] = 0;
      if constexpr (kAll) sums[j] = 0;
    }
    if (p.weight.data != nullptr) load_columns(p.weight, p.weight.data, near, factor);
    if (kAll && p.scale.data != nullptr) {
      float more[kWide];
      load_columns(p.scale, p.scale.data, near, more);
      for (int j = 0; j < kWide; ++j) factor[j] *= 1.0f + more[j];
    }
  }
  // The first slot's v becomes the sum of all slots'.
  __device__ void add_slots(float (&v)[kWide], float4* at) const {
    if (slots == 1) return;
    constexpr int kFours = kWide / 4;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      at[i * kCooperativeThreads + threadIdx.x] =
          make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
    __syncthreads();
    if (slot != 0) return;
    for (int other = 1; other < slots; ++other) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float4 more = at[i * kCooperativeThreads + threadIdx.x + other * t.warps * 32];
        v[4 * i] += more.x;
        v[4 * i + 1] += more.y;
        v[4 * i + 2] += more.z;
        v[4 * i + 3] += more.w;
      }
    }
  }
  __device__ void leave() const {
    float v[kWide], more[kWide];
    if (p.keeps_weight) {
      for (int j = 0; j < kWide; ++j) v[j] = products[j];
      if (kAll && p.scale.data != nullptr) {
        load_columns(p.scale, p.scale.data, unit, more);
        for (int j = 0; j < kWide; ++j) v[j] = times_shared(v[j], 1.0f + more[j]);
      }
      keep_sums(p, cta_group, kWeightSum, unit, v, true);
    }
    if constexpr (kAll) {
      if (t.keeps_sums) keep_sums(p, cta_group, kBiasSum, unit, sums, true);
      if (p.d_scale.data == nullptr) return;
      for (int j = 0; j < kWide; ++j) v[j] = products[j];
      if (p.weight.data != nullptr) {
        load_columns(p.weight, p.weight.data, unit, more);
        for (int j = 0; j < kWide; ++j) v[j] = times_shared(v[j], more[j]);
      }
      keep_sums(p, cta_group, kScaleSum, unit, v, true);
    }
  }
};

template <class T, int kKind, int kRows>
__global__ void __launch_bounds__(kCooperativeThreads, kRows == 4 ? 2 : 3)
    cooperative_kernel(const __grid_constant__ CooperativeJob t) {
  extern __shared__ uint4 ring[];
  __shared__ CooperativeShared parts;
  CooperativeGradients<T, kKind, kRows> own(t, parts, ring);
  own.begin();
  own.walk();
  wait_copies(0);
  own.add_slots(own.products, reinterpret_cast<float4*>(ring));
  if constexpr (kKind != kProducts) own.add_slots(own.sums, reinterpret_cast<float4*>(ring));
  if (own.slot == 0 && own.has) own.leave();
  start_next_kernel();
}

#endif  // __CUDACC__

}  // namespace pestle::ops::norm_gradients
