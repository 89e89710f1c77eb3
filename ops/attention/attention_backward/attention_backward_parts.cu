// Gradients of attention of f32 as exact as f32, by products of f16 parts (ops/attention/sm80/f16_parts.cuh).
//
// Map      As attention_backward_tiles.cuh, of which it is a variant: tiles of parts come out of the
//          workspace, 32 inner rows at a time, which share a scale. Beyond 64 columns a block has two
//          groups of 4 warps with the same 64 outer rows; every second inner tile is the other
//          group's, and the sums are added up at the end, always in that order.
// Numerics Three products of parts; sums of a tile are begun anew. Weights are brought to f16's
//          range by their largest of a warp's tile; those 2^30 smaller follow in another round, so that
//          small ones keep as many bits.
// Numbers  A block that meets rows without parts (infinities, NaN, too large a range) leaves its tile, with
//          a word that says so, to attention_backward_tiles.cuh; sums that are not finite as there.
#include "ops/attention/attention_backward/attention_backward_tiles_start.cuh"
#include "ops/attention/sm80/f16_parts.cuh"

namespace pestle::ops::attention_backward {

struct PartsJob : BackwardJob {
  cuda::F16Parts q, k, v, d_out_parts;
};

template <int kColumnsOf, Gives kGivesOf, bool kGeneralOf, int kGroupsOf>
struct PartsConfig {
  static constexpr Kind kKind = Kind::kTf32;  // of weights in registers: f32
  static constexpr int kColumns = kColumnsOf;
  static constexpr Gives kGives = kGivesOf;
  static constexpr bool kGeneral = kGeneralOf;
  static constexpr int kGroups = kGroupsOf;
  static constexpr bool kSplit = true;
  static constexpr bool kF32 = true;
  static constexpr int kBytes = 4;  // of both parts of an element
  static constexpr int kOfChunk = 16 / kBytes;
  static constexpr bool kKeysAreOuter = kGives != Gives::kQueries;
  static constexpr bool kWeights = kGives == Gives::kKeys;  // d_v
  static constexpr bool kLogits = true;                     // d_k, d_q
  static constexpr int kRowBytes = kColumns * kBytes;
  static constexpr int kInner = cuda::kPartsRows;
  static constexpr int kStages = 2;
  static constexpr int kOuterBytes = kTile * kRowBytes;
  static constexpr int kInnerBytes = kInner * kRowBytes;
  static constexpr int kStageBytes = 2 * kInnerBytes;
  static constexpr int kGroupBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = 2 * kOuterBytes + kGroups * kGroupBytes;
  static constexpr int kThreads = kGroups * kFastThreads;
  static constexpr int kBlocksAtOnce = kGroups == 2 ? 1 : kColumns <= 64 ? 3 : 2;
};

template <class C>
struct PartsShared {
  FastShared<C> groups[C::kGroups];
};

template <class C>
struct PartsFast : Fast<C> {
  using Base = Fast<C>;
  using Base::all, Base::any, Base::b, Base::c, Base::d_first, Base::d_second, Base::head,
      Base::job, Base::kEights, Base::key_head, Base::lane, Base::memory, Base::outer0,
      Base::place_of, Base::shared, Base::warp;
  using Weights = float[kEights][4];
  static constexpr int kLow = C::kRowBytes / 2;  // from the high parts of a row to the low ones
  static constexpr uint32_t kSmallestPart = (127 - 16) << 23;  // 2^-16, as bits

  const PartsJob& parts;
  int group;
  float outer_factors[2];  // of the warp's rows

  __device__ PartsFast(const PartsJob& j, PartsShared<C>& s, uint32_t place)
      : Base(j, s.groups[threadIdx.x / kFastThreads], place),
        parts(j),
        group(threadIdx.x / kFastThreads) {
    warp %= 4;
  }

