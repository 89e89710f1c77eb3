// Gradients of attention of bf16, f16 and f32 by mma.sync and cp.async, for every GPU from sm_80 on.
//
// Map      A block of 4 warps holds 64 outer rows, keys for d_k and d_v or queries for d_q, and goes
//          over tiles of 64 (32 where heads are wider than 128 columns, or f32) inner rows, of all
//          heads that share the keys, in a fixed order. A warp has 16 outer rows: logits and their
//          gradients are sums of one product in registers and the operand of the next, so warps
//          exchange nothing. Inner tiles come by cp.async into two stages (one where wider than
//          128, or 64 of f32). Beyond 128 columns d_k and d_v have a kernel each: sums fill the registers.
// Numerics f32 sums; exponentials and gradients of logits are rounded to q's dtype before they are
//          multiplied. Of f16, exponentials are taken 2^4 times, gradients by a power of two that
//          a warp chooses by the largest. f32: products of tf32 parts as in attention_tiles.cuh, all
//          sums of a tile begun anew; weights by powers of two as of f16 and what they meet 2^40 times,
//          so that no part is subnormal. precision=tf32: products of high parts alone.
// Numbers  0 times an infinity or NaN is NaN in a tensor core, and f16 overflows: a tile whose sums
//          are not finite is left, with a word that says so, to the slow kernel.
#pragma once

#include <cuda_bf16.h>

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "ops/attention/attention_backward/attention_backward_job.cuh"

