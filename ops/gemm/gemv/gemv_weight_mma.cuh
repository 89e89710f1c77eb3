// GEMV with 4-bit weights by mma.sync, up to 16 rows of bf16 or f16 x: the weight is the left operand
// and is decoded in registers, x is the right one.
//
// Map      A CTA takes 16 rows of the weight and all rows of x; its warps take turns along k, 128 a
//          step, and add their sums in shared memory in one order. A lane reads 16 bytes (32 codes) of
//          two rows a step, two steps ahead of their use, and x as 16 bytes a word of codes, out of L1.
//          Nothing waits for another warp before the end.
// k        A product may take k in any order, as long as both operands agree. Where a lane's scales
//          multiply its codes, its 32 codes are 4 products' of its own (chunks); where scales multiply
//          sums, the four lanes of a row exchange words, so that a product's codes share a scale.
// Traffic  the weight and its scales once from memory, x once a CTA from L2.
// Numerics as many_rows.cuh: code times block scale exact in x's dtype, or exact codes whose sums are
//          scaled in f32; CTAs that meet what is not exact (`odd`) begin again from f32 values.
//          Epilogue in f32, one rounding.
// Measured H100, 14336 x 4096, 1 and 16 rows: mxfp4 29.5 and 39 us, nvfp4 40 and 52, int4 61 and 58.
// Needs    rows of x and of the weight at multiples of 16 bytes, K of 32.
#pragma once

#include "ops/gemm/gemv/gemv_weight_only.cuh"
#include "ops/gemm/weight_only/formats.cuh"

namespace pestle::ops {

namespace gemv {

using cuda::many_rows::Int4;
using cuda::many_rows::MxWeight;
using cuda::many_rows::Nvfp4;
using cuda::warp::Kind;

constexpr int kStep = 128;  // of k
constexpr int kTileRows = 16;
constexpr int kMostWarps = 16;
constexpr int kAhead = 2;  // steps

#ifdef __CUDACC__

// ---- formats: scales of a lane's 32 codes of a row, or of all words of a row ----
//   kSums        scales multiply sums: lanes exchange words
//   load         scales of the row for the step whose columns begin at `unit` (of 32); `mine`: the
//                lane's own
//   odd          are they such that sums or products would not be exact?
//   decode       the w-th word of the lane to 4 pairs of neighbours
//   factor       of the w-th word's sums

struct GemvNvfp4 : Nvfp4 {
  static constexpr bool kSums = false;
  using Scales = uint32_t;  // two bytes

  __device__ Scales load(int64_t row, int unit, int mine) const {
    return scale.load<2>(row, (unit + mine) * 2);
  }
  template <bool kBf16>
  __device__ bool is_odd(Scales) const {
    return false;
  }
  template <bool kBf16>
  __device__ void decode(uint32_t word, Scales s, int w, uint32_t (&b)[4]) const {
    const auto byte = static_cast<uint8_t>(s >> (w / 2 * 8));
    const float v = cuda::e4m3_value(byte) * of_scales;
    const uint32_t bits =
        kBf16 ? __float_as_uint(v) >> 16 : uint32_t{__half_as_ushort(__float2half_rn(v))};
    cuda::many_rows::scale_e2m1<kBf16>(word, __byte_perm(bits, 0, 0x1010), high_first, b);
  }
};

// Scaled: for bf16. Of sums: for f16, which does not hold products with scales.
template <bool kSumsOf>
struct GemvMxfp4 : MxWeight {
  static constexpr bool kSums = kSumsOf;
  using Scales = uint32_t;  // a byte for each word, or the lane's own