  // What the outer rows are (first, second), and the inner ones.
  __device__ const cuda::F16Parts& outer(int i) const {
    if constexpr (C::kKeysAreOuter) return i == 0 ? parts.k : parts.v;
    return i == 0 ? parts.q : parts.d_out_parts;
  }
  __device__ const cuda::F16Parts& inner(int i) const {
    if constexpr (C::kKeysAreOuter) return i == 0 ? parts.q : parts.d_out_parts;
    return i == 0 ? parts.k : parts.v;
  }
  __device__ int outer_head() const {
    return C::kKeysAreOuter ? b * c.key_heads + key_head : b * c.heads + head;
  }
  // Of head h of q.
  __device__ int inner_head(int h) const {
    return C::kKeysAreOuter ? b * c.heads + h : b * c.key_heads + key_head;
  }

  // ---- copies ----

  static constexpr int kChunks = C::kRowBytes / 16;

  // Rows from `first` on by kThreads threads; those outside of `within` become zeros.
  template <int kRows, int kThreads>
  __device__ static void copy_parts(uint32_t to, const cuda::F16Parts& t, int of_head, int first,
                                    SeenKeys within) {
    constexpr int kLines = kThreads / kChunks;
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    const int chunk = thread % kChunks, line = thread / kChunks;
    const int part = chunk / (kChunks / 2), of_part = chunk % (kChunks / 2);
    const int bytes = of_part * 8 < t.columns ? 16 : 0;
    const char* from = t.at(of_head, first + line) + part * 2 * t.columns + of_part * 16;
#pragma unroll
    for (int i = 0; i < kRows / kLines; ++i) {
      const int row = first + line + i * kLines;
      const bool inside = row >= within.begin && row < within.end;
      cuda::copy_async(to + place_of(line + i * kLines, chunk), inside ? from : t.data,
                       inside ? bytes : 0);
      from += kLines * 4 * t.columns;
    }
  }
  __device__ uint32_t stage_at(int stage) const {
    return memory + 2 * C::kOuterBytes + group * C::kGroupBytes + stage * C::kStageBytes;
  }
  __device__ void copy_outer() const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      copy_parts<kTile, C::kThreads>(memory + i * C::kOuterBytes, outer(i), outer_head(), outer0,
                                     {0, outer(i).rows});
  }
  // An inner tile of head h. True where this thread knows of nothing that is hidden in it.
  __device__ bool copy_inner(int stage, int h, int inner0) const {
    const SeenKeys within = C::kKeysAreOuter ? SeenKeys{0, c.queries} : any;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      copy_parts<C::kInner, kFastThreads>(stage_at(stage) + i * C::kInnerBytes, inner(i),
                                          inner_head(h), inner0, within);
    if constexpr (C::kKeysAreOuter)
      return this->note_queries(stage, h, inner0, static_cast<int>(threadIdx.x) % kFastThreads);
    return all.begin <= inner0 && all.end >= inner0 + C::kInner;
  }

  // ---- products ----

  template <bool kTransposed>
  __device__ static void load_parts(uint32_t from, uint32_t (&high)[4], uint32_t (&low)[4]) {
    cuda::warp::load_fragments<kTransposed>(from, high[0], high[1], high[2], high[3]);
    cuda::warp::load_fragments<kTransposed>(from ^ kLow, low[0], low[1], low[2], low[3]);
  }
  // sums[16 outer rows of the warp, inner rows] += factor * outer . inner over `columns`.
  __device__ void multiply_rows(uint32_t outer_rows, uint32_t inner_rows, int columns, float factor,
                                float (&sums)[kEights][4]) const {
    float high[kEights / 2][2][4] = {}, low[kEights / 2][2][4] = {};
    const uint32_t from_a = outer_rows + place_of(warp * 16 + lane % 16, lane / 16);
    const uint32_t from_b = inner_rows + place_of(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const int units = (columns + 15) / 16;
#pragma unroll 2
    for (int unit = 0; unit < units; ++unit) {
      uint32_t a[4], a_low[4];
      load_parts<false>(from_a ^ (unit * 32), a, a_low);
#pragma unroll
      for (int n = 0; n < kEights / 2; ++n) {
        uint32_t in[4], in_low[4];
        load_parts<false>((from_b ^ (unit * 32)) + n * 16 * C::kRowBytes, in, in_low);
        cuda::multiply_f16_parts(high[n], low[n], a, a_low, in, in_low);
      }
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[n][e] =
            __fmaf_rn(__fmaf_rn(low[n / 2][n % 2][e], cuda::kOfLowParts, high[n / 2][n % 2][e]),
                      factor, sums[n][e]);
  }
  // out[16 outer rows, columns] += factor * weights[outer, inner] * inner rows, of weights in f16's range.
  __device__ void add_in_range(const Weights& weights, uint32_t inner_rows, int columns,
                               float factor, float (&out)[Base::kOutEights][4]) const {
    constexpr int kUnits = C::kInner / 16;
    uint32_t w[kUnits][4], w_low[kUnits][4];
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float* from = weights[2 * unit + e / 2] + e % 2 * 2;
        const cuda::F16PartsPair p = cuda::f16_parts(from[0], from[1]);
        w[unit][e] = p.high;
        w_low[unit][e] = p.low;
      }
    const uint32_t at = inner_rows + place_of(lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < Base::kOutEights / 2; ++n) {
      if (n * 16 >= columns) break;
      float high[2][4] = {}, low[2][4] = {};
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        uint32_t in[4], in_low[4];
        load_parts<true>((at ^ (n * 32)) + unit * 16 * C::kRowBytes, in, in_low);
        cuda::multiply_f16_parts(high, low, w[unit], w_low[unit], in, in_low);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& to = out[2 * n + j][e];
          to = __fmaf_rn(__fmaf_rn(low[j][e], cuda::kOfLowParts, high[j][e]), factor, to);
        }
    }
  }

