// quantize_w4a8 under the fixed codebook, on CUDA: fits whose decisions are exact and whose sums
// are not, wherever that is certain to give the rule's bits.
// Map      a thread block up to 64 rows, one after the other, a warp 2048 columns, 64 a lane as
//          four groups of 16 neighbours (as hadamard_lanes.cuh); the next row is on its way to
//          shared memory meanwhile
// Traffic  x once, codes and scales once
// Numerics exact. What leaves a fit is a scale of 4 significant bits and the row's largest peak.
//          So sums go by multiply-adds in any order, 26 * 2^-24 of the rule's at most; a group
//          with an element as near as 2e-6 of its amax to a midpoint, the groups whose peak may be
//          the row's and those whose scale lies next to a tie are fitted by the rule, one by one,
//          by 16 lanes. Codes: 2 x / channel rounded up, by two reciprocals, one too small and one
//          too large; where both agree, a table of the scale has the code.
// Measured 32768 x 16384 bf16 on an H200: 1181 us, 27 % of the copy.
#pragma once

#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "formats/w4a8.h"
#include "ops/quant/hadamard/hadamard_lanes.cuh"

namespace pestle::ops::quantize_w4a8 {

using cuda::fp8_pair;

// The call's tensors, for kernels whose rows have no gaps.
struct RowTensors {
  const char* x;
  int64_t x_row_bytes;
  int x_bytes;
  DType x_dtype;
  char* q;
  int64_t q_row_bytes;
  char* scale_rel;
  int64_t scale_rel_row_bytes;
  float* scale_channel;
  int columns;
};

struct FixedJob : RowTensors {
  int64_t rows;
  int rows_each;  // of a thread block
};

inline constexpr int kFixedGroups = kLongRun / 16;  // of a lane
inline constexpr float kRoundAway = 0x1.8p23f;      // integers in the low bits of a sum
inline constexpr uint32_t kRoundAwayBits = 0x4B400000u;

// ---- tables of codes: for a scale 2^(b-1) (1 + m/8), sizes grow with the octave b ----

inline constexpr int kOctaves = 8;                              // 1/2 to 120
inline constexpr int kFirstCode = 6 << 3;                       // of 1/2; below, all levels are 0
inline constexpr int kLastCode = 14 << 3;                       // of 128
inline constexpr int kCodeTables = kLastCode - kFirstCode + 2;  // and the one below
// Numbers up to this in magnitude have an entry, those of elements up to 1.29 scales. No element
// has more than 1.19: a fit's largest element takes the largest level, and the others pull the
// scale down to 0.9 of what it was at most, twice.
__host__ __device__ constexpr int table_half(int octave) { return (5 << octave >> 1) + 3; }
__host__ __device__ constexpr int table_start(int octave, int within) {
  int start = 2 * table_half(0) + 1;  // of the table below
  for (int b = 0; b < octave; ++b) start += 8 * (2 * table_half(b) + 1);
  return start + within * (2 * table_half(octave < kOctaves ? octave : kOctaves - 1) + 1);
}
inline constexpr int kTableBytes = (table_start(kOctaves, 1) + 15) / 16 * 16;

struct FixedTables {
  formats::W4a8Table levels;
  // Of a scale's code: where number 0 lies, less the bits of kRoundAway; the largest number, or -1.
  int2 place[128];
  uint32_t least_peak[2];  // of the row, by turns: no less than this
  uint32_t peaks[2][8];    // of a warp's groups
};

#ifdef __CUDACC__

__device__ inline float sum_rounded_up(float x, float y, float z) { return __fmaf_ru(x, y, z); }

// The code of a number of half steps under a scale: how many sums of neighbouring levels lie below
// it. Called by whole warps; lane i has sum i.
__device__ inline int code_among(int sum_of_lane, int number) {
  int code = 0;
#pragma unroll
  for (int step = 8; step >= 1; step /= 2) {
    const int sum = __shfl_sync(~0u, sum_of_lane, code + step - 1);
    if (sum < number) code += step;
  }
  return code;
}

// By all threads of a block. `codes` has room for kTableBytes.
__device__ inline void fill_fixed_tables(FixedTables& t, uint8_t* codes) {
  if (threadIdx.x == 0) {
    float levels[formats::kW4a8Levels];
    formats::w4a8_default_codebook(levels);
    t.levels = formats::w4a8_table(levels);
  }
  const auto table = static_cast<uint32_t>(__cvta_generic_to_shared(codes));
  for (int code = threadIdx.x; code < 128; code += blockDim.x) {
    const int above = code - kFirstCode, octave = above / 8;
    const int half = code > kLastCode ? -1 : table_half(above < 0 ? 0 : min(octave, kOctaves - 1));
    const int start = above < 0 ? 0 : table_start(octave, above % 8);
    t.place[code] = make_int2(static_cast<int>(table + start + half - kRoundAwayBits), half);
  }
  if (threadIdx.x < 2) t.least_peak[threadIdx.x] = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int i = threadIdx.x / 32; i < kCodeTables; i += warps) {
    const int scale_code = kFirstCode - 1 + i;
    const float scale = i == 0 ? 0.0f : cuda::e4m3_value(static_cast<uint8_t>(scale_code));
    const int2 place = t.place[scale_code];
    const int own = formats::w4a8_decode_int8(t.levels.level[lane % 16], scale);
    const int sum = own + __shfl_sync(~0u, own, lane % 16 + 1);
    uint8_t* zero = codes + (place.x + kRoundAwayBits - table);
    for (int first = -place.y; first <= place.y; first += 32) {
      const int code = code_among(sum, first + lane);
      if (first + lane <= place.y) zero[first + lane] = static_cast<uint8_t>(code);
    }
  }
  __syncthreads();
}

