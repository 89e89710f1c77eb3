// Attention of f32 as exact as f32, by products of f16 parts (f16_parts.cuh): mma.sync and cp.async.
//
// Map      As attention_tiles.cuh, of which it is a variant: a block takes 64 rows, a warp 16 of
//          them, whose parts of q it makes itself and keeps in registers. Parts of k and v come out
//          of the workspace by tiles of 32 keys. With two groups of 4 warps a block has
//          every second tile done by the other group, and adds up at the end: as many warps where
//          few heads and queries give few blocks.
// Numerics Three products of parts, high * high in a sum of its own; those of a tile are begun anew.
//          Exponentials are split too, 2^15 times as large; where one of a warp's is below 2^-31 of
//          the row's largest, the warp multiplies them in levels, each brought to f16's range, so
//          that small ones keep as many bits.
// Numbers  Rows whose q, or a tile of k or v that they see, has no parts (infinities, NaN, a range
//          beyond 2^30 among the 32 rows that share a scale) are left to attention_tiles.cuh by a
//          word for each block; there and here single rows are made again by attention_row.
#pragma once

#include "ops/attention/sm80/attention_tiles.cuh"
#include "ops/attention/sm80/f16_parts.cuh"

namespace pestle::cuda::attention_parts {

using attention_tiles::kLeftRows;
using attention_tiles::kWarps;
using attention_tiles::WarpRows;
using warp::Kind;

constexpr int kGroupThreads = 32 * kWarps;

struct PartsJob : AttentionJob {
  F16Parts k_parts, v_parts;
};

// kGroups: of 4 warps.
template <int kColumnsOf, bool kGeneralOf, int kGroupsOf>
struct Config {
  static constexpr Kind kKind = Kind::kF16;
  static constexpr int kColumns = kColumnsOf;
  static constexpr bool kGeneral = kGeneralOf;
  static constexpr int kGroups = kGroupsOf;
  static constexpr bool kSplit = true;
  static constexpr bool kF32 = true;
  static constexpr float kOfValues = 1;
  static constexpr int kBytes = 4;  // of both parts of an element
  static constexpr int kOfChunk = 16 / kBytes;
  static constexpr int kRowBytes = kColumns * kBytes;
  static constexpr int kUnits = kColumns / 16;  // of one instruction
  static constexpr int kBlocks = 1;
  static constexpr int kWarpRows = 16;
  static constexpr int kRows = kWarpRows * kWarps;
  static constexpr int kKeys = kPartsRows;
  static constexpr int kTileBytes = kKeys * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;  // k, then v
  static constexpr int kGroupBytes = 2 * kStageBytes;
  static constexpr int kThreads = kGroups * kGroupThreads;
  static constexpr int kSharedBytes = kGroups * kGroupBytes;
  // On a multiprocessor, by registers.
  static constexpr int kBlocksAtOnce = kGroups == 2 ? 1 : kColumns <= 64 ? 3 : 2;
  static_assert(kRows == kLeftRows);
};

#ifdef __CUDACC__

template <class C>
struct Kernel : attention_tiles::Kernel<C> {
  using Base = attention_tiles::Kernel<C>;
  using Base::batch, Base::c, Base::key_head, Base::kept, Base::kEights, Base::kOutEights,
      Base::lane, Base::largest, Base::logits, Base::memory, Base::out, Base::row0, Base::rows,
      Base::sum, Base::unsafe, Base::warp;
  static constexpr int kLow = C::kRowBytes / 2;  // from the high parts of a row to the low ones
  static constexpr uint32_t kSmallestPart = (127 - 16) << 23;  // 2^-16, as bits

  const PartsJob& parts;
  int group;
  uint32_t q_high[C::kUnits][4], q_low[C::kUnits][4];
  float q_factor;

  __device__ Kernel(const PartsJob& j, uint32_t shared)
      : Base(j, shared), parts(j), group(threadIdx.x / kGroupThreads) {
    warp %= kWarps;
    memory += group * C::kGroupBytes;
  }