  // ---- weights in f16's range ----

  template <class W, class F>
  __device__ static void for_weights(W& weights, F f) {
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(weights[n][e], n * 4 + e);
  }
  __device__ static uint32_t size_of(float w) { return __float_as_uint(w) & 0x7FFFFFFFu; }
  static constexpr int kMostUp = 120;
  // Brings the largest to [2^14, 2^15), or takes all 2^120 times. True if others are tiny then: they
  // are put aside. `down` is what takes them back.
  __device__ static bool take_level(Weights& weights, volatile float* rest, float* down) {
    uint32_t size = 0;
    for_weights(weights, [&](float w, int) { size = max(size, size_of(w)); });
    const int exponent = static_cast<int>(__reduce_max_sync(~0u, size) >> 23) - 127;
    const int by = max(-114, min(kMostUp, 14 - exponent));
    const float up = __uint_as_float(static_cast<uint32_t>(127 + by) << 23);
    *down = __uint_as_float(static_cast<uint32_t>(127 - by) << 23);
    uint32_t least = ~0u;  // bits, less 1: zeros are not tiny
    for_weights(weights, [&](float& w, int) {
      w *= up;
      least = min(least, size_of(w) - 1);
    });
    if (by == kMostUp || !__any_sync(~0u, least < kSmallestPart - 1)) return false;
    for_weights(weights, [&](float& w, int i) {
      const bool tiny = size_of(w) < kSmallestPart;
      rest[i] = tiny ? w * *down : 0;
      w = tiny ? 0 : w;
    });
    return true;
  }
  // out += factor * weights * inner rows
  __device__ void add_rows(Weights& weights, uint32_t inner_rows, int columns, float factor,
                           float (&out)[Base::kOutEights][4]) const {
    volatile float rest[kEights * 4];
    for (;;) {
      float down;
      const bool more = take_level(weights, rest, &down);
      add_in_range(weights, inner_rows, columns, factor * down, out);
      if (!more) return;
      for_weights(weights, [&](float& w, int i) { w = rest[i]; });
    }
  }