// ---- levels ----

// Numbers are looked up by tenths of the scale: cell k has those from k - 1/2 to k + 1/2 tenths and
// one midpoint at most; lane k % 32 knows it, and the level at the cell's lower end.
struct Cell {
  float mid, level;

  __device__ explicit Cell(const formats::W4a8Table& t) : mid(4.0f) {
    const int lane = threadIdx.x % 32;
    const float low = (static_cast<float>(lane < 16 ? lane : lane - 32) - 0.5f) * 0.1f;
    int below = 0;
    for (int i = 0; i + 1 < formats::kW4a8Levels; ++i) {
      below += t.mid[i] < low ? 1 : 0;
      if (t.mid[i] >= low && t.mid[i] < low + 0.1f) mid = t.mid[i];
    }
    level = t.level[below];
  }
  // The level of formats::w4a8_index of a number up to 1.5; by whole warps.
  __device__ float nearest(float v) const {
    const uint32_t index = __float_as_uint(__fmaf_rn(v, 10.0f, kRoundAway));
    const float middle = __shfl_sync(~0u, mid, index);
    return __shfl_sync(~0u, level, index + (v > middle ? 1 : 0));
  }
};

// ---- a group by the rule, an element a lane; both halves of the warp do the same ----

__device__ inline float sum_by_halves(float p) {
#pragma unroll
  for (int half = 8; half >= 1; half /= 2) p = p + __shfl_xor_sync(~0u, p, half);
  return p;
}

// What other warps of the row wait for: so no search step by step.
__device__ __noinline__ formats::W4a8Fit fit_together(float x, Cell cell) {
  const uint32_t amax = __reduce_max_sync(~0u, formats::abs_bits(x));
  if (amax >= formats::kF32Inf) return {formats::f32_nan(), formats::kF32Nan};
  float scale = formats::max_keep_nan(__uint_as_float(amax), formats::kW4a8MinScale);
#pragma unroll 1
  for (int pass = 0; pass < formats::kW4a8Passes; ++pass) {
    const float level = cell.nearest(__fdiv_rn(x, scale));
    const float num = sum_by_halves(x * level);
    const float den = formats::max_keep_nan(sum_by_halves(level * level), formats::kW4a8MinScale);
    scale = formats::max_keep_nan(__fdiv_rn(num, den), formats::kW4a8MinScale);
  }
  const float level = cell.nearest(__fdiv_rn(x, scale));
  return {scale, __reduce_max_sync(~0u, formats::abs_bits(level * scale))};
}

