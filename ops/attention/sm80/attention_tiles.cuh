// Attention of bf16, f16 and f32 by mma.sync and cp.async, for every GPU from sm_80 on.
//
// Map      A row is a query and one of the heads that share a head of k: row r of such a group is
//          query r / group, so that few queries of many heads fill a tile too. A block of 4 warps
//          takes 128 rows (64 where heads are wider than 128 columns), a warp 32 (16) in
//          registers, and goes over the keys that one of its rows sees in tiles of 64 (or 32): k and
//          v by cp.async into two stages of swizzled shared memory, the next while one is used. The
//          exponentials stay in registers: the sums of one product are the operand of the other.
//          Warps leave out tiles that none of their rows sees, and range checks where all see all.
// Order    Blocks whose rows see most come first where there is causality, for as many heads at once
//          as the L2 holds k and v of. Keys in ascending order, so two runs give the same bits.
// Numerics Products of 16-bit elements summed in f32; exponentials by 2^x with the scale folded in,
//          rounded to q's dtype for the second product (of f16 2^15 times as large, since f16 ends
//          at 2^-24), their sum in f32 unrounded.
//          f32: products of tf32 parts, high x high + high x low + low x high, an error of 2^-21 at
//          most; sums of a tile begun anew and added in f32. precision=tf32: high x high alone.
// Numbers  Keys that a row does not see have an exponential of 0, which an infinity or NaN of v turns
//          into NaN. So a row whose sums are not finite though that of its exponentials is, is made
//          again by attention_row; so is one whose logits are so large (2^22) that folding the scale
//          in loses what it should keep. Parts of an f32 infinity are NaN, so there a NaN is made again
//          always.
#pragma once

#include <cuda_bf16.h>

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "ops/attention/sm80/attention_row.cuh"

namespace pestle::cuda::attention_tiles {

using warp::Kind;

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kLeftRows = 64;  // of a word of AttentionJob::left

// kGeneral: logits are made by scale, softcap and mask before anything looks at them; else they are
// products with a positive scale. kSplit: of f32, with the products of low parts.
template <Kind kKindOf, int kColumnsOf, bool kGeneralOf, bool kSplitOf>
struct Config {
  static constexpr Kind kKind = kKindOf;
  static constexpr int kColumns = kColumnsOf;  // of q, k, v at most, in steps of 16
  static constexpr bool kGeneral = kGeneralOf;
  static constexpr bool kSplit = kSplitOf;
  static constexpr bool kF32 = kKind == Kind::kTf32;
  // Makes the parts of subnormal values normal; what then is infinite is made again.
  static constexpr float kOfValues = kF32 ? 0x1p40f : 1;
  static constexpr int kBytes = kF32 ? 4 : 2;  // of an element
  static constexpr int kRowBytes = (kColumns <= 64 ? 64 : kColumns <= 128 ? 128 : 256) * kBytes;
  static constexpr int kOfChunk = 16 / kBytes;              // elements
  static constexpr int kUnits = kColumns * kBytes / 32;     // of one instruction
  static constexpr int kBlocks = kRowBytes <= 256 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kWarpRows = 16 * kBlocks;
  static constexpr int kRows = kWarpRows * kWarps;
  static constexpr int kKeys = kF32                                ? (kColumns <= 128 ? 32 : 16)
                               : kColumns <= (kGeneral ? 64 : 128) ? 64
                                                                   : 32;
  static constexpr int kQBytes = kRows * kRowBytes;
  static constexpr int kTileBytes = kKeys * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;  // k, then v
  static constexpr int kSharedBytes = kQBytes + 2 * kStageBytes;
};

#ifdef __CUDACC__

// What the rows of a warp see.
struct WarpRows {
  SeenKeys any, all;     // keys that one row sees, that all see
  const SeenKeys* seen;  // by each row, in shared memory
};

template <class C>
struct Kernel {
  static constexpr int kEights = C::kKeys / 8;  // of keys
  static constexpr int kOutEights = C::kColumns / 8;
  static constexpr float kShift = C::kKind == Kind::kF16 ? 15 : 0;
  static constexpr float kSafe = 0x1p22f;