  __device__ bool start() { return false; }
  __device__ float factor() const { return 1.0f; }
  __device__ Scales load(int64_t row, int unit, int mine) const {
    if constexpr (kSums) return scale.load<4>(row, unit);
    return scale.at(row, unit + mine);
  }
  template <bool kBf16>
  __device__ bool is_odd(Scales s) const {
    bool odd = false;
    if constexpr (kSums) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t e = s >> (8 * w) & 0xFF;
        odd |= e != 255 && e >= 253;
      }
    }
    return odd;
  }
  template <bool kBf16>
  __device__ void decode(uint32_t word, Scales s, int, uint32_t (&b)[4]) const {
    uint32_t by = cuda::many_rows::kF16_2p14;
    if constexpr (!kSums) {
      const float v = formats::f32_from_e8m0(static_cast<uint8_t>(s));
      by = __byte_perm(__float_as_uint(v), 0, 0x3232);
    }
    cuda::many_rows::scale_e2m1<kBf16>(word, by, high_first, b);
  }
  __device__ float factor(Scales s, int w) const {
    return formats::f32_from_e8m0(static_cast<uint8_t>(s >> (8 * w)));
  }
  __device__ float value(const char* row_codes, int64_t row, int k) const {
    return cuda::many_rows::Mx<4, true>{*this}.value(row_codes, row, k);
  }
};

struct GemvInt4 : Int4 {
  static constexpr bool kSums = true;
  static constexpr bool high_first = false;
  struct Scales {
    float scale[4];
    uint32_t zeros;  // a byte for each word
  };

  __device__ Scales load(int64_t row, int unit, int) const {
    Scales s{{0, 0, 0, 0}, 0x08080808u};
    if (zero != nullptr) s.zeros = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int column = (unit + w) * 32;
      if (column >= k) continue;
      const int g = column / group;
      s.scale[w] = scale_at(row, g);
      if (zero != nullptr)
        s.zeros |= uint32_t{__ldg(zero + row * zero_row + g * zero_column)} << (8 * w);
    }
    return s;
  }
  template <bool kBf16>
  __device__ bool is_odd(const Scales& s) const {
    bool odd = false;
#pragma unroll
    for (int w = 0; w < 4; ++w) odd |= Int4::is_odd<kBf16>(s.scale[w], s.zeros >> (8 * w) & 0xFF);
    return odd;
  }
  template <bool kBf16>
  __device__ void decode(uint32_t word, const Scales& s, int w, uint32_t (&b)[4]) const {
    const float offset = -static_cast<float>((kBf16 ? 128 : 1024) + (s.zeros >> (8 * w) & 0xFF));
    const uint32_t bits =
        kBf16 ? __float_as_uint(offset) >> 16 : uint32_t{__half_as_ushort(__float2half_rn(offset))};
    const uint32_t less = __byte_perm(bits, 0, 0x1010);
    const uint32_t codes = zero == nullptr ? word ^ 0x88888888u : word;
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t code = codes >> (4 * i) & 0x000F000Fu;
      p[i] = kBf16 ? cuda::many_rows::add_bf16(code | 0x43004300u, less)
                   : cuda::many_rows::add_f16(code | 0x64006400u, less);
    }
    cuda::many_rows::neighbours(p, false, b);
  }
  __device__ float factor(const Scales& s, int w) const { return s.scale[w]; }
  __device__ float factor() const { return 1.0f; }
};

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

// kN8: eights of rows of x.
template <bool kBf16, class Format, int kN8>
struct WeightMma {
  static constexpr Kind kKind = kBf16 ? Kind::kBf16 : Kind::kF16;
  using Sums = float[kN8][4];

  struct Step {
    uint4 codes[2];
    typename Format::Scales scales[2];
  };

  struct Lane {
    const WeightOnlyJob& job;
    const Format& format;
    int64_t rows[2];
    const char* from[2];
    const char* x[kN8];  // null: no such row
    int t;

