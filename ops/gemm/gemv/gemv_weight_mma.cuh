// GEMV with weights of 4 or 8 bits by mma.sync, up to 16 rows of bf16 or f16 x: the weight is the left
// operand and is decoded in registers, x is the right one.
//
// Map      Persistent CTAs take tiles of 16 rows of the weight and all rows of x in turn. A CTA's warps
//          share a tile's k, two steps of 64 bytes of a row a turn, and add their sums in shared memory in
//          one order. A lane copies 16 bytes of two rows a step into a ring of its own, two turns ahead of
//          their use, past the end of a tile into the next; scales of the next tile go the same way. A
//          barrier a tile. x lies in shared memory where its rows fit.
// k        A product may take k in any order, as long as both operands agree. So codes of 4 bits stay the
//          pairs (i, i + 4) that masks make of a word, and x is paired likewise. A lane's 16 bytes are
//          octets of neighbours; where each octet's sums have a scale of their own, the four lanes of a
//          row exchange words first, so that the octets of a product lie side by side.
// Traffic  the weight and its scales once from memory, x once a CTA from L2.
// Numerics as many_rows.cuh: code times block scale exact in x's dtype, or exact codes whose sums are
//          scaled in f32; tiles that meet what is not exact (`odd`) begin again from f32 values.
//          Epilogue in f32, one rounding.
// Measured H200, 14336 x 4096, 1, 4 and 16 rows, us: int4-g128 17.0, 21.5, 26.3, nvfp4 20, 22, 32, mxfp4
//          20, 23, 34, int4-g32 24, 27, 36, mxfp8 36, 38, 47; a copy of 4 bits' bytes takes 9.4. Half of
//          the issue slots: shifts and masks run at half rate.
// Needs    rows of x and of the weight at multiples of 16 bytes, K of 32, evenly spaced rows.
#pragma once

#include <cfloat>

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "ops/gemm/gemv/gemv_weight_formats.cuh"
#include "ops/gemm/gemv/gemv_weight_only.cuh"
#include "ops/gemm/select/gemv_parts.h"

namespace pestle::ops::gemv {

using cuda::warp::Kind;

constexpr int kAhead = 2;  // turns
constexpr int kSteps = 2;  // of a turn
constexpr int kSlots = 4;  // of 16 bytes, a lane's of a turn

// A matrix of any float dtype, aligned to its elements.
struct FloatRows {
  char* data = nullptr;  // null: none
  DType dtype = DType::kF32;
  int64_t row = 0;  // bytes from one to the next

#ifdef __CUDACC__
  __device__ float load(int64_t m, int64_t n) const {
    const char* from = data + m * row;
    switch (dtype) {
      case DType::kBF16:
        return __uint_as_float(uint32_t{reinterpret_cast<const uint16_t*>(from)[n]} << 16);
      case DType::kF16: return __half2float(reinterpret_cast<const __half*>(from)[n]);
      default: return reinterpret_cast<const float*>(from)[n];
    }
  }
  __device__ void store(int64_t m, int64_t n, float v) const {
    char* to = data + m * row;
    switch (dtype) {
      case DType::kBF16: reinterpret_cast<uint16_t*>(to)[n] = formats::bf16_from_f32(v); break;
      case DType::kF16: reinterpret_cast<uint16_t*>(to)[n] = formats::f16_from_f32(v); break;
      default: reinterpret_cast<float*>(to)[n] = v != v ? formats::f32_nan() : v;
    }
  }
#endif
};

struct Job {
  const char *weight, *x;
  int64_t weight_row, x_row;  // bytes
  int64_t n;
  int k, rows_of_x, tiles;
  FloatRows out, residual;
  FloatRows bias;  // one row
  int64_t bias_step;
  const float* alpha;  // null: 1
  int activation;
  int scale_row, scale_buffers;  // of shared memory: bytes of a row's scales, tiles of them
  int sum_buffers;               // 1: a barrier a tile more
};

// Weights of one x, none of them empty, whose tiles follow one another. What belongs to the launch and
// to x is the same in all their jobs.
template <class Format>
struct WeightParts {
  Job jobs[kGemvParts];
  Format formats[kGemvParts];  // behind the last weight the first one's
  GemvParts parts;
};

// Bytes of shared memory. x_row: of a row of x there, 0 if it is not.
struct SharedPlan {
  int threads, scale_row, scale_buffers, sum_buffers, rows_of_x, x_row;