  const AttentionJob& job;
  const AttentionCall& c;
  int batch, key_head, row0;  // row0: of the block
  int rows, lane, warp;
  uint32_t memory;
  float scale;  // of the logits to those of 2^x
  float logits[C::kBlocks][kEights][4];
  float out[C::kBlocks][kOutEights][4];
  float largest[C::kBlocks][2], sum[C::kBlocks][2];
  float kept[C::kBlocks][2];  // of what was summed up before the tile
  unsigned unsafe = 0;        // bit 2 * block + half

  __device__ Kernel(const AttentionJob& j, uint32_t shared)
      : job(j),
        c(j.call),
        rows(j.call.group * j.call.queries),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        memory(shared),
        scale(C::kGeneral ? kLog2E : j.call.scale * kLog2E) {
    // Sections of heads, in each all heads' tiles in turns.
    const int heads = c.batches * c.key_heads, a_section = job.section * job.tiles;
    const int first = static_cast<int>(blockIdx.x) / a_section * job.section;
    const int rest = static_cast<int>(blockIdx.x) % a_section;
    const int here = min(job.section, heads - first);
    const int head = first + rest % here, tile = rest / here;
    batch = head / c.key_heads;
    key_head = head % c.key_heads;
    row0 = (job.last_first ? job.tiles - 1 - tile : tile) * C::kRows;
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) largest[i][h] = -INFINITY, sum[i][h] = 0;
    clear(out);
  }

  __device__ int query_of(int row) const { return row / c.group; }
  __device__ int head_of(int row) const { return key_head * c.group + row % c.group; }
  __device__ int warp_row() const { return row0 + warp * C::kWarpRows; }

  __device__ WarpRows warp_rows(SeenKeys* seen) const {
    const int row = warp_row() + lane;
    const bool valid = lane < C::kWarpRows && row < rows;
    SeenKeys mine;
    if (valid) mine = c.key_range(batch, query_of(row));
    if (lane < C::kWarpRows) seen[lane] = mine;
    __syncwarp();
    const bool some = mine.begin < mine.end;
    WarpRows r{.seen = seen};
    r.any = {__reduce_min_sync(kAllLanes, some ? mine.begin : INT_MAX),
             __reduce_max_sync(kAllLanes, some ? mine.end : 0)};
    r.all = {__reduce_max_sync(kAllLanes, valid ? mine.begin : 0),
             __reduce_min_sync(kAllLanes, valid ? mine.end : INT_MAX)};
    return r;
  }

  // ---- copies ----

  // 16 bytes of a row in shared memory lie where 8 rows of one column meet in no bank.
  static constexpr int kChunks = C::kRowBytes / 16;
  static constexpr int kLines = kThreads / kChunks;  // that the block copies at once
  __device__ static int place(int row, int chunk) {
    return row * C::kRowBytes + (chunk ^ row % 8) * 16;
  }
  __device__ void copy_queries() const {
    const int chunk = threadIdx.x % kChunks, line = threadIdx.x / kChunks;
    if (chunk >= C::kColumns / C::kOfChunk) return;
#pragma unroll 1
    for (int r = line; r < C::kRows; r += kLines) {
      const bool inside = row0 + r < rows && chunk * C::kOfChunk < c.depth;
      const int row = inside ? row0 + r : 0;
      copy_async(memory + place(r, chunk),
                 c.q.at(batch, head_of(row), query_of(row)) + (inside ? chunk * 16 : 0),
                 inside ? 16 : 0);
    }
  }
  // Rows from `first` on; those from `end` on, and columns behind the last, become zeros.
  __device__ void copy_tile(uint32_t to, const AttentionRows& t, int columns, int first,
                            int end) const {
    const int chunk = threadIdx.x % kChunks, line = threadIdx.x / kChunks;
    if (chunk >= C::kColumns / C::kOfChunk) return;
    const char* from = t.at(batch, key_head, first + line) + chunk * 16;
    const int left = chunk * C::kOfChunk < columns ? end - first - line : 0;
#pragma unroll
    for (int i = 0; i < C::kKeys / kLines; ++i) {
      copy_async(to + place(line + i * kLines, chunk), from, i * kLines < left ? 16 : 0);
      from += kLines * t.row;
    }
  }
  __device__ void copy_keys(int first, int end, int stage) const {
    const uint32_t to = memory + C::kQBytes + stage * C::kStageBytes;
    copy_tile(to, c.k, c.depth, first, end);
    copy_tile(to + C::kTileBytes, c.v, c.value_depth, first, end);
  }