    __device__ Lane(const WeightOnlyJob& j, const Format& f, int64_t tile)
        : job(j), format(f), t(threadIdx.x % 4) {
      const int g = threadIdx.x % 32 / 4;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        rows[h] = min(tile * kTileRows + g + 8 * h, job.n - 1);
        from[h] = job.weight + rows[h] * job.weight_row;
      }
#pragma unroll
      for (int i = 0; i < kN8; ++i) {
        const int64_t row = g + 8 * i;
        x[i] = row < job.rows_of_x ? job.x.row_at(row) : nullptr;
      }
    }
    __device__ void load(int step, Step* s) const {
      const int column = step * kStep + t * 32;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool inside = column < job.k;
        s->codes[h] = inside ? __ldcs(reinterpret_cast<const uint4*>(from[h] + column / 2))
                             : make_uint4(0, 0, 0, 0);
        // Of all four words, or the lane's own, which may lie past the end.
        s->scales[h] = {};
        if (Format::kSums || inside) s->scales[h] = format.load(rows[h], step * 4, t);
      }
    }
    // x of word w: 8 columns.
    __device__ uint4 x_of(int i, int step, int w) const {
      const int column = step * kStep + (Format::kSums ? 32 * w + 8 * t : 32 * t + 8 * w);
      if (x[i] == nullptr || column >= job.k) return make_uint4(0, 0, 0, 0);
      return __ldg(reinterpret_cast<const uint4*>(x[i] + int64_t{column} * 2));
    }
  };

  // 16 rows of the weight by 16 of k, times 8 rows of x.
  __device__ static void multiply(float (&d)[4], const uint32_t (&low)[4],
                                  const uint32_t (&high)[4], const uint4& x) {
    cuda::warp::multiply<kKind>(d, low[0], high[0], low[1], high[1], x.x, x.y);
    cuda::warp::multiply<kKind>(d, low[2], high[2], low[3], high[3], x.z, x.w);
  }

  __device__ static bool add(const Lane& lane, int step, const Step& s, Sums& d) {
    uint32_t words[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      words[h][0] = s.codes[h].x, words[h][1] = s.codes[h].y;
      words[h][2] = s.codes[h].z, words[h][3] = s.codes[h].w;
      if constexpr (Format::kSums) exchange(words[h]);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t low[4], high[4];
      lane.format.template decode<kBf16>(words[0][w], s.scales[0], w, low);
      lane.format.template decode<kBf16>(words[1][w], s.scales[1], w, high);
#pragma unroll
      for (int i = 0; i < kN8; ++i) {
        const uint4 x = lane.x_of(i, step, w);
        if constexpr (Format::kSums) {
          float sums[4] = {};
          multiply(sums, low, high, x);
          const float of_low = lane.format.factor(s.scales[0], w);
          const float of_high = lane.format.factor(s.scales[1], w);
          d[i][0] = __fmaf_rn(sums[0], of_low, d[i][0]);
          d[i][1] = __fmaf_rn(sums[1], of_low, d[i][1]);
          d[i][2] = __fmaf_rn(sums[2], of_high, d[i][2]);
          d[i][3] = __fmaf_rn(sums[3], of_high, d[i][3]);
        } else {
          multiply(d[i], low, high, x);
        }
      }
    }
    return lane.format.template is_odd<kBf16>(s.scales[0]) ||
           lane.format.template is_odd<kBf16>(s.scales[1]);
  }

  // The warp's share; true: not exact.
  __device__ static bool accumulate(const Lane& lane, Sums& d) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int steps = static_cast<int>((lane.job.k + kStep - 1) / kStep);
    Step ring[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (warp + i * warps < steps) lane.load(warp + i * warps, &ring[i]);
    bool odd = false;
    for (int step = warp; step < steps; step += kAhead * warps) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int now = step + i * warps, next = now + kAhead * warps;
        if (now >= steps) break;  // all lanes of a warp alike
        const Step s = ring[i];
        if (next < steps) lane.load(next, &ring[i]);
        odd |= add(lane, now, s, d);
      }
    }
    return odd;
  }

  __device__ static float slow_sum(const WeightOnlyJob& job, const Format& format, int64_t m,
                                   int64_t n) {
    const auto* x = reinterpret_cast<const unsigned short*>(job.x.row_at(m));
    const char* codes = job.weight + n * job.weight_row;
    float sum = 0;
    for (int k = 0; k < job.k; ++k) {
      const float v =
          kBf16 ? __uint_as_float(uint32_t{x[k]} << 16) : __half2float(__ushort_as_half(x[k]));
      sum = __fmaf_rn(v, format.value(codes, n, k), sum);
    }
    return sum;
  }

  __device__ static void run(const WeightOnlyJob& job, Format format) {
    __shared__ float shared[kMostWarps][kN8 * 8][kTileRows];
    const int64_t tile = blockIdx.x;
    bool odd = format.start();
    if (!odd) {
      const Lane lane(job, format, tile);
      Sums d = {};
      odd = accumulate(lane, d);
      const int g = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2, warp = threadIdx.x / 32;
#pragma unroll
      for (int i = 0; i < kN8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          shared[warp][i * 8 + column + e % 2][g + e / 2 * 8] = d[i][e];
          // x of bf16 may overflow sums that scales would have brought back.
          if (Format::kSums && kBf16) odd |= !(fabsf(d[i][e]) <= 0x1.fffffep127f);
        }
    }
    odd = __syncthreads_or(odd);
    const float factor = odd ? 1.0f : format.factor();
    for (int i = threadIdx.x; i < job.rows_of_x * kTileRows; i += blockDim.x) {
      const int m = i / kTileRows, row = i % kTileRows;
      const int64_t n = tile * kTileRows + row;
      if (n >= job.n) continue;
      float sum = 0;
      if (odd) {
        sum = slow_sum(job, format, m, n);
      } else {
        for (int w = 0; w < blockDim.x / 32; ++w) sum += shared[w][m][row];
      }
      finish_weight_only(job, m, n, sum * factor);
    }
  }
};