  __device__ int head() const { return batch * c.key_heads + key_head; }
  __device__ void group_barrier() const {
    if constexpr (C::kGroups == 1)
      __syncthreads();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
  }

  // ---- operands ----

  // The warp's rows of q as fragments. False: they have no parts.
  __device__ bool load_queries() {
    float2 x[C::kUnits][4];
    uint32_t size = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = this->warp_row() + h * 8 + lane / 4;
      const int valid = min(row, rows - 1);
      const char* from = c.q.at(batch, this->head_of(valid), this->query_of(valid));
#pragma unroll
      for (int unit = 0; unit < C::kUnits; ++unit)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int column = unit * 16 + k * 8 + lane % 4 * 2;
          float2 v = make_float2(0, 0);
          if (row < rows && column < c.depth)
            v = *reinterpret_cast<const float2*>(from + column * 4);
          x[unit][2 * k + h] = v;
          size = max(size, __float_as_uint(v.x) & 0x7FFFFFFFu);
          size = max(size, __float_as_uint(v.y) & 0x7FFFFFFFu);
        }
    }
    const PartsScale scale(__reduce_max_sync(kAllLanes, size));
    bool serves = scale.serves;
#pragma unroll
    for (int unit = 0; unit < C::kUnits; ++unit)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 v = x[unit][e];
        serves = serves && scale.serves_for(v.x) && scale.serves_for(v.y);
        const F16PartsPair p = f16_parts(v.x * scale.up, v.y * scale.up);
        q_high[unit][e] = p.high;
        q_low[unit][e] = p.low;
      }
    q_factor = scale.down;
    return serves;
  }
  // Can the whole block be done here?
  __device__ bool have_parts(SeenKeys any) {
    bool serves = load_queries();
    const float* k = parts.k_parts.factors_of(head());
    const float* v = parts.v_parts.factors_of(head());
    const int end = (any.end + kPartsRows - 1) / kPartsRows;
    for (int i = any.begin / kPartsRows + threadIdx.x; i < end; i += C::kThreads)
      serves = serves && k[i] == k[i] && v[i] == v[i];
    return __syncthreads_and(serves) != 0;
  }

  static constexpr int kChunks = C::kRowBytes / 16;
  static constexpr int kLines = kGroupThreads / kChunks;  // that a group copies at once
  // Rows from `first` on; those behind the last one, and columns behind the last, become zeros.
  __device__ void copy_tile(uint32_t to, const F16Parts& t, int first) const {
    const int thread = threadIdx.x % kGroupThreads;
    const int chunk = thread % kChunks, line = thread / kChunks;
    const int part = chunk / (kChunks / 2), of_part = chunk % (kChunks / 2);
    const char* from = t.at(head(), first + line) + part * 2 * t.columns + of_part * 16;
    const int left = of_part * 8 < t.columns ? t.rows - first - line : 0;
#pragma unroll
    for (int i = 0; i < C::kKeys / kLines; ++i) {
      copy_async(to + Base::place(line + i * kLines, chunk), from, i * kLines < left ? 16 : 0);
      from += kLines * 4 * t.columns;
    }
  }
  __device__ void copy_keys(int first, int stage) const {
    const uint32_t to = memory + stage * C::kStageBytes;
    copy_tile(to, parts.k_parts, first);
    copy_tile(to + C::kTileBytes, parts.v_parts, first);
  }

  // ---- products ----

  __device__ void multiply_keys(uint32_t k, float factor) {
    float high[kEights / 2][2][4] = {}, low[kEights / 2][2][4] = {};
    const uint32_t at = k + Base::place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int unit = 0; unit < C::kUnits; ++unit)