  constexpr int64_t ring() const { return int64_t{kAhead} * kSlots * 16 * threads; }
  constexpr int64_t sums() const {
    return int64_t{sum_buffers} * (threads / 32) * rows_of_x * kTileRows * 4;
  }
  constexpr int64_t scales() const { return int64_t{scale_buffers} * kTileRows * scale_row; }
  constexpr int64_t total() const {
    return ring() + sums() + scales() + int64_t{rows_of_x} * x_row;
  }
};

#ifdef __CUDACC__

// Word t of each of the four chunks that lanes 4i to 4i + 3 hold goes to lane t: its w-th is of
// chunk w.
__device__ inline void exchange(uint32_t (&words)[4]) {
  const int t = threadIdx.x % 4;
  // Two rounds, each of which swaps halves between lanes whose numbers differ in one bit.
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (t & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t given = upper ? words[i] : words[i + bit];
      const uint32_t taken = __shfl_xor_sync(0xFFFFFFFFu, given, bit);
      words[i] = upper ? taken : words[i];
      words[i + bit] = upper ? words[i + bit] : taken;
    }
  }
}

// 8 neighbours of x as decoded words have them: (0, 4), (1, 5), (2, 6), (3, 7), or each of these
// pairs of bytes of codes the other way round.
struct Pairing {
  uint32_t even, odd;

  __device__ explicit Pairing(bool high_first)
      : even(high_first ? 0x7632u : 0x5410u), odd(high_first ? 0x5410u : 0x7632u) {}
  __device__ uint4 operator()(const uint4& x) const {
    return make_uint4(__byte_perm(x.x, x.z, even), __byte_perm(x.x, x.z, odd),
                      __byte_perm(x.y, x.w, even), __byte_perm(x.y, x.w, odd));
  }
};

// The epilogue of column `n` of row `m` of out.
__device__ inline void finish(const Job& job, int m, int64_t n, float sum) {
  if (job.alpha != nullptr) sum *= *job.alpha;
  if (job.bias.data != nullptr) sum += job.bias.load(0, n * job.bias_step);
  sum = activated(job.activation, sum);
  if (job.residual.data != nullptr) sum += job.residual.load(m, n);
  job.out.store(m, n, sum);
}

// A tile, counted within its weight.
template <class Format>
struct TileOf {
  const Job& job;
  const Format& format;
  int64_t tile;
};

// Where the kernel's weights are: one alone.
template <class FormatOf>
struct LoneWeight {
  using Format = FormatOf;
  const Job& job;
  Format format;

  // Whether none of the weight's sums is exact.
  __device__ uint32_t start() { return format.start(); }
  __device__ const Job& common() const { return job; }
  __device__ int tiles() const { return job.tiles; }
  __device__ bool high_first() const { return format.high_first; }
  __device__ TileOf<Format> at(int64_t tile) const { return {job, format, tile}; }
  __device__ const Format& started(int64_t) const { return format; }
  __device__ uint32_t odd(int64_t, uint32_t start) const { return start; }
};

// Several, as the kernel's arguments have them. What starting a format sets is kept for each.
template <class FormatOf>
struct SeveralWeights {
  using Format = FormatOf;
  const WeightParts<Format>& all;
  Format formats[kGemvParts];

  __device__ explicit SeveralWeights(const WeightParts<Format>& parts) : all(parts) {
#pragma unroll
    for (int p = 0; p < kGemvParts; ++p) formats[p] = parts.formats[p];
  }
  // A bit for each weight.
  __device__ uint32_t start() {
    uint32_t odd = 0;
#pragma unroll
    for (int p = 0; p < kGemvParts; ++p) odd |= uint32_t{formats[p].start()} << p;
    return odd;
  }
  __device__ const Job& common() const { return all.jobs[0]; }
  __device__ int tiles() const { return all.parts.tiles; }
  __device__ bool high_first() const { return all.formats[0].high_first; }
  // The format as it came, whose members are read where they are used.
  __device__ TileOf<Format> at(int64_t tile) const {
    const int p = all.parts.part_of(tile);
    return {all.jobs[p], all.formats[p], tile - all.parts.first[p]};
  }
  __device__ Format started(int64_t tile) const {
    const int own = all.parts.part_of(tile);
    Format format = formats[0];
#pragma unroll
    for (int p = 1; p < kGemvParts; ++p)
      if (own == p) format = formats[p];
    return format;
  }
  __device__ uint32_t odd(int64_t tile, uint32_t start) const {
    return start >> all.parts.part_of(tile) & 1;
  }
};