template <bool kBf16, class Format, int kN8>
__global__ void __launch_bounds__(kMostWarps * 32)
    weight_mma_kernel(const __grid_constant__ WeightOnlyJob job, const Format format) {
  WeightMma<kBf16, Format, kN8>::run(job, format);
}

// Warps of a CTA: about 32 a multiprocessor, and no more than steps.
inline int warps_of(const Call& call, const WeightOnlyJob& job) {
  const int64_t tiles = cuda::ceil_div(job.n, kTileRows);
  const int64_t steps = cuda::ceil_div(job.k, kStep);
  const int64_t wanted = 32 * cuda::multiprocessors(cuda::device_index(call)) / tiles;
  int warps = 4;
  while (warps < kMostWarps && warps * 2 <= steps && warps < wanted) warps *= 2;
  return warps;
}

template <bool kBf16, class Format>
Status start_weight_mma(const Call& call, const char* name, const WeightOnlyJob& job,
                        const Format& format) {
  const cuda::Grid grid{.blocks = cuda::ceil_div(job.n, kTileRows),
                        .threads = warps_of(call, job) * 32};
  if (job.rows_of_x <= 8)
    return cuda::launch(call, name, grid, weight_mma_kernel<kBf16, Format, 1>, job, format);
  return cuda::launch(call, name, grid, weight_mma_kernel<kBf16, Format, 2>, job, format);
}

#endif  // __CUDACC__

// Why this kernel does not take a call that gemv_weight_only.cuh takes.
inline std::string refuse_mma(const Call& call, const WeightOnlyArgs& args) {
  const TensorView& x = call.tensor(args.x);
  if (x.dtype == DType::kF32) return "x: is for bf16 and f16";
  if (numel(x) == 0 || call.tensor(args.weight).shape[0] == 0)
    return "is for products that are not empty";
  if (call.tensor(args.weight).shape[1] > INT_MAX / 4) return "K must be below 2^30";
  if (x.strides[x.rank - 1] != 1 && row_length(x) > 1) return "x must lie along k";
  for (int d = 0; d + 1 < x.rank; ++d)
    if (x.shape[d] > 1 && x.strides[d] * 2 % 16 != 0)
      return "x's rows must lie at multiples of 16 bytes";
  return reinterpret_cast<uintptr_t>(x.data) % 16 != 0 ? "x must begin at a multiple of 16 bytes"
                                                       : "";
}

}  // namespace gemv

}  // namespace pestle::ops