namespace pestle::ops::attention_backward {

using cuda::warp::Kind;

constexpr int kFastThreads = 128;

// Which gradients a kernel makes.
enum class Gives { kKeys, kOnlyK, kOnlyV, kQueries };

// kColumns: of q, k, v at most; kGeneral: there is a mask or a soft cap; kSplit: of f32, with the
// products of low parts.
template <Kind kKindOf, int kColumnsOf, Gives kGivesOf, bool kGeneralOf, bool kSplitOf>
struct Config {
  static constexpr Kind kKind = kKindOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr Gives kGives = kGivesOf;
  static constexpr bool kGeneral = kGeneralOf;
  static constexpr bool kSplit = kSplitOf;
  static constexpr bool kF32 = kKind == Kind::kTf32;
  static constexpr int kBytes = kF32 ? 4 : 2;   // of an element
  static constexpr int kOfChunk = 16 / kBytes;  // elements
  static constexpr bool kKeysAreOuter = kGives != Gives::kQueries;
  static constexpr bool kWeights = kGives == Gives::kKeys || kGives == Gives::kOnlyV;  // d_v
  static constexpr bool kLogits = kGives != Gives::kOnlyV;                             // d_k, d_q
  static constexpr int kRowBytes = kColumns * kBytes;
  static constexpr int kInner = kRowBytes > 256 || kF32 ? 32 : 64;
  static constexpr int kStages = kRowBytes > 256 ? 1 : 2;
  static constexpr int kOuterBytes = kTile * kRowBytes;
  static constexpr int kInnerBytes = kInner * kRowBytes;
  static constexpr int kStageBytes = 2 * kInnerBytes;
  static constexpr int kGroups = 1;  // of 4 warps
  static constexpr int kSharedBytes = 2 * kOuterBytes + kStages * kStageBytes;
};

#ifdef __CUDACC__

// The first `bytes` of 8 aligned ones (0 or 8), and zeros.
__device__ inline void copy_facts(uint32_t to, const RowFacts* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

template <Kind kKind>
__device__ inline uint32_t pack(float low, float high) {
  if constexpr (kKind == Kind::kBf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// Behind a barrier of a group of 4 warps: is it so for all of its threads?
template <int kGroups>
__device__ inline bool group_and(int group, bool v) {
  if (kGroups == 1) return __syncthreads_and(v) != 0;
  int all;
  asm volatile(
      "{.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbar.red.and.pred q, %2, 128, p;\n"
      "selp.s32 %0, 1, 0, q;}"
      : "=r"(all)
      : "r"(static_cast<int>(v)), "r"(1 + group)
      : "memory");
  return all != 0;
}

// Beside the tiles.
template <class C>
struct FastShared {
  RowFacts facts[C::kStages][C::kInner];  // of inner rows that are queries
  short2 seen[C::kStages][C::kInner];     // the outer keys that they see, from the tile's first
  SeenKeys any[4], all[4];                // of outer queries: by each warp
};

template <class C>
struct Fast {
  static constexpr int kEights = C::kInner / 8;
  static constexpr int kOutEights = C::kColumns / 8;
  static constexpr bool kF16 = C::kKind == Kind::kF16;
  static constexpr bool kScaled = kF16 || C::kF32;  // gradients of logits, by choose_scale
  static constexpr float kWeightScale = kF16 ? 16 : C::kF32 ? 0x1p24f : 1;
  static constexpr float kOfValues = C::kF32 ? 0x1p40f : 1;  // of what weights are multiplied by
  static constexpr int kNoExponent = INT_MIN;

  const BackwardJob& job;
  const AttentionCall& c;
  FastShared<C>& shared;
  uint32_t memory;
  int lane, warp;
  int b, head, key_head;
  int outer0;
  int exponent = kNoExponent;  // of f16: d_first is 2^exponent times too large
  float d_first[C::kLogits ? kOutEights : 1][4];
  float d_second[C::kWeights ? kOutEights : 1][4];
  // Outer queries of a lane.
  RowFacts own_facts[2];
  SeenKeys own_seen[2];
  SeenKeys any, all;  // of all outer queries: keys that one sees, that each sees

  __device__ Fast(const BackwardJob& j, FastShared<C>& s, uint32_t place)
      : job(j),
        c(j.call),
        shared(s),
        memory(place),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32) {
#pragma unroll
    for (auto& eight : d_first)
#pragma unroll
      for (float& v : eight) v = 0;
#pragma unroll
    for (auto& eight : d_second)
#pragma unroll
      for (float& v : eight) v = 0;
  }
  // ---- copies ----

  static constexpr int kChunks = C::kRowBytes / 16;
  static constexpr int kLines = kFastThreads / kChunks;  // that the block copies at once

  // 16 bytes of a row lie where 8 rows of one column meet in no bank.
  __device__ static uint32_t place_of(int row, int chunk) {
    return static_cast<uint32_t>(row * C::kRowBytes + ((chunk ^ (row % 8)) * 16));
  }
  // Rows [first, first + kRows) of a head; zeros outside [begin, end) and behind the last column, up
  // to a multiple of 16.
  template <int kRows>
  __device__ void copy_rows(uint32_t to, const AttentionRows& t, int h, int first, SeenKeys within,
                            int columns) const {
    const int chunk = threadIdx.x % kChunks, line = threadIdx.x / kChunks;
    if (chunk * C::kOfChunk >= (columns + 15) / 16 * 16) return;
    const int bytes = chunk * C::kOfChunk < columns ? 16 : 0;
    const char* from = t.at(b, h, first + line) + chunk * 16;
    const int64_t step = kLines * t.row;
#pragma unroll
    for (int i = 0; i < kRows / kLines; ++i) {
      const int row = line + i * kLines;
      const bool inside = first + row >= within.begin && first + row < within.end;
      cuda::copy_async(to + place_of(row, chunk), inside ? from : t.data, inside ? bytes : 0);
      from += step;
    }
  }
  __device__ uint32_t stage_at(int stage) const {
    return memory + 2 * C::kOuterBytes + stage * C::kStageBytes;
  }
  __device__ void copy_outer() const {
    if constexpr (C::kKeysAreOuter) {
      copy_rows<kTile>(memory, c.k, key_head, outer0, {0, c.keys}, c.depth);
      if constexpr (C::kLogits)
        copy_rows<kTile>(memory + C::kOuterBytes, c.v, key_head, outer0, {0, c.keys},
                         c.value_depth);
    } else {
      copy_rows<kTile>(memory, c.q, head, outer0, {0, c.queries}, c.depth);
      copy_rows<kTile>(memory + C::kOuterBytes, job.d_out, head, outer0, {0, c.queries},
                       c.value_depth);
    }
  }
  // An inner tile of head h. True where this thread knows of nothing that is hidden in it.
  __device__ bool copy_inner(int stage, int h, int inner0) const {
    const uint32_t to = stage_at(stage);
    if constexpr (!C::kKeysAreOuter) {
      copy_rows<C::kInner>(to, c.k, key_head, inner0, any, c.depth);
      copy_rows<C::kInner>(to + C::kInnerBytes, c.v, key_head, inner0, any, c.value_depth);
      return all.begin <= inner0 && all.end >= inner0 + C::kInner;
    } else {
      copy_rows<C::kInner>(to, c.q, h, inner0, {0, c.queries}, c.depth);
      copy_rows<C::kInner>(to + C::kInnerBytes, job.d_out, h, inner0, {0, c.queries},
                           c.value_depth);
      return note_queries(stage, h, inner0, threadIdx.x);
    }
  }
  // What is to know of inner query i. True unless something of it is hidden.
  __device__ bool note_queries(int stage, int h, int inner0, int i) const {
    if (i >= C::kInner) return true;
    const int query = inner0 + i;
    const bool inside = query < c.queries;
    copy_facts(cuda::warp::shared_place(&shared.facts[stage][i]),
               inside ? job.facts_of(b, h) + query : job.facts, inside ? 8 : 0);
    SeenKeys seen;
    if (inside) seen = c.key_range(b, query);
    const int begin = min(max(seen.begin - outer0, 0), kTile);
    const int end = min(max(seen.end - outer0, 0), kTile);
    shared.seen[stage][i] = make_short2(static_cast<short>(begin), static_cast<short>(end));
    return begin == 0 && end == kTile;
  }

  // ---- products ----

  struct Parts {
    uint32_t high[4], low[4];
    __device__ explicit Parts(const uint32_t (&words)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const cuda::warp::Tf32Parts p = cuda::warp::tf32_parts(words[e]);
        high[e] = p.high;
        low[e] = p.low;
      }
    }
  };
  __device__ static void multiply_f32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1) {
    cuda::warp::multiply<Kind::kTf32>(d, a[0], a[1], a[2], a[3], b0, b1);
  }
  // d += a.b without the product of low parts; those of one low part go to `small`.
  __device__ static void multiply_parts(float (&d)[4], float (&small)[4], const Parts& a,
                                        cuda::warp::Tf32Parts b0, cuda::warp::Tf32Parts b1) {
    if constexpr (C::kSplit) {
      multiply_f32(small, a.low, b0.high, b1.high);
      multiply_f32(small, a.high, b0.low, b1.low);
    }
    multiply_f32(d, a.high, b0.high, b1.high);
  }
  // sums[16 outer rows of the warp, inner rows] += outer . inner over `columns`. What is small has sums
  // of its own: tensor cores cut off what lies below a sum's last bit.
  __device__ void multiply_rows(uint32_t outer, uint32_t inner, int columns,
                                float (&sums)[kEights][4]) const {
    if constexpr (C::kF32) {
      float small[kEights][4] = {}, large[kEights][4] = {};
      multiply_words(outer, inner, columns, [&](int n, const auto& a, const auto& b) {
        const Parts in_a(a), in_b(b);
#pragma unroll
        for (int j = 0; j < 2; ++j)
          multiply_parts(large[2 * n + j], small[2 * n + j], in_a,
                         {in_b.high[2 * j], in_b.low[2 * j]},
                         {in_b.high[2 * j + 1], in_b.low[2 * j + 1]});
      });
#pragma unroll
      for (int n = 0; n < kEights; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[n][e] += large[n][e] + small[n][e];
    } else {
      multiply_words(outer, inner, columns, [&](int n, const auto& a, const auto& b) {
        cuda::warp::multiply<C::kKind>(sums[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
        cuda::warp::multiply<C::kKind>(sums[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      });
    }
  }
  // f(pair of eights of inner rows, fragments of the outer rows, of both eights) for each 32 bytes of
  // the rows.
  template <class F>
  __device__ void multiply_words(uint32_t outer, uint32_t inner, int columns, F f) const {
    const uint32_t from_a = outer + (warp * 16 + lane % 16) * C::kRowBytes;
    const uint32_t from_b = inner + (lane % 8 + lane / 16 * 8) * C::kRowBytes;
    const uint32_t flip_a = ((lane / 16) ^ (lane % 8)) * 16;
    const uint32_t flip_b = ((lane / 8 % 2) ^ (lane % 8)) * 16;
    const int units = (columns * C::kBytes + 31) / 32;
#pragma unroll 2
    for (int unit = 0; unit < units; ++unit) {
      uint32_t a[4];
      cuda::warp::load_fragments<false>(from_a + ((unit * 32) ^ flip_a), a[0], a[1], a[2], a[3]);
      const uint32_t at = from_b + ((unit * 32) ^ flip_b);
#pragma unroll
      for (int j = 0; j < kEights / 2; ++j) {
        uint32_t b[4];
        cuda::warp::load_fragments<false>(at + j * 16 * C::kRowBytes, b[0], b[1], b[2], b[3]);
        f(j, a, b);
      }
    }
  }
  // Of f32. An instruction takes first the even ones of eight inner rows, then the odd ones, as the
  // weights lie in registers.
  template <int kOut>
  __device__ void add_rows(const float (&weights)[kEights][4], uint32_t inner, int columns,
                           float (&out)[kOut][4]) const {
    const uint32_t in_chunk = inner + lane / 4 % 4 * 4;
    const int even = lane % 4 * 2, chunk = lane / 16;
    const uint32_t at[2] = {in_chunk + place_of(even, chunk), in_chunk + place_of(even + 1, chunk)};
#pragma unroll
    for (int n = 0; n < kOut; ++n) {
      if (n * 8 >= columns) break;
      float added[4] = {};
#pragma unroll
      for (int unit = 0; unit < kEights; ++unit) {
        cuda::warp::Tf32Parts b[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t word = cuda::warp::load_word((at[j] ^ (n * 32)) + unit * 8 * C::kRowBytes);
          b[j] = cuda::warp::tf32_parts(__float_as_uint(kOfValues * __uint_as_float(word)));
        }
        const auto& w = weights[unit];
        const uint32_t words[4] = {__float_as_uint(w[0]), __float_as_uint(w[2]),
                                   __float_as_uint(w[1]), __float_as_uint(w[3])};
        multiply_parts(added, added, Parts(words), b[0], b[1]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] += added[e];
    }
  }
  // out[16 outer rows, columns] += weights[outer, inner] * inner rows.
  template <int kOut>
  __device__ void add_rows(const uint32_t (&weights)[kEights][2], uint32_t inner, int columns,
                           float (&out)[kOut][4]) const {
    const uint32_t from = inner + lane % 16 * C::kRowBytes;
    const uint32_t flip = ((lane / 16) ^ (lane % 8)) * 16;
#pragma unroll
    for (int unit = 0; unit < kEights / 2; ++unit) {
      const auto& low_w = weights[2 * unit];
      const auto& high_w = weights[2 * unit + 1];
#pragma unroll
      for (int n = 0; n < kOut / 2; ++n) {
        if (n * 16 >= columns) break;
        uint32_t low[2], high[2];
        cuda::warp::load_fragments<true>(from + unit * 16 * C::kRowBytes + ((n * 32) ^ flip),
                                         low[0], low[1], high[0], high[1]);
        cuda::warp::multiply<C::kKind>(out[2 * n], low_w[0], low_w[1], high_w[0], high_w[1], low[0],
                                       low[1]);
        cuda::warp::multiply<C::kKind>(out[2 * n + 1], low_w[0], low_w[1], high_w[0], high_w[1],
                                       high[0], high[1]);
      }
    }
  }

  // ---- weights ----

  // As the operand of the next product: pairs of 16 bits, or f32.
  using Weights = std::conditional_t<C::kF32, float[kEights][4], uint32_t[kEights][2]>;
  template <class W>
  __device__ static void set_weights(W& weights, int n, const float (&p)[4], float by) {
    if constexpr (C::kF32) {
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[n][e] = p[e] * by;
    } else {
      weights[n][0] = pack<C::kKind>(p[0] * by, p[1] * by);
      weights[n][1] = pack<C::kKind>(p[2] * by, p[3] * by);
    }
  }

  // Of element e of a lane's four of eight inner rows: the outer row (of the warp's lane: 0 or 1),
  // the inner row.
  __device__ int outer_of(int e) const { return warp * 16 + lane / 4 + e / 2 * 8; }
  __device__ int inner_of(int eight, int e) const { return eight * 8 + lane % 4 * 2 + e % 2; }

  __device__ bool is_seen(int stage, int inner0, int eight, int e) const {
    if constexpr (C::kKeysAreOuter) {
      const short2 seen = shared.seen[stage][inner_of(eight, e)];
      const int key = outer_of(e);
      return key >= seen.x && key < seen.y;
    } else {
      const int key = inner0 + inner_of(eight, e);
      return key >= own_seen[e / 2].begin && key < own_seen[e / 2].end;
    }
  }
  __device__ RowFacts facts_of(int stage, int eight, int e) const {
    if constexpr (C::kKeysAreOuter)
      return shared.facts[stage][inner_of(eight, e)];
    else
      return own_facts[e / 2];
  }
  __device__ const char* mask_at(int h, int inner0, int eight, int e) const {
    const int outer = outer0 + outer_of(e), inner = inner0 + inner_of(eight, e);
    const int query = C::kKeysAreOuter ? inner : outer, key = C::kKeysAreOuter ? outer : inner;
    return c.mask.at(b, h, query) + key * c.mask.column;
  }

  // From products to exponentials, packed, and to those times the soft cap's slope.
  template <bool kHidden>
  __device__ void make_weights(int stage, int h, int inner0, float (&s)[kEights][4],
                               Weights& weights) const {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      float p[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float lse = facts_of(stage, n, e).lse;
        float slope = 1;
        // The mask is read only where there is a key and a query.
        const bool seen = !kHidden || is_seen(stage, inner0, n, e);
        if constexpr (C::kGeneral) {
          p[e] = 0;
          if (seen) {
            const Logit logit = logit_of(job, s[n][e], mask_at(h, inner0, n, e));
            p[e] = weight_of(logit.t, lse);
            slope = logit.slope;
          }
        } else {
          const float y = bounded_exp2(__fmaf_rn(s[n][e], job.factor, -lse));
          p[e] = seen ? y : 0;
        }
        s[n][e] = C::kGeneral ? p[e] * slope : p[e];
      }
      if constexpr (C::kWeights) set_weights(weights, n, p, kWeightScale);
    }
  }

  // Of f16 and f32: a power of two that takes the gradients into the middle of its range. It follows the
  // largest; sums so far are those of the last one.
  __device__ float choose_scale(const float (&s)[kEights][4]) {
    unsigned largest = 0;
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) largest = max(largest, __float_as_uint(s[n][e]) & 0x7FFFFFFFu);
    const int most =
        static_cast<int>(__reduce_max_sync(~0u, largest) >> 23);  // 0: zeros, 255: not finite
    const bool fits = exponent != kNoExponent && most + exponent <= 127 + 14;
    if (most != 0 && most != 255 && !fits) {
      const int next = min(max(127 + 8 - most, -100), 100);
      const float by = exponent == kNoExponent ? 1 : exp2f(static_cast<float>(next - exponent));
      exponent = next;
#pragma unroll
      for (auto& eight : d_first)
#pragma unroll
        for (float& v : eight) v *= by;
    }
    return power();
  }
  __device__ float power() const {
    return exponent == kNoExponent ? 1 : exp2f(static_cast<float>(exponent));
  }

  template <bool kHidden>
  __device__ void do_tile(int stage, int h, int inner0) {
    const uint32_t first = stage_at(stage), second = first + C::kInnerBytes;
    float s[kEights][4] = {};
    Weights weights;
    multiply_rows(memory, first, c.depth, s);
    make_weights<kHidden>(stage, h, inner0, s, weights);
    if constexpr (C::kWeights) add_rows(weights, second, c.value_depth, d_second);
    if constexpr (C::kLogits) {
      float d[kEights][4];
#pragma unroll
      for (int n = 0; n < kEights; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) d[n][e] = -facts_of(stage, n, e).delta;
      multiply_rows(memory + C::kOuterBytes, second, c.value_depth, d);
      // Where a key does not count, its v may be anything.
#pragma unroll
      for (int n = 0; n < kEights; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[n][e] = (kHidden || C::kGeneral) && s[n][e] == 0 ? 0 : s[n][e] * d[n][e];
      const float by = kScaled ? choose_scale(s) : 1;
#pragma unroll
      for (int n = 0; n < kEights; ++n) set_weights(weights, n, s[n], by);
      add_rows(weights, first, c.depth, d_first);
    }
  }

  // ---- results ----

  template <int kOut>
  __device__ static bool is_finite(const float (&sums)[kOut][4]) {
    float zero = 0;
#pragma unroll
    for (int n = 0; n < kOut; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) zero = __fmaf_rn(sums[n][e], 0.0f, zero);
    return zero == 0;
  }
  // Of eight columns a lane's two.
  __device__ void store_two(uint32_t room, int row, int eight, float a, float b) const {
    if constexpr (C::kF32)
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                       room + place_of(row, 2 * eight + lane % 4 / 2) + lane % 2 * 8),
                   "f"(a), "f"(b)
                   : "memory");
    else
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(room + place_of(row, eight) + lane % 4 * 4),
                   "r"(pack<C::kKind>(a, b))
                   : "memory");
  }
  // Is it so for one thread of those who store? With two groups of warps the first one does.
  __device__ static bool is_of_some(bool v) {
    if constexpr (C::kGroups == 1)
      return __syncthreads_or(v) != 0;
    else
      return !group_and<C::kGroups>(0, !v);
  }
  // A warp's 16 rows through the shared memory of its outer rows, so that they are stored in lines.
  // All who store take part.
  template <int kOut>
  __device__ void store(const float (&sums)[kOut][4], uint32_t room, const AttentionRows& to, int h,
                        int rows, int columns, float by, int* redo) const {
    const bool wrong = is_of_some(!is_finite(sums));
    if (threadIdx.x == 0) redo[blockIdx.x] = wrong;
    if (wrong) return;
#pragma unroll
    for (int n = 0; n < kOut; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_two(room, outer_of(2 * half), n, sums[n][2 * half] * by, sums[n][2 * half + 1] * by);
    __syncwarp();
    const int chunk = lane % (kChunks < 32 ? kChunks : 32);
    constexpr int kRowsAtOnce = 32 / kChunks;
#pragma unroll 4
    for (int i = 0; i < 16; i += kRowsAtOnce) {
      const int r = warp * 16 + i + lane / kChunks;
      if (outer0 + r >= rows || chunk * C::kOfChunk >= columns) continue;
      uint4 v;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "r"(room + place_of(r, chunk))
                   : "memory");
      *reinterpret_cast<uint4*>(to.at(b, h, outer0 + r) + chunk * 16) = v;
    }
  }

  // ----

  __device__ void find_outer_queries() {
    SeenKeys mine_any{INT_MAX, 0}, mine_all{0, INT_MAX};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = outer0 + outer_of(2 * i);
      own_facts[i] = {kInfinity, 0};
      own_seen[i] = {};
      if (query >= c.queries) {
        if (C::kGeneral) mine_all = {};  // there is no mask to read
        continue;
      }
      own_facts[i] = job.facts_of(b, head)[query];
      own_seen[i] = c.key_range(b, query);
      mine_all = {max(mine_all.begin, own_seen[i].begin), min(mine_all.end, own_seen[i].end)};
      if (own_seen[i].begin >= own_seen[i].end) continue;
      mine_any = {min(mine_any.begin, own_seen[i].begin), max(mine_any.end, own_seen[i].end)};
    }
    mine_any = {__reduce_min_sync(~0u, mine_any.begin), __reduce_max_sync(~0u, mine_any.end)};
    mine_all = {__reduce_max_sync(~0u, mine_all.begin), __reduce_min_sync(~0u, mine_all.end)};
    if (lane == 0) {
      shared.any[warp] = mine_any;
      shared.all[warp] = mine_all;
    }
    __syncthreads();
    any = shared.any[0];
    all = shared.all[0];
#pragma unroll
    for (int w = 1; w < 4; ++w) {
      any = {min(any.begin, shared.any[w].begin), max(any.end, shared.any[w].end)};
      all = {max(all.begin, shared.all[w].begin), min(all.end, shared.all[w].end)};
    }
  }

  __device__ void run_tiles(int first_head, int heads, SeenKeys run) {
    const int begin = run.begin / C::kInner * C::kInner;
    const int tiles = run.begin < run.end ? (run.end - begin + C::kInner - 1) / C::kInner : 0;
    const int count = tiles * heads;
    if (count == 0) return;
    copy_outer();
    bool open = copy_inner(0, first_head, begin);
    cuda::commit_copies();
    int h = first_head, tile = 0;
    for (int n = 0; n < count; ++n) {
      const int stage = n % C::kStages, inner0 = begin + tile * C::kInner, of_head = h;
      if (++tile == tiles) {
        tile = 0;
        ++h;
      }
      // Behind this barrier a tile is there for all, and nobody reads the one before it.
      cuda::wait_for_copies<0>();
      const bool is_open = __syncthreads_and(open) != 0;
      if constexpr (C::kStages == 2) {
        if (n + 1 < count) open = copy_inner(stage ^ 1, h, begin + tile * C::kInner);
        cuda::commit_copies();
      }
      if (is_open)
        do_tile<false>(stage, of_head, inner0);
      else
        do_tile<true>(stage, of_head, inner0);
      if constexpr (C::kStages == 1) {
        __syncthreads();
        if (n + 1 < count) open = copy_inner(0, h, begin + tile * C::kInner);
        cuda::commit_copies();
      }
    }
  }

  __device__ void run() {
    const int block = static_cast<int>(blockIdx.x);
    if constexpr (C::kSplit)
      if (job.only_left && (C::kKeysAreOuter ? job.redo_k : job.redo_q)[block] != kLeft) return;
    const int rows = C::kKeysAreOuter ? c.keys : c.queries;
    const int tiles = (rows + kTile - 1) / kTile;
    outer0 = block % tiles * kTile;
    const int own_head = block / tiles;
    if constexpr (C::kKeysAreOuter) {
      b = own_head / c.key_heads;
      key_head = own_head % c.key_heads;
      run_tiles(key_head * c.group, c.group, c.query_range(b, outer0, min(c.keys, outer0 + kTile)));
    } else {
      b = own_head / c.heads;
      head = own_head % c.heads;
      key_head = head / c.group;
      find_outer_queries();
      run_tiles(head, 1, any);
    }
    const float of_first = C::kLogits ? c.scale / power() / kOfValues : 1;
    if constexpr (C::kGives == Gives::kQueries) {
      store(d_first, memory, job.d_q, head, c.queries, c.depth, of_first, job.redo_q);
      return;
    }
    if constexpr (C::kKeysAreOuter && C::kLogits)
      store(d_first, memory, job.d_k, key_head, c.keys, c.depth, of_first, job.redo_k);
    if constexpr (C::kWeights)
      store(d_second, memory + C::kOuterBytes, job.d_v, key_head, c.keys, c.value_depth,
            1 / kWeightScale / kOfValues, job.redo_v);
  }
};

template <class C>
__global__ void __launch_bounds__(kFastThreads, 2)
    backward_tiles_kernel(const __grid_constant__ BackwardJob job) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ FastShared<C> shared;
  Fast<C>(job, shared, cuda::warp::shared_place(memory)).run();
}

#endif  // __CUDACC__

}  // namespace pestle::ops::attention_backward