#pragma unroll
      for (int n = 0; n < kEights / 2; ++n) {
        uint32_t b[4], b_low[4];
        const uint32_t from = (at ^ (unit * 32)) + n * 16 * C::kRowBytes;
        warp::load_fragments<false>(from, b[0], b[1], b[2], b[3]);
        warp::load_fragments<false>(from ^ kLow, b_low[0], b_low[1], b_low[2], b_low[3]);
        multiply_f16_parts(high[n], low[n], q_high[unit], q_low[unit], b, b_low);
      }
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        logits[0][n][e] = fmaf(low[n / 2][n % 2][e], kOfLowParts, high[n / 2][n % 2][e]) * factor;
  }
  // out = out * keep + exponentials * v * factor
  __device__ void add_values(uint32_t v, float factor, const float (&keep)[2]) {
    uint32_t p_high[C::kKeys / 16][4], p_low[C::kKeys / 16][4];
#pragma unroll
    for (int unit = 0; unit < C::kKeys / 16; ++unit)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float* from = logits[0][2 * unit + e / 2] + e % 2 * 2;
        const F16PartsPair p = f16_parts(from[0], from[1]);
        p_high[unit][e] = p.high;
        p_low[unit][e] = p.low;
      }
    const uint32_t at = v + Base::place(lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < kOutEights / 2; ++n) {
      float high[2][4] = {}, low[2][4] = {};
#pragma unroll
      for (int unit = 0; unit < C::kKeys / 16; ++unit) {
        uint32_t b[4], b_low[4];
        const uint32_t from = (at ^ (n * 32)) + unit * 16 * C::kRowBytes;
        warp::load_fragments<true>(from, b[0], b[1], b[2], b[3]);
        warp::load_fragments<true>(from ^ kLow, b_low[0], b_low[1], b_low[2], b_low[3]);
        multiply_f16_parts(high, low, p_high[unit], p_low[unit], b, b_low);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float added = fmaf(low[j][e], kOfLowParts, high[j][e]);
          float& to = out[0][2 * n + j][e];
          to = fmaf(to, keep[e / 2], added * factor);
        }
    }
  }

  // ---- exponentials below f16's range ----

  template <class F>
  __device__ void for_exponentials(F f) {
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(logits[0][n][e], n * 4 + e);
  }
  __device__ bool some_are_tiny() {
    uint32_t least = ~0u;  // bits, less 1: zeros are not tiny
    for_exponentials([&](float p, int) { least = min(least, __float_as_uint(p) - 1); });
    return __any_sync(kAllLanes, least < kSmallestPart - 1) != 0;
  }
  // Brings the largest, at least 2^-126, to [2^14, 2^15) or as far as 2^120 goes, and puts aside what
  // is tiny then; returns what takes it back.
  __device__ float take_level(volatile float* rest) {
    uint32_t size = 0;
    for_exponentials([&](float p, int) { size = max(size, __float_as_uint(p)); });
    const int exponent = static_cast<int>(__reduce_max_sync(kAllLanes, size) >> 23) - 127;
    const int by = max(-100, min(120, 14 - exponent));
    const float up = exp2f(static_cast<float>(by));
    for_exponentials([&](float& p, int i) {
      const bool tiny = __float_as_uint(p * up) < kSmallestPart;
      rest[i] = tiny ? p : 0;
      p = tiny ? 0 : p * up;
    });
    return exp2f(static_cast<float>(-by));
  }
  // True if there is something.
  __device__ bool take_rest(const volatile float* rest) {
    bool some = false;
    for_exponentials([&](float& p, int i) {
      p = rest[i];
      some |= p != 0;
    });
    return __any_sync(kAllLanes, some) != 0;
  }
  __device__ void multiply_values(uint32_t v, float factor) {
    volatile float rest[kEights * 4];
    float keep[2] = {kept[0][0], kept[0][1]};
    const bool in_levels = some_are_tiny();
    for (;;) {
      const float level = in_levels ? take_level(rest) : 1;
      add_values(v, factor * level, keep);
      if (!in_levels || !take_rest(rest)) return;
      keep[0] = keep[1] = 1;
    }
  }

  // ---- groups ----

  // A lane's sums go from the second group to the first, which has the same rows.
  __device__ float* handed_over() const {
    extern __shared__ __align__(1024) char all[];
    return reinterpret_cast<float*>(all + C::kGroupBytes) + threadIdx.x % kGroupThreads;
  }
  __device__ void hand_over() const {
    float* to = handed_over();
    group_barrier();  // nobody reads the tiles any more
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      to[h * kGroupThreads] = largest[0][h];
      to[(2 + h) * kGroupThreads] = sum[0][h];
    }
    to[4 * kGroupThreads] = __uint_as_float(unsafe);