// kN8: eights of rows of x. kStaged: x is in shared memory.
template <bool kBf16, class Weights, int kN8, bool kStaged>
struct WeightMma {
  using Format = typename Weights::Format;
  static constexpr Kind kKind = kBf16 ? Kind::kBf16 : Kind::kF16;
  static constexpr bool kExchanged = Format::kSums == SumsOf::kOctets;
  static constexpr int kStep = kStepOf<Format::kBits>;
  static constexpr int kOctets = kStep / 32;  // of a lane
  static constexpr int kUnits = kStep / 8;
  using Sums = float[kN8][4];

  // Of shared memory.
  struct Places {
    uint4* ring;
    float* sums;
    char* scales;
    uint4* x;
  };

  // Units of 8 columns of x in shared memory: by row of x, step, octet, lane of four. The rows' distance
  // keeps the lanes of a warp apart.
  __device__ static int row_units(int k) { return (k + kStep - 1) / kStep * kUnits + 4; }

  __device__ static uint4 paired(const Pairing& pairing, const uint4& x) {
    return Format::kBits == 4 ? pairing(x) : x;
  }
  // Several loads are under way at a time: one after the other takes a trip to the L2 for each row.
  __device__ static void stage(const Job& job, const Pairing& pairing, uint4* to) {
    constexpr int kTogether = kN8 == 1 ? 4 : 8;
    const int units = (job.k + kStep - 1) / kStep * kUnits;
    int m = 0, u = threadIdx.x;
    const auto begin_row = [&] {
      for (; u >= units; u -= units) ++m;
    };
    begin_row();
#pragma unroll 1
    while (m < job.rows_of_x) {
      uint4 x[kTogether];
      int places[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        places[i] = -1;
        if (m < job.rows_of_x) {
          const auto* row = reinterpret_cast<const uint4*>(job.x + m * job.x_row);
          x[i] = u * 8 < job.k ? __ldg(row + u) : make_uint4(0, 0, 0, 0);
          const int v = u % kUnits;
          const int place = kExchanged ? v : v % kOctets * 4 + v / kOctets;
          places[i] = m * row_units(job.k) + u - v + place;
        }
        u += blockDim.x;
        begin_row();
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (places[i] >= 0) to[places[i]] = paired(pairing, x[i]);
    }
  }

  // A lane's x. Columns of the product that have no row of x repeat the last one's; nobody reads them.
  struct LaneX {
    const char* rows[kN8];
    Pairing pairing;
    int first, k;  // column

    __device__ LaneX(const Job& job, const Pairing& p, const uint4* staged) : pairing(p), k(job.k) {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
      first = kExchanged ? 8 * t : 8 * kOctets * t;
#pragma unroll
      for (int i = 0; i < kN8; ++i) {
        const int row = min(g + 8 * i, job.rows_of_x - 1);
        rows[i] = kStaged ? reinterpret_cast<const char*>(staged + row * row_units(k) + t)
                          : job.x + row * job.x_row + first * 2;
      }
    }
    // 8 columns, of octet o.
    __device__ uint4 at(int i, int step, int o) const {
      if constexpr (kStaged)
        return *reinterpret_cast<const uint4*>(rows[i] + step * (kUnits * 16) + o * 64);
      const int column = step * kStep + o * (kExchanged ? 32 : 8);
      if (first + column >= k) return make_uint4(0, 0, 0, 0);
      return paired(pairing, __ldg(reinterpret_cast<const uint4*>(rows[i] + column * 2)));
    }
  };

  // What a lane copies ahead.
  struct Ahead {
    const Weights& weights;
    const Job& job;
    char* scales;
    int64_t tile;
    const char* rows[2];  // the lane's, of the tile
    int steps, turns;     // of a tile; of those a warp's
    int turn = 0, buffer = 0;

    __device__ Ahead(const Weights& w, char* s)
        : weights(w),
          job(w.common()),
          scales(s),
          tile(blockIdx.x),
          steps((job.k + kStep - 1) / kStep),
          turns(((steps + kSteps - 1) / kSteps + blockDim.x / 32 - 1) / (blockDim.x / 32)) {
      begin_tile();
    }
    __device__ void begin_tile() {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
      const TileOf<Format> at = weights.at(tile);
      const int64_t first = at.tile * kTileRows, last = at.job.n - 1;
      at.format.copy_scales(first, last, steps, scales + buffer * kTileRows * job.scale_row,
                            job.scale_row);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        rows[h] = at.job.weight + min(first + g + 8 * h, last) * at.job.weight_row +
                  (threadIdx.x / 32 * (kSteps * 64) + t * 16);
    }
    // One group of copies, also where none is left, so that all are counted alike.
    __device__ void load(uint4* slot) {
      if (turn == turns) {
        turn = 0;
        tile += gridDim.x;
        if (++buffer == job.scale_buffers) buffer = 0;
        if (tile < weights.tiles()) begin_tile();
      }
      const int step = (threadIdx.x / 32 + turn * (blockDim.x / 32)) * kSteps;
      const int column = step * kStep + threadIdx.x % 4 * (kOctets * 8);
      const uint32_t to = cuda::warp::shared_place(slot);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const bool inside = column + i * kStep < job.k && tile < weights.tiles();
#pragma unroll
        for (int h = 0; h < 2; ++h)
          cuda::copy_async(to + (i * 2 + h) * blockDim.x * 16,
                           inside ? rows[h] + i * 64 : job.weight, inside ? 16 : 0);
      }
      rows[0] += blockDim.x * 4;
      rows[1] += blockDim.x * 4;
      ++turn;
      cuda::commit_copies();
    }
  };