__device__ __noinline__ uint32_t code_by_rule(float v, const formats::W4a8Table* table,
                                              uint32_t rel) {
  const float s_rel = formats::f32_from_e4m3(static_cast<uint8_t>(rel));
  uint32_t code = 0;
  int below = formats::w4a8_decode_int8(table->level[0], s_rel);
  for (int i = 1; i < formats::kW4a8Levels; ++i) {
    const int own = formats::w4a8_decode_int8(table->level[i], s_rel);
    code += v > static_cast<float>(below + own) * 0.5f ? 1 : 0;
    below = own;
  }
  return code;
}
// Two words of eight codes, in lanes 0 to 7 and 8 to 15.
__device__ __noinline__ uint32_t codes_together(float x, const FixedTables* tables, uint32_t rel,
                                                float channel) {
  const float v = __fdiv_rn(x, channel);
  const int2 place = tables->place[rel & 0x7F];
  const uint32_t number = __float_as_uint(__fadd_ru(v + v, kRoundAway));
  const bool has_entry = fabsf(v + v) <= static_cast<float>(place.y);
  uint32_t code = 0;
  if (__all_sync(~0u, has_entry)) {
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(code) : "r"(number + place.x));
  } else {
    code = code_by_rule(v, &tables->levels, rel);
  }
  code <<= threadIdx.x % 8 * 4;
#pragma unroll
  for (int i = 1; i < 8; i *= 2) code |= __shfl_xor_sync(~0u, code, i);
  return code;
}

// Groups that a lane asks for, one by one: `body(x, source, group)` by all lanes, where x is this
// lane's element of it, `source` the lane that has the group. todo: a bit a group.
template <class Body>
__device__ inline void by_sixteen(const float (&v)[kLongRun], float norm, uint32_t todo,
                                  float* scratch, Body&& body) {
  const int lane = threadIdx.x % 32;
  for (;;) {
    const uint32_t waiting = __ballot_sync(~0u, todo != 0);
    if (waiting == 0) return;
    const int source = __ffs(static_cast<int>(waiting)) - 1;
    const int group = __ffs(static_cast<int>(__shfl_sync(~0u, todo, source))) - 1;
    __syncwarp();
    if (lane == source) {
#pragma unroll
      for (int m = 0; m < kFixedGroups; ++m) {
        if (m != group) continue;
#pragma unroll
        for (int i = 0; i < 16; ++i) scratch[i] = v[16 * m + i] * norm;
      }
      todo &= todo - 1;
    }
    __syncwarp();
    body(scratch[lane % 16], source, group);
  }
}

// ---- fits ----

__device__ inline float approximate_reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// A pass of the fit of group kWhich; `nearest`: how near an element has come to a midpoint.
template <int kWhich>
__device__ inline float refit_closely(const float (&v)[kLongRun], float scale, const Cell& cell,
                                      float& nearest) {
  const float tenths = approximate_reciprocal(scale) * 10.0f;
  float num[4] = {0, 0, 0, 0}, den[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float x = v[16 * kWhich + i];
    const uint32_t index = __float_as_uint(__fmaf_rn(x, tenths, kRoundAway));
    const float above = __fmaf_rn(scale, __shfl_sync(~0u, cell.mid, index), -x);
    nearest = fminf(nearest, fabsf(above));
    const float level = __shfl_sync(~0u, cell.level, index + (__float_as_uint(above) >> 31));
    num[i % 4] = i < 4 ? x * level : __fmaf_rn(x, level, num[i % 4]);
    den[i % 4] = i < 4 ? level * level : __fmaf_rn(level, level, den[i % 4]);
  }
  const float down = approximate_reciprocal((den[0] + den[1]) + (den[2] + den[3]));
  return ((num[0] + num[1]) + (num[2] + num[3])) * down;
}

// What is known of a lane's groups. Flags, a byte a group:
inline constexpr uint32_t kHighest = 1;    // its largest element has the highest level, or may have
inline constexpr uint32_t kUncertain = 2;  // the scale is not known to kFitError
inline constexpr uint32_t kSettled = 4;    // its peak is in `peak` already, or it does not exist
struct Fits {
  float scale[kFixedGroups];  // in the rule's units
  uint32_t flags = 0;
  float least = 0;    // the lane's largest peak is not below
  uint32_t peak = 0;  // largest known one