  template <bool kHidden>
  __device__ void do_tile(int stage, int h, int inner0) {
    const uint32_t first = stage_at(stage), second = first + C::kInnerBytes;
    const int block = inner0 / cuda::kPartsRows;
    const float of_first = inner(0).factors_of(inner_head(h))[block];
    const float of_second = inner(1).factors_of(inner_head(h))[block];
    float s[kEights][4] = {};
    Weights weights;
    multiply_rows(memory, first, c.depth, outer_factors[0] * of_first, s);
    this->template make_weights<kHidden>(stage, h, inner0, s, weights);
    if constexpr (C::kWeights) add_rows(weights, second, c.value_depth, of_second, d_second);
    float d[kEights][4];
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) d[n][e] = -this->facts_of(stage, n, e).delta;
    multiply_rows(memory + C::kOuterBytes, second, c.value_depth, outer_factors[1] * of_second, d);
    // Where a key does not count, its v may be anything.
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        weights[n][e] = (kHidden || C::kGeneral) && s[n][e] == 0 ? 0 : s[n][e] * d[n][e];
    add_rows(weights, first, c.depth, of_first, d_first);
  }

  // ---- groups ----

  // A lane's sums go from the second group to the first, which has the same rows.
  template <class F>
  __device__ void for_sums(F f) {
    int i = 0;
#pragma unroll
    for (auto& eight : d_first)
#pragma unroll
      for (float& v : eight) f(v, i++);
    if constexpr (C::kWeights) {
#pragma unroll
      for (auto& eight : d_second)
#pragma unroll
        for (float& v : eight) f(v, i++);
    }
  }
  // False for the second group, which is done then.
  __device__ bool join_groups() {
    extern __shared__ __align__(1024) char everything[];
    float* at = reinterpret_cast<float*>(everything + 2 * C::kOuterBytes + C::kGroupBytes) +
                threadIdx.x % kFastThreads;
    if (group == 1) {
      group_and<C::kGroups>(group, true);  // nobody reads the tiles any more
      for_sums([&](float v, int i) { at[i * kFastThreads] = v; });
    }
    __syncthreads();
    if (group == 1) return false;
    for_sums([&](float& v, int i) { v += at[i * kFastThreads]; });
    return true;
  }

  // ----

  // Do all rows that the block multiplies have parts? Sets the factors of the outer ones.
  __device__ bool have_parts(int first_head, int heads, SeenKeys run) {
    bool serve = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = outer0 + warp * 16, rows = outer(i).rows;
      const float* factors = outer(i).factors_of(outer_head());
      outer_factors[i] = row < rows ? factors[row / cuda::kPartsRows] : 1;
      serve = serve && outer_factors[i] == outer_factors[i];
    }
    const int end = (run.end + cuda::kPartsRows - 1) / cuda::kPartsRows;
    for (int h = first_head; h < first_head + heads; ++h) {
      const float* first = inner(0).factors_of(inner_head(h));
      const float* second = inner(1).factors_of(inner_head(h));
      for (int i = run.begin / cuda::kPartsRows + static_cast<int>(threadIdx.x); i < end;
           i += C::kThreads)
        serve = serve && first[i] == first[i] && second[i] == second[i];
    }
    return __syncthreads_and(serve) != 0;
  }
  __device__ void run_tiles(int first_head, int heads, SeenKeys run) {
    const int begin = run.begin / C::kInner * C::kInner;
    const int tiles = run.begin < run.end ? (run.end - begin + C::kInner - 1) / C::kInner : 0;
    const int count = tiles * heads;
    if (count == 0) return;
    const auto copy = [&](int n, int stage) {
      return n >= count || copy_inner(stage, first_head + n / tiles, begin + n % tiles * C::kInner);
    };
    copy_outer();
    bool open = copy(group, 0);
    cuda::commit_copies();
    cuda::wait_for_copies<0>();
    __syncthreads();  // the outer rows are there for both groups
    int stage = 0;
    for (int n = group; n < count; n += C::kGroups, stage ^= 1) {
      // Behind this barrier a tile is there for the group, and nobody reads the one before it.
      cuda::wait_for_copies<0>();
      const bool is_open = group_and<C::kGroups>(group, open);
      open = copy(n + C::kGroups, stage ^ 1);
      cuda::commit_copies();
      const int h = first_head + n / tiles, inner0 = begin + n % tiles * C::kInner;
      if (is_open)
        do_tile<false>(stage, h, inner0);
      else
        do_tile<true>(stage, h, inner0);
    }
  }
  // The block's words: its tile has no parts.
  __device__ void leave() const {
    if (threadIdx.x != 0) return;
    if constexpr (C::kKeysAreOuter)
      job.redo_k[blockIdx.x] = job.redo_v[blockIdx.x] = kLeft;
    else
      job.redo_q[blockIdx.x] = kLeft;
  }

  __device__ void run() {
    const int block = static_cast<int>(blockIdx.x);
    const int rows = C::kKeysAreOuter ? c.keys : c.queries;
    const int tiles = (rows + kTile - 1) / kTile, own_head = block / tiles;
    const int heads = C::kKeysAreOuter ? c.group : 1;
    outer0 = block % tiles * kTile;
    SeenKeys run;
    if constexpr (C::kKeysAreOuter) {
      b = own_head / c.key_heads;
      key_head = own_head % c.key_heads;
      head = key_head * c.group;
      run = c.query_range(b, outer0, min(c.keys, outer0 + kTile));
    } else {
      b = own_head / c.heads;
      head = own_head % c.heads;
      key_head = head / c.group;
      this->find_outer_queries();
      run = any;
    }
    if (run.begin >= run.end) run = {};
    if (!have_parts(head, heads, run)) return leave();
    run_tiles(head, heads, run);
    if constexpr (C::kGroups == 2)
      if (!join_groups()) return;
    if constexpr (C::kKeysAreOuter) {
      this->store(d_first, memory, job.d_k, key_head, c.keys, c.depth, c.scale, job.redo_k);
      this->store(d_second, memory + C::kOuterBytes, job.d_v, key_head, c.keys, c.value_depth,
                  1 / Base::kWeightScale, job.redo_v);
    } else {
      this->store(d_first, memory, job.d_q, head, c.queries, c.depth, c.scale, job.redo_q);
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksAtOnce)
    backward_parts_kernel(const __grid_constant__ PartsJob job) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ PartsShared<C> shared;
  PartsFast<C>(job, shared, cuda::warp::shared_place(memory)).run();
}