  // 16 rows of the weight by 16 of k, times 8 rows of x.
  __device__ static void multiply(float (&d)[4], const uint32_t (&low)[4],
                                  const uint32_t (&high)[4], const uint4& x) {
    cuda::warp::multiply<kKind>(d, low[0], high[0], low[1], high[1], x.x, x.y);
    cuda::warp::multiply<kKind>(d, low[2], high[2], low[3], high[3], x.z, x.w);
  }
  __device__ static void add_scaled(float (&d)[4], const float (&sums)[4], float low, float high) {
    d[0] = __fmaf_rn(sums[0], low, d[0]), d[1] = __fmaf_rn(sums[1], low, d[1]);
    d[2] = __fmaf_rn(sums[2], high, d[2]), d[3] = __fmaf_rn(sums[3], high, d[3]);
  }

  // scales: of the lane's rows.
  __device__ static void add(const Format& format, const LaneX& x, const uint4* slot,
                             const char* const (&scales)[2], int step, uint32_t& odd, Sums& d) {
    uint32_t words[2][4];
    typename Format::Ready ready[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 codes = slot[h * blockDim.x];
      words[h][0] = codes.x, words[h][1] = codes.y, words[h][2] = codes.z, words[h][3] = codes.w;
      ready[h] = format.template ready<kBf16>(scales[h], words[h], step, odd);
      if constexpr (kExchanged) exchange(words[h]);
    }
    Sums of_step = {};
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      uint32_t low[4], high[4];
      format.template decode<kBf16>(words[0], o, ready[0], odd, low);
      format.template decode<kBf16>(words[1], o, ready[1], odd, high);
#pragma unroll
      for (int i = 0; i < kN8; ++i) {
        const uint4 v = x.at(i, step, o);
        if constexpr (kExchanged) {
          float sums[4] = {};
          multiply(sums, low, high, v);
          add_scaled(d[i], sums, format.factor(ready[0], o), format.factor(ready[1], o));
        } else {
          multiply(Format::kSums == SumsOf::kSteps ? of_step[i] : d[i], low, high, v);
        }
      }
    }
    if constexpr (Format::kSums == SumsOf::kSteps) {
#pragma unroll
      for (int i = 0; i < kN8; ++i)
        add_scaled(d[i], of_step[i], format.factor(ready[0], 0), format.factor(ready[1], 0));
    }
  }

  __device__ static float slow_sum(const Job& job, const Format& format, int m, int64_t n) {
    const auto* x = reinterpret_cast<const unsigned short*>(job.x + m * job.x_row);
    const char* codes = job.weight + n * job.weight_row;
    float sum = 0;
    for (int k = 0; k < job.k; ++k) {
      const float v =
          kBf16 ? __uint_as_float(uint32_t{x[k]} << 16) : __half2float(__ushort_as_half(x[k]));
      sum = __fmaf_rn(v, format.value(codes, n, k), sum);
    }
    return sum;
  }

  // A warp's sums of a tile, by warp, row of x and row of the weight.
  __device__ static void put_sums(const Job& job, const Sums& d, float* to, uint32_t& odd) {
    const int g = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    float* own = to + threadIdx.x / 32 * job.rows_of_x * kTileRows;
#pragma unroll
    for (int i = 0; i < kN8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int m = i * 8 + column + e % 2;
        if (m >= job.rows_of_x) continue;
        own[m * kTileRows + g + e / 2 * 8] = d[i][e];
        // x of bf16 may overflow sums that scales would have brought back.
        if (kBf16) odd |= !(fabsf(d[i][e]) <= FLT_MAX);
      }
  }
  __device__ static void finish_tile(const Job& job, const Format& format, int64_t tile, bool odd,
                                     const float* sums) {
    const int all = job.rows_of_x * kTileRows;
    for (int i = threadIdx.x; i < all; i += blockDim.x) {
      const int m = i / kTileRows;
      const int64_t n = tile * kTileRows + i % kTileRows;
      if (n >= job.n) continue;
      float sum = 0;
      if (odd || format.row_is_odd(n)) {
        sum = slow_sum(job, format, m, n);
      } else {
        for (int w = 0; w < blockDim.x / 32; ++w) sum += sums[w * all + i];
        sum *= format.factor() * format.row_factor(n);
      }
      finish(job, m, n, sum);
    }
  }

  __device__ static void run(Weights weights, const Places& places) {
    const Job& job = weights.common();
    const uint32_t start = weights.start();
    const Pairing pairing(weights.high_first());
    Ahead ahead(weights, places.scales);
    uint4* const ring = places.ring + threadIdx.x;
    const int slot_size = kSlots * blockDim.x, warps = blockDim.x / 32;
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) ahead.load(ring + i * slot_size);
    if constexpr (kStaged) stage(job, pairing, places.x);
    const LaneX x(job, pairing, places.x);
    cuda::wait_for_copies<kAhead - 1>();
    __syncthreads();
    uint4* slot = ring;
    int buffer = 0, sums = 0;
    const int sums_size = warps * job.rows_of_x * kTileRows;
    for (int64_t tile = blockIdx.x; tile < weights.tiles(); tile += gridDim.x) {
      const char* scales[2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        scales[h] =
            places.scales + (buffer * kTileRows + threadIdx.x % 32 / 4 + 8 * h) * job.scale_row;
      Sums d = {};
      decltype(auto) format = weights.started(tile);
      uint32_t odd = weights.odd(tile, start);
      int step = threadIdx.x / 32 * kSteps;
#pragma unroll 1
      for (int turn = 0; turn < ahead.turns; ++turn, step += warps * kSteps) {
        if (step + 1 < ahead.steps) {
#pragma unroll
          for (int i = 0; i < kSteps; ++i)
            add(format, x, slot + i * 2 * blockDim.x, scales, step + i, odd, d);
        } else if (step < ahead.steps) {
          add(format, x, slot, scales, step, odd, d);
        }
        ahead.load(slot);
        slot = slot == ring + (kAhead - 1) * slot_size ? ring : slot + slot_size;
        cuda::wait_for_copies<kAhead - 1>();
      }
      float* const at = places.sums + sums * sums_size;
      put_sums(job, d, at, odd);
      // With it the next tile's scales are there for all.
      const bool any_odd = __syncthreads_or(static_cast<int>(odd));
      const TileOf<Format> done = weights.at(tile);
      finish_tile(done.job, done.format, done.tile, any_odd, at);
      if (++buffer == job.scale_buffers) buffer = 0;
      if (job.sum_buffers == 1) __syncthreads();
      sums = job.sum_buffers - 1 - sums;
    }
  }
};