  __device__ bool is(int group, uint32_t flag) const { return (flags >> (8 * group) & flag) != 0; }
  // Of the group's peak. 0.980671 is the largest level, 0.8876 the midpoint below.
  __device__ float most(int group) const {
    return scale[group] * (is(group, kHighest) ? 0.980675f : 0.79488f);
  }
};

// Error of a scale, relative.
inline constexpr float kFitError = 4e-6f;

template <int kWhich>
__device__ inline void fit_closely(const float (&v)[kLongRun], float norm, bool inside,
                                   const Cell& cell, Fits& fits) {
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) amax = max_or_nan(amax, fabsf(v[16 * kWhich + i]));
  float nearest = amax, scale = amax;
#pragma unroll 1
  for (int pass = 0; pass < formats::kW4a8Passes; ++pass) {
    scale = refit_closely<kWhich>(v, scale, cell, nearest);
  }
  const float reach = amax * approximate_reciprocal(scale), size = amax * norm;
  scale *= norm;
  const bool certain = size >= 0x1p-22f && size <= 0x1p60f && nearest > 2e-6f * amax;
  uint32_t flags = certain ? (reach > 0.8875f ? kHighest : 0) : kUncertain;
  float least = certain && reach > 0.8879f ? scale * 0.980597f : 0.0f;
  if (amax == 0 || !inside) {
    flags = kSettled;
    least = 0;
    scale = formats::kW4a8MinScale;
    if (inside) {
      fits.peak = max(fits.peak, formats::abs_bits(-0.050720f * formats::kW4a8MinScale));
    }
  }
  fits.least = fmaxf(fits.least, least);
  fits.scale[kWhich] = scale;
  fits.flags |= flags << (8 * kWhich);
}

// ---- codes ----

struct RowScale {
  float channel, inverse;  // of the row; the reciprocal
  float below, above;      // 2 / channel in v's units, too small and too large
};

// Eight codes; the bits of `differs` say that they are not certain.
__device__ inline uint32_t table_codes(const float* v, const RowScale& by, uint32_t place,
                                       uint32_t& differs) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    const uint32_t number = __float_as_uint(sum_rounded_up(v[i], by.below, kRoundAway));
    differs |= number ^ __float_as_uint(sum_rounded_up(v[i], by.above, kRoundAway));
    uint32_t code;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(code) : "r"(number + place));
    word = (word << 4) + code;
  }
  return word;
}

// The scale's code, and whether it is certain.
__device__ inline uint32_t rel_code(float quotient, bool& certain) {
  const uint32_t two =
      cuda::e4m3_of_magnitudes(quotient * (1 - kFitError), quotient * (1 + kFitError));
  certain = (two & 0xFF) == (two >> 8 & 0xFF);
  return two & 0xFF;
}

struct FixedRow {
  const FixedTables& tables;
  const Cell& cell;
  const float (&v)[kLongRun];
  float norm;      // v times this are the rule's numbers
  float* scratch;  // of the warp
  int left;        // columns of the warp's piece that exist

  // Where group m of this lane begins in the warp's piece.
  __device__ int offset(int m) const {
    return static_cast<int>(threadIdx.x % 32) / 4 * 256 + m * 64 +
           static_cast<int>(threadIdx.x % 4) * 16;
  }

  // Groups of `todo` by the rule.
  __device__ void fit_exactly(uint32_t todo, Fits& fits) const {
    by_sixteen(v, norm, todo, scratch, [&](float x, int source, int group) {
      const formats::W4a8Fit fit = fit_together(x, cell);
      if (static_cast<int>(threadIdx.x % 32) != source) return;
      fits.peak = max(fits.peak, fit.peak);
#pragma unroll
      for (int m = 0; m < kFixedGroups; ++m) {
        if (m == group) fits.scale[m] = fit.scale;
      }
    });
  }

  // Groups whose peak may be the row's, `least` by what any warp has found so far.
  __device__ uint32_t may_be_peak(const Fits& fits, float least) const {
    uint32_t todo = 0;
#pragma unroll
    for (int m = 0; m < kFixedGroups; ++m) {
      const bool may = fits.is(m, kUncertain) || fits.most(m) >= least;
      if (may && !fits.is(m, kSettled)) todo |= 1u << m;
    }
    return todo;
  }