// ---- host ----

namespace {

template <class C>
Status start_parts_kernel(const Call& call, const char* name, const PartsJob& job) {
  const AttentionCall& c = job.call;
  const int64_t tiles = C::kKeysAreOuter ? int64_t{c.key_heads} * job.key_tiles()
                                         : int64_t{c.heads} * job.query_tiles();
  return cuda::launch(call, name, {c.batches * tiles, C::kThreads, C::kSharedBytes},
                      backward_parts_kernel<C>, job);
}

template <int kColumns, int kGroups, bool kGeneral>
Status start_both(const Call& call, const PartsJob& job) {
  PESTLE_TRY((start_parts_kernel<PartsConfig<kColumns, Gives::kKeys, kGeneral, kGroups>>(
      call, "attention_backward_parts_keys", job)));
  return start_parts_kernel<PartsConfig<kColumns, Gives::kQueries, kGeneral, kGroups>>(
      call, "attention_backward_parts_queries", job);
}

template <bool kGeneral>
Status start_parts_columns(const Call& call, const PartsJob& job) {
  if (std::max(job.call.depth, job.call.value_depth) <= 64)
    return start_both<64, 1, kGeneral>(call, job);
  return start_both<128, 2, kGeneral>(call, job);
}

}  // namespace

Status start_parts(const Call& call, BackwardJob& job, void* memory) {
  const AttentionCall& c = job.call;
  auto* at = static_cast<char*>(memory);
  cuda::SplitRowsJob split;
  const auto parts_of = [&](const AttentionRows& t, int heads, int rows, int columns) {
    return cuda::add_split_rows(split, t, c.batches, heads, rows, columns, &at);
  };
  PartsJob parts{job, {}, {}, {}, {}};
  parts.q = parts_of(c.q, c.heads, c.queries, c.depth);
  parts.k = parts_of(c.k, c.key_heads, c.keys, c.depth);
  parts.v = parts_of(c.v, c.key_heads, c.keys, c.value_depth);
  parts.d_out_parts = parts_of(job.d_out, c.heads, c.queries, c.value_depth);
  PESTLE_TRY(cuda::start_split_rows(call, split));
  const bool general = c.mask.dtype != DType::kNone || job.softcap_log2 != 0;
  PESTLE_TRY(general ? start_parts_columns<true>(call, parts)
                     : start_parts_columns<false>(call, parts));
  job.only_left = true;
  return start_tiles_f32(call, job);
}

}  // namespace pestle::ops::attention_backward