#pragma unroll
    for (int n = 0; n < kOutEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[(5 + n * 4 + e) * kGroupThreads] = out[0][n][e];
  }
  __device__ float kept_of(float from, float base) const {
    return quick_exp2(fmaf(from, this->scale, -Base::kShift) - base);
  }
  __device__ void take_over() {
    const float* from = handed_over();
    float own[2], others[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float other = from[h * kGroupThreads], most = fmaxf(largest[0][h], other);
      const float base = this->base_of(most);
      own[h] = kept_of(largest[0][h], base);
      others[h] = kept_of(other, base);
      largest[0][h] = most;
      sum[0][h] = fmaf(sum[0][h], own[h], from[(2 + h) * kGroupThreads] * others[h]);
    }
    unsafe |= __float_as_uint(from[4 * kGroupThreads]);
#pragma unroll
    for (int n = 0; n < kOutEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        out[0][n][e] =
            fmaf(out[0][n][e], own[e / 2], from[(5 + n * 4 + e) * kGroupThreads] * others[e / 2]);
  }

  // ----

  struct Shared {
    SeenKeys by_warps[C::kGroups * kWarps];
    SeenKeys by_rows[C::kGroups * kWarps][C::kWarpRows];
  };
  __device__ void run_tiles(const WarpRows& r, SeenKeys any) {
    const float* k_factors = parts.k_parts.factors_of(head());
    const float* v_factors = parts.v_parts.factors_of(head());
    const int step = C::kGroups * C::kKeys;
    int key0 = any.begin / C::kKeys * C::kKeys + group * C::kKeys;
    if (key0 < any.end) copy_keys(key0, 0);
    commit_copies();
    for (int stage = 0; key0 < any.end; key0 += step, stage ^= 1) {
      // Behind this barrier a tile is there for all, and nobody reads the one before it.
      wait_for_copies<0>();
      group_barrier();
      if (key0 + step < any.end) copy_keys(key0 + step, stage ^ 1);
      commit_copies();
      if (key0 >= r.any.end || key0 + C::kKeys <= r.any.begin) continue;
      const uint32_t k = memory + stage * C::kStageBytes;
      multiply_keys(k, q_factor * k_factors[key0 / kPartsRows]);
      this->make_logits(r, key0);
      this->make_exponentials();
      multiply_values(k + C::kTileBytes, v_factors[key0 / kPartsRows]);
    }
  }
  __device__ void run(Shared& shared) {
    const int of_block = threadIdx.x / 32;
    const WarpRows r = this->warp_rows(shared.by_rows[of_block]);
    if (lane == 0) shared.by_warps[of_block] = r.any;
    __syncthreads();
    SeenKeys any = shared.by_warps[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w)
      any = {min(any.begin, shared.by_warps[w].begin), max(any.end, shared.by_warps[w].end)};
    if (any.begin >= any.end) any = {};
    const bool done_here = have_parts(any);
    if (threadIdx.x == 0)
      parts.left[int64_t{head()} * parts.tiles + row0 / C::kRows] = done_here ? 0 : 1;
    if (!done_here) return;
    run_tiles(r, any);
    if constexpr (C::kGroups == 2) {
      if (group == 1) hand_over();
      __syncthreads();
      if (group == 1) return;
      take_over();
    }
    this->finish();
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksAtOnce)
    attention_parts_kernel(const __grid_constant__ PartsJob job) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ typename Kernel<C>::Shared shared;
  Kernel<C>(job, warp::shared_place(memory)).run(shared);
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::attention_parts