  // Codes of the scales, a byte a group.
  __device__ uint32_t rel_codes(Fits& fits, const RowScale& by, bool slow) const {
    uint32_t rels = 0, todo = 0;
#pragma unroll
    for (int m = 0; m < kFixedGroups; ++m) {
      bool certain;
      rels |= rel_code(fits.scale[m] * by.inverse, certain) << (8 * m);
      if ((!certain || slow) && offset(m) < left) todo |= 1u << m;
    }
    if (__any_sync(~0u, todo != 0)) {
      fit_exactly(todo, fits);
#pragma unroll
      for (int m = 0; m < kFixedGroups; ++m) {
        if ((todo >> m & 1) == 0) continue;
        const uint32_t code =
            fp8_pair<formats::E4m3>(__fdiv_rn(fits.scale[m], by.channel), 0.0f) & 0xFF;
        rels = (rels & ~(0xFFu << (8 * m))) | code << (8 * m);
      }
    }
    return rels;
  }

  __device__ void store_codes(char* q, const Fits& fits, const RowScale& by, uint32_t rels,
                              bool slow) const {
    uint32_t todo = 0;
#pragma unroll
    for (int m = 0; m < kFixedGroups; ++m) {
      if (offset(m) >= left) continue;
      const uint32_t rel = rels >> (8 * m) & 0xFF;
      const int2 place = tables.place[rel & 0x7F];
      uint32_t differs = 1;
      if (!slow && place.y >= 0) {
        differs = 0;
        uint2 words;
        words.x = table_codes(v + 16 * m, by, place.x, differs);
        words.y = table_codes(v + 16 * m + 8, by, place.x, differs);
        *reinterpret_cast<uint2*>(q + offset(m) / 2) = words;
      }
      if (differs != 0) todo |= 1u << m;
    }
    by_sixteen(v, norm, todo, scratch, [&](float x, int source, int group) {
      const uint32_t rel = __shfl_sync(~0u, rels, source) >> (8 * group) & 0xFF;
      const uint32_t word = codes_together(x, &tables, rel, by.channel);
      const uint2 words = make_uint2(__shfl_sync(~0u, word, 0), __shfl_sync(~0u, word, 8));
      if (static_cast<int>(threadIdx.x % 32) == source) {
        *reinterpret_cast<uint2*>(q + offset(group) / 2) = words;
      }
    });
  }
};

// Byte k of lane r's word to byte r of lane k's, of four lanes.
__device__ inline uint32_t turn_bytes(uint32_t word) {
  const int lane = threadIdx.x % 4;
  const uint32_t beside = __shfl_xor_sync(~0u, word, 1);
  word = __byte_perm(word, beside, lane % 2 == 0 ? 0x6240 : 0x3715);
  const uint32_t across = __shfl_xor_sync(~0u, word, 2);
  return __byte_perm(word, across, lane < 2 ? 0x5410 : 0x3276);
}

template <int kN>
__device__ inline void rotate_groups(float (&v)[kLongRun], float4* shared) {
  long_butterflies<1, true>(v);
  long_butterflies<4, true>(v);
  long_butterflies<16, true>(v);
  exchange_long_runs<true>(v, shared);
  if constexpr (kN == 256) {
#pragma unroll
    for (int i = 0; i < 16; ++i) butterfly<true>(v[i], v[16 + i], v[32 + i], v[48 + i]);
  }
}