// Shared memory as SharedPlan counts it.
template <class Mma>
__device__ inline typename Mma::Places shared_places(const Job& job) {
  extern __shared__ uint4 ring[];
  char* at = reinterpret_cast<char*>(ring + kAhead * kSlots * blockDim.x);
  typename Mma::Places places;
  places.ring = ring;
  places.scales = at;
  at += job.scale_buffers * kTileRows * job.scale_row;
  places.sums = reinterpret_cast<float*>(at);
  at += job.sum_buffers * (blockDim.x / 32) * job.rows_of_x * kTileRows * 4;
  places.x = reinterpret_cast<uint4*>(at);
  return places;
}

template <bool kBf16, class Format, int kN8, bool kStaged>
__global__ void __launch_bounds__(kN8 == 1 ? 256 : 512, kN8 == 1 ? 3 : 1)
    weight_mma_kernel(const __grid_constant__ Job job, const Format format) {
  using Mma = WeightMma<kBf16, LoneWeight<Format>, kN8, kStaged>;
  Mma::run({job, format}, shared_places<Mma>(job));
}

// The same of several weights, whose results have the bits that each alone has.
template <bool kBf16, class Format, int kN8, bool kStaged>
__global__ void __launch_bounds__(kN8 == 1 ? 256 : 512, kN8 == 1 ? 3 : 1)
    weight_mma_parts_kernel(const __grid_constant__ WeightParts<Format> parts) {
  using Mma = WeightMma<kBf16, SeveralWeights<Format>, kN8, kStaged>;
  Mma::run(SeveralWeights<Format>(parts), shared_places<Mma>(parts.jobs[0]));
}

#endif  // __CUDACC__

}  // namespace pestle::ops::gemv