  // ---- products ----

  template <int kCount>
  __device__ static void clear(float (&t)[C::kBlocks][kCount][4]) {
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
      for (int n = 0; n < kCount; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) t[i][n][e] = 0;
  }
  template <int kCount>
  __device__ static void add(const float (&from)[C::kBlocks][kCount][4],
                             float (&to)[C::kBlocks][kCount][4]) {
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
      for (int n = 0; n < kCount; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) to[i][n][e] += from[i][n][e];
  }
  // Calls f(unit, a of 16 rows each block, pair of eights of keys, b of both).
  template <class F>
  __device__ void for_keys(uint32_t k, F f) const {
    const uint32_t a_at = memory + place(warp * C::kWarpRows + lane % 16, lane / 16);
    const uint32_t b_at = k + place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int unit = 0; unit < C::kUnits; ++unit) {
      uint32_t a[C::kBlocks][4];
#pragma unroll
      for (int i = 0; i < C::kBlocks; ++i)
        warp::load_fragments<false>((a_at ^ (unit * 32)) + i * 16 * C::kRowBytes, a[i][0], a[i][1],
                                    a[i][2], a[i][3]);
#pragma unroll
      for (int n = 0; n < kEights / 2; ++n) {
        uint32_t b[4];
        warp::load_fragments<false>((b_at ^ (unit * 32)) + n * 16 * C::kRowBytes, b[0], b[1], b[2],
                                    b[3]);
#pragma unroll
        for (int i = 0; i < C::kBlocks; ++i) f(i, n, a[i], b);
      }
    }
  }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    warp::multiply<C::kKind>(d, a[0], a[1], a[2], a[3], b0, b1);
  }
  __device__ void multiply_keys(uint32_t k) {
    clear(logits);
    if constexpr (C::kF32) {
      multiply_f32_keys(k);
    } else {
      for_keys(k, [&](int i, int n, const uint32_t(&a)[4], const uint32_t(&b)[4]) {
        multiply(logits[i][2 * n], a, b[0], b[1]);
        multiply(logits[i][2 * n + 1], a, b[2], b[3]);
      });
    }
  }

  // ---- f32: products of high and low parts, without those of two low ones ----

  struct Parts {
    uint32_t high[4], low[4];
    __device__ explicit Parts(const uint32_t (&w)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const warp::Tf32Parts p = warp::tf32_parts(w[e]);
        high[e] = p.high;
        low[e] = p.low;
      }
    }
  };
  // d += a.b without the product of low parts; those of one low part go to `small`.
  __device__ static void multiply_parts(float (&d)[4], float (&small)[4], const Parts& a,
                                        warp::Tf32Parts b0, warp::Tf32Parts b1) {
    if constexpr (C::kSplit) {
      multiply(small, a.low, b0.high, b1.high);
      multiply(small, a.high, b0.low, b1.low);
    }
    multiply(d, a.high, b0.high, b1.high);
  }
  // What is small has sums of its own: tensor cores cut off what lies below a sum's last bit.
  __device__ void multiply_f32_keys(uint32_t k) {
    float small[C::kBlocks][kEights][4];
    clear(small);
    for_keys(k, [&](int i, int n, const uint32_t(&a_words)[4], const uint32_t(&b_words)[4]) {
      const Parts a(a_words), b(b_words);
#pragma unroll
      for (int j = 0; j < 2; ++j)
        multiply_parts(logits[i][2 * n + j], small[i][2 * n + j], a, {b.high[2 * j], b.low[2 * j]},
                       {b.high[2 * j + 1], b.low[2 * j + 1]});
    });
    if constexpr (C::kSplit) add(small, logits);
  }
  // Sums of a tile are begun anew. Of eight keys an instruction takes first the even ones, then the
  // odd ones, as the exponentials lie in registers.
  __device__ void multiply_f32_values(uint32_t v) {
    const int even = lane % 4 * 2, chunk = lane / 16;
    const uint32_t in_chunk = v + lane / 4 % 4 * 4;
    const uint32_t at[2] = {in_chunk + place(even, chunk), in_chunk + place(even + 1, chunk)};
#pragma unroll
    for (int n = 0; n < kOutEights; ++n) {
      float added[C::kBlocks][1][4];
      clear(added);
#pragma unroll
      for (int unit = 0; unit < kEights; ++unit) {
        warp::Tf32Parts b[2];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          b[j] = warp::tf32_parts(__float_as_uint(
              C::kOfValues *
              __uint_as_float(warp::load_word((at[j] ^ (n * 32)) + unit * 8 * C::kRowBytes))));
#pragma unroll
        for (int i = 0; i < C::kBlocks; ++i) {
          const float(&p)[4] = logits[i][unit];
          const uint32_t words[4] = {__float_as_uint(p[0]), __float_as_uint(p[2]),
                                     __float_as_uint(p[1]), __float_as_uint(p[3])};
          multiply_parts(added[i][0], added[i][0], Parts(words), b[0], b[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          out[i][n][e] = fmaf(out[i][n][e], kept[i][e / 2], added[i][0][e]);
    }
  }

  // ---- 16 bits ----

  __device__ static uint32_t pack(float low, float high) {
    using Pair = std::conditional_t<C::kKind == Kind::kBf16, __nv_bfloat162, __half2>;
    Pair pair;
    if constexpr (C::kKind == Kind::kBf16)
      pair = __floats2bfloat162_rn(low, high);
    else
      pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ void multiply_values(uint32_t v) {
    if constexpr (C::kF32)
      multiply_f32_values(v);
    else
      multiply_16_bit_values(v);
  }
  __device__ void multiply_16_bit_values(uint32_t v) {
    const uint32_t b_at = v + place(lane % 16, lane / 16);
#pragma unroll
    for (int unit = 0; unit < C::kKeys / 16; ++unit) {
      uint32_t a[C::kBlocks][4];
#pragma unroll
      for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float* from = logits[i][2 * unit + e / 2] + e % 2 * 2;
          a[i][e] = pack(from[0], from[1]);
        }
#pragma unroll
      for (int n = 0; n < kOutEights / 2; ++n) {
        uint32_t b[4];
        warp::load_fragments<true>((b_at ^ (n * 32)) + unit * 16 * C::kRowBytes, b[0], b[1], b[2],
                                   b[3]);
#pragma unroll
        for (int i = 0; i < C::kBlocks; ++i) {
          multiply(out[i][2 * n], a[i], b[0], b[1]);
          multiply(out[i][2 * n + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // ---- logits ----

  // Each logit becomes f(logit, the row's mask, key), or -infinity where the row does not see the key.
  template <class F>
  __device__ void for_logits(const WarpRows& w, int key0, F f) {
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = i * 16 + h * 8 + lane / 4, row = min(warp_row() + r, rows - 1);
        const int begin = w.seen[r].begin, count = max(0, w.seen[r].end - begin);
        const char* mask = nullptr;
        if constexpr (C::kGeneral) mask = c.mask_row(batch, head_of(row), query_of(row));
#pragma unroll
        for (int n = 0; n < kEights; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int key = key0 + n * 8 + lane % 4 * 2 + e;
            const bool sees = static_cast<unsigned>(key - begin) < static_cast<unsigned>(count);
            float& logit = logits[i][n][2 * h + e];
            logit = sees ? f(logit, mask, key) : -INFINITY;
          }
      }
  }
  template <class Added>
  __device__ void mask_logits(const WarpRows& r, int key0, Added added) {
    const bool bent = c.softcap != 0;
    const float inner = c.scale / c.softcap;
    for_logits(r, key0, [&](float product, const char* mask, int key) {
      const float t = bent ? c.softcap * tanhf(product * inner) : product * c.scale;
      return added(t, mask + key * c.mask.column);
    });
  }
  __device__ void make_logits(const WarpRows& r, int key0) {
    if constexpr (!C::kGeneral) {
      if (key0 < r.all.begin || key0 + C::kKeys > r.all.end)
        for_logits(r, key0, [](float t, const char*, int) { return t; });
      return;
    }
    switch (c.mask.dtype) {
      case DType::kNone: return mask_logits(r, key0, [](float t, const char*) { return t; });
      case DType::kBool:
        return mask_logits(r, key0, [](float t, const char* at) { return *at ? t : -INFINITY; });
      case DType::kF32:
        return mask_logits(r, key0, [](float t, const char* at) {
          return t + *reinterpret_cast<const float*>(at);
        });
      default: {
        const bool bf16 = c.mask.dtype == DType::kBF16;
        return mask_logits(r, key0, [bf16](float t, const char* at) {
          const auto bits = *reinterpret_cast<const unsigned short*>(at);
          return t + (bf16 ? __uint_as_float(uint32_t{bits} << 16)
                           : __half2float(__ushort_as_half(bits)));
        });
      }
    }
  }

  // ---- softmax ----

  // Under logits below -kSafe, which masks make, sums stay 0: a larger one may follow, and if none
  // does, the row is made again.
  __device__ float base_of(float most) const {
    const float base = fmaf(most, scale, -kShift);
    if constexpr (C::kGeneral) return base > -kSafe ? base : 0;
    return most == -INFINITY ? 0 : base;
  }
  // Logits to exponentials; what was summed up before goes by the new largest logit.
  __device__ void make_exponentials() {
    bool changed = false;
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = largest[i][h];
#pragma unroll
        for (int n = 0; n < kEights; ++n)
          most = fmaxf(most, fmaxf(logits[i][n][2 * h], logits[i][n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
        const float base = base_of(most);
        kept[i][h] = quick_exp2(fmaf(largest[i][h], scale, -kShift) - base);
        changed = changed || most != largest[i][h];
        if (!C::kGeneral && fabsf(base) >= kSafe) unsafe |= 1u << (2 * i + h);
        largest[i][h] = most;
        float added = 0;
#pragma unroll
        for (int n = 0; n < kEights; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& logit = logits[i][n][2 * h + e];
            logit = quick_exp2(fmaf(logit, scale, -base));
            added += logit;
          }
        sum[i][h] = fmaf(sum[i][h], kept[i][h], added);
      }
    if (!C::kF32 && __any_sync(kAllLanes, changed)) scale_out();
  }
  __device__ void scale_out() {
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
      for (int n = 0; n < kOutEights; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][n][e] *= kept[i][e / 2];
  }

  // ---- results ----

  __device__ float sink_of(int head) const {
    return load_float(c.sinks.data + head * c.sinks.stride, c.sinks.dtype) * kLog2E;
  }
  // What the row's sums are multiplied by; its log-sum-exp.
  __device__ float finish_row(float most, float total, int head, float* lse) const {
    float base = base_of(most), part = 1;
    if (c.sinks.present()) {
      const float own = most == -INFINITY ? most : base, sink = sink_of(head);
      const float larger = fmaxf(own, sink);
      base = larger == -INFINITY ? 0 : larger;
      part = quick_exp2(own - base);
      total = total * part + quick_exp2(sink - base);
    }
    *lse = total == 0 ? -INFINITY : (base + log2f(total)) * kLn2;
    return total == 0 ? 0 : part / total * (1 / C::kOfValues);
  }
  // Is the largest logit so large that folding the scale in lost what it should keep?
  __device__ bool is_unsafe(int i, int h) const {
    if constexpr (!C::kGeneral) return (unsafe >> (2 * i + h) & 1) != 0;
    const float base = fmaf(largest[i][h], scale, -kShift);
    return largest[i][h] != -INFINITY && !(fabsf(base) < kSafe - 1024);
  }
  __device__ bool is_finite(int i, int h) const {
    float zero = 0;
#pragma unroll
    for (int n = 0; n < kOutEights; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) zero = fmaf(out[i][n][2 * h + e], 0.0f, zero);
    return zero == 0;
  }
  __device__ void clear_row(int i, int h) {
#pragma unroll
    for (int n = 0; n < kOutEights; ++n) out[i][n][2 * h] = out[i][n][2 * h + 1] = 0;
  }
  template <class Store>
  __device__ void store_columns(int i, int h, float factor, Store store) const {
#pragma unroll
    for (int n = 0; n < kOutEights; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      if (column < c.value_depth)
        store(column, out[i][n][2 * h] * factor, out[i][n][2 * h + 1] * factor);
    }
  }
  __device__ void store_row(int i, int h, char* to, float factor) const {
    switch (job.out.dtype) {
      case DType::kF32:
        return store_columns(i, h, factor, [to](int column, float a, float b) {
          *reinterpret_cast<float2*>(to + column * 4) = make_float2(a, b);
        });
      case DType::kBF16:
        return store_columns(i, h, factor, [to](int column, float a, float b) {
          *reinterpret_cast<__nv_bfloat162*>(to + column * 2) = __floats2bfloat162_rn(a, b);
        });
      default:
        return store_columns(i, h, factor, [to](int column, float a, float b) {
          *reinterpret_cast<__half2*>(to + column * 2) = __floats2half2_rn(a, b);
        });
    }
  }

  __device__ void finish() {
    unsigned again = 0;  // rows of the warp
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = i * 16 + h * 8 + lane / 4, row = warp_row() + r;
        float total = sum[i][h];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        const bool is_nan = total != total;
        const bool wrong =
            is_unsafe(i, h) || (C::kF32 && is_nan) || (total != 0 && !is_nan && !is_finite(i, h));
        const unsigned wrong_lanes = __ballot_sync(kAllLanes, wrong && row < rows);
        const bool redo = (wrong_lanes >> (lane & ~3) & 15) != 0;
        again |= __reduce_or_sync(kAllLanes, redo ? 1u << r : 0);
        if (row >= rows || redo) continue;
        if (total == 0) clear_row(i, h);  // nothing is seen, and v may have been anything
        float lse;
        const float factor = finish_row(largest[i][h], total, head_of(row), &lse);
        store_row(i, h, job.out.at(batch, head_of(row), query_of(row)), factor);
        if (job.lse.present() && lane % 4 == 0)
          *reinterpret_cast<float*>(job.lse.at(batch, head_of(row), query_of(row))) = lse;
      }
    for (; again != 0; again &= again - 1) {
      const int row = warp_row() + __ffs(static_cast<int>(again)) - 1;
      attention_row(job, batch, head_of(row), query_of(row));
    }
  }

  // ----

  struct Shared {
    SeenKeys by_warps[kWarps];
    SeenKeys by_rows[kWarps][C::kWarpRows];
  };
  // Did a faster kernel leave one of the rows?
  __device__ bool are_left() const {
    const int tiles = (rows + kLeftRows - 1) / kLeftRows;
    const int* of_head = job.left + int64_t{batch * c.key_heads + key_head} * tiles;
    bool some = false;
#pragma unroll
    for (int i = 0; i < C::kRows / kLeftRows; ++i)
      if (row0 + i * kLeftRows < rows) some |= of_head[row0 / kLeftRows + i] != 0;
    return some;
  }
  __device__ void run(Shared& shared) {
    if constexpr (C::kSplit)
      if (job.left != nullptr && !are_left()) return;
    const WarpRows r = warp_rows(shared.by_rows[warp]);
    if (lane == 0) shared.by_warps[warp] = r.any;
    __syncthreads();
    SeenKeys any = shared.by_warps[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w)
      any = {min(any.begin, shared.by_warps[w].begin), max(any.end, shared.by_warps[w].end)};
    if (any.begin < any.end) {
      copy_queries();
      copy_keys(any.begin, any.end, 0);
    }
    commit_copies();
    int stage = 0;
    for (int key0 = any.begin; key0 < any.end; key0 += C::kKeys, stage ^= 1) {
      // Behind this barrier a tile is there for all, and nobody reads the one before it.
      wait_for_copies<0>();
      __syncthreads();
      if (key0 + C::kKeys < any.end) copy_keys(key0 + C::kKeys, any.end, stage ^ 1);
      commit_copies();
      if (key0 >= r.any.end || key0 + C::kKeys <= r.any.begin) continue;
      const uint32_t k = memory + C::kQBytes + stage * C::kStageBytes;
      multiply_keys(k);
      make_logits(r, key0);
      make_exponentials();
      multiply_values(k + C::kTileBytes);
    }
    finish();
  }
};

template <class C>
__global__ void __launch_bounds__(kThreads, 2)
    attention_tiles_kernel(const __grid_constant__ AttentionJob job) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ typename Kernel<C>::Shared shared;
  Kernel<C>(job, warp::shared_place(memory)).run(shared);
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::attention_tiles