__device__ inline void quantize_fixed_row(const FixedJob& job, int64_t row, int piece, int turn,
                                          const float (&v)[kLongRun], float norm, const Cell& cell,
                                          FixedTables& tables, float* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const FixedRow of{tables, cell, v, norm, scratch, job.columns - piece};
  Fits fits;
  fit_closely<0>(v, norm, of.offset(0) < of.left, cell, fits);
  fit_closely<1>(v, norm, of.offset(1) < of.left, cell, fits);
  fit_closely<2>(v, norm, of.offset(2) < of.left, cell, fits);
  fit_closely<3>(v, norm, of.offset(3) < of.left, cell, fits);
  // What other warps have found already spares this one its own best group, at times.
  uint32_t least = __reduce_max_sync(~0u, __float_as_uint(fits.least));
  if (lane == 0) least = max(least, atomicMax(&tables.least_peak[turn], least));
  least = __shfl_sync(~0u, least, 0);
  of.fit_exactly(of.may_be_peak(fits, __uint_as_float(least)), fits);
  const uint32_t own = __reduce_max_sync(~0u, fits.peak);
  if (lane == 0) tables.peaks[turn][warp] = own;
  __syncthreads();
  if (threadIdx.x == 0) tables.least_peak[turn] = 0;  // all have read it; needed after next
  const uint32_t peak =
      __reduce_max_sync(~0u, lane < blockDim.x / 32 ? tables.peaks[turn][lane] : 0u);
  RowScale by;
  by.channel = formats::w4a8_channel_scale(peak);
  by.inverse = cuda::short_reciprocal(by.channel);
  if (threadIdx.x == 0) job.scale_channel[row] = by.channel;
  const int twice = __float_as_int(by.inverse * (2 * norm));
  by.below = __int_as_float(twice - 3);
  by.above = __int_as_float(twice + 3);
  // Quotients that are not 0 stay so: x of 16 bits has no bits below 2^-137 when normed.
  const bool slow = !(by.channel <= (job.x_bytes == 4 ? 0.5f : 256.0f));
  const uint32_t rels = of.rel_codes(fits, by, slow);
  const uint32_t word = turn_bytes(rels);
  if (lane / 4 * 256 + lane % 4 * 64 < of.left) {
    char* to = job.scale_rel + row * job.scale_rel_row_bytes + piece / 16 + lane * 4;
    *reinterpret_cast<uint32_t*>(to) = word;
  }
  of.store_codes(job.q + row * job.q_row_bytes + piece / 2, fits, by, rels, slow);
}

// kWide: x is f32.
template <int kN, bool kWide>
__global__ void __launch_bounds__(32 * kLongWarps, 2) fixed_kernel(const FixedJob job) {
  extern __shared__ __align__(128) char memory[];
  __shared__ FixedTables tables;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int piece = warp * kLongPiece;
  const int left = job.columns - piece;
  auto* exchange = reinterpret_cast<float4*>(memory) + warp * kLongQuads;
  char* stages = memory + warps * (kLongQuads * sizeof(float4));
  char* stage = stages + piece * job.x_bytes;
  const char* x = job.x + static_cast<int64_t>(piece) * job.x_bytes;
  int64_t row = static_cast<int64_t>(blockIdx.x) * job.rows_each;
  const int64_t end = min(row + job.rows_each, job.rows);
  start_long_runs(x + row * job.x_row_bytes, left, job.x_bytes, stage);
  fill_fixed_tables(tables, reinterpret_cast<uint8_t*>(stages + warps * kLongPiece * job.x_bytes));
  const Cell cell(tables.levels);
  constexpr float kNorm = kHadamardNorm<kN>;
  // f32 may have numbers that the norm makes 0.
  constexpr float kLeftToNorm = kWide ? 1.0f : kNorm;
  for (int turn = 0; row < end; ++row, turn ^= 1) {
    float v[kLongRun];
    await_copies();
    if constexpr (kWide) {
      take_long_runs_of<cuda::F32>(stage, v);
    } else if (job.x_dtype == DType::kBF16) {
      take_long_runs_of<cuda::Bf16>(stage, v);
    } else {
      take_long_runs_of<cuda::F16>(stage, v);
    }
    __syncwarp();
    if (row + 1 < end) {
      start_long_runs(x + (row + 1) * job.x_row_bytes, left, job.x_bytes, stage);
    }
    rotate_groups<kN>(v, exchange);
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < kLongRun; ++i) v[i] *= kNorm;
    }
    quantize_fixed_row(job, row, piece, turn, v, kLeftToNorm, cell, tables,
                       reinterpret_cast<float*>(exchange));
  }
}

#endif  // __CUDACC__

}  // namespace pestle::ops::quantize_w4a8
