// Linear layers whose weight is codes, with many rows of x, by mma.sync and cp.async (sm_80 and
// later): the weight's codes go through shared memory and are decoded in registers.
//
// Map      A CTA of 8 warps takes kTileM rows of x times kTileN rows of the weight. Each warp has
//          32 rows of the weight and all rows of x, so that a code is decoded once a CTA; where
//          kTileN is below 256, warps with the same rows take turns along k and add their sums at
//          the end. x and codes go through a ring of stages of 64 k; scales are fetched a step
//          earlier by a thread a row, and lie in the ring as the format's multipliers.
// k        Products may take k in any order, as long as both operands agree: lane t of four takes
//          the 8 neighbours from 8t on of each 32, which are 16 bytes of x and a word of 4-bit codes.
// Traffic  x and codes once from memory where 16 tiles along m fit the L2; out and residual once.
// Numerics Scaled: code times block scale, exact in x's dtype, times x, summed in f32. Group sums:
//          exact codes times x, summed in f32 over 32 of k, times the scale in f32. A tile that
//          meets a scale or code for which that is not so (Format's `odd`) is made again from f32
//          values as the format's dequantising op gives them. Epilogue in f32, one rounding.
//          Where x is decoded (x_rows.cuh), sums of 32 of k begin anew, too.
// Needs    x along k, its rows and the codes' at multiples of 16 bytes.
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "ops/gemm/select/gemv_parts.h"
#include "ops/gemm/weight_only/finish_rows.cuh"

namespace pestle::cuda::many_rows {

using warp::Kind;

constexpr int kWarpN = 32;

template <bool kBf16_Of, int kTileM_Of, int kWarpsN_Of, class Format, class XOf = PlainRows>
struct Config {
  using X = XOf;
  static constexpr bool kBf16 = kBf16_Of;
  static constexpr Kind kKind = kBf16 ? Kind::kBf16 : Kind::kF16;
  static constexpr int kTileM = kTileM_Of;
  static constexpr int kWarpsN = kWarpsN_Of;
  static constexpr int kWarpsK = kThreads / 32 / kWarpsN;
  static constexpr int kTileN = kWarpN * kWarpsN;
  static constexpr int kBits = Format::kBits;  // of a code
  static constexpr int kStages = 4;
  static constexpr int kCodeRow = kStepK * kBits / 8;
  static constexpr int kXBytes = kTileM * X::kRowBytes;
  static constexpr int kCodeBytes = kTileN * kCodeRow;
  static constexpr int kScaleBytes = kTileN * Format::kScaleBytes;
  static constexpr int kXScaleBytes = kTileM * X::kScaleBytes;
  static constexpr int kStageBytes = kXBytes + kCodeBytes + kScaleBytes + kXScaleBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  // Two decoded stages of x: one is made while the other is multiplied.
  static constexpr int kDecodedBytes = X::kDecoded ? X::kParts * kTileM * kXRow : 0;
  static constexpr int kTablePlace = kRingBytes + 2 * kDecodedBytes;
  static constexpr int kSharedBytes = kTablePlace + Format::kTableBytes;
  static constexpr int kUnits = 2 / kWarpsK;  // of 32 k, a stage and warp
  static constexpr int kM16 = kTileM / 16;    // rows of x by sixteens
  static constexpr int kN8 = kWarpN / 8;
  static constexpr int kStagingRow = kWarpN + 8;
  static constexpr bool kStagesAll = kWarpsN * kTileM * kStagingRow * 4 <= kSharedBytes;
  static_assert(kWarpsK == 1 || kWarpsK == 2);
  static_assert(kTileN <= kThreads && kThreads / 32 * 16 * kStagingRow * 4 <= kSharedBytes);
  static_assert(kWarpsK == 1 || kTileM * kTileN * 4 <= kSharedBytes);
};

#ifdef __CUDACC__

// Reads shared memory at every call: values kept between calls would spill.
__device__ inline float2 read_again(const float* from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(warp::shared_place(from)));
  return v;
}

// Copies of kRows rows of kRowBytes a stage; those past the end become zeros.
template <int kRows, int kRowBytes>
struct Copier {
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kLines = kThreads / kChunks;
  static constexpr int kTimes = (kRows + kLines - 1) / kLines;
  uint32_t from;  // in units of 16 bytes, as 64-bit addresses would take twice the registers
  int left;

  __device__ static int line() { return static_cast<int>(threadIdx.x) / kChunks; }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ Copier(uint32_t row_units, int row0, int rows)
      : from((row0 + line()) * row_units + chunk()), left(rows - row0 - line()) {}
  // The next stage, of which so many bytes of a row are left.
  template <class Place>
  __device__ void copy(const char* data, uint32_t row_units, uint32_t to, const Place& place,
                       int row_bytes_left) {
    const int bytes = max(0, min(16, row_bytes_left - chunk() * 16));
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const int row = line() + i * kLines;
      if (kRows % kLines == 0 || row < kRows)
        copy_async(to + place(row, chunk()), data + uint64_t{from + i * kLines * row_units} * 16,
                   i * kLines < left ? bytes : 0);
    }
    from += kRowBytes / 16;
  }
};

template <class C, class Format>
struct CtaGemm {
  using X = typename C::X;
  static constexpr int kM16 = C::kM16, kN8 = C::kN8;
  // Sums of 32 of k begin anew, and are added in registers.
  static constexpr bool kApart = Format::kGroupSums || X::kDecoded;
  static_assert(!X::kDecoded || C::kBf16);
  using Sums = float[kM16][kN8][4];

  struct Ring {
    const Job& job;
    const X& source;
    Copier<C::kTileM, X::kRowBytes> x;
    Copier<C::kTileN, C::kCodeRow> codes;
    char* memory;
    int scale_row, x_scale_row;
    bool scales;  // does this thread fetch a row's?
    typename Format::Row row;
    bool odd = false;
    typename Format::Fetched fetched;
    typename X::Fetched x_fetched;

    __device__ Ring(const Job& job_, const Format& format, const X& source_, const Tile& tile,
                    char* memory_)
        : job(job_),
          source(source_),
          x(job.x_row, tile.m * C::kTileM, job.m),
          codes(job.weight_row, tile.n * C::kTileN, job.n),
          memory(memory_),
          scale_row(min(tile.n * C::kTileN + static_cast<int>(threadIdx.x), job.n - 1)),
          x_scale_row(min(tile.m * C::kTileM + static_cast<int>(threadIdx.x), job.m - 1)),
          scales(threadIdx.x < C::kTileN),
          row(format.row_at(scale_row)) {}
    __device__ int steps() const { return (job.k + kStepK - 1) / kStepK; }
    __device__ static int slot(int step) { return step % C::kStages; }
    __device__ char* at(int step) const { return memory + slot(step) * C::kStageBytes; }
    __device__ char* scales_at(int step) const { return at(step) + C::kXBytes + C::kCodeBytes; }
    __device__ char* x_scales_at(int step) const { return scales_at(step) + C::kScaleBytes; }
    __device__ char* decoded_at(int step) const {
      return memory + C::kRingBytes + step % 2 * C::kDecodedBytes;
    }
    // What is multiplied of x.
    __device__ const char* x_at(int step) const {
      return X::kDecoded ? decoded_at(step) : at(step);
    }
    __device__ void fill(int step) {
      if (step < steps()) {
        const uint32_t to = warp::shared_place(at(step));
        const int k_left = job.k - step * kStepK;
        x.copy(job.x, job.x_row, to, X::place, X::bytes(k_left));
        codes.copy(job.weight, job.weight_row, to + C::kXBytes, code_place<C::kBits>,
                   k_left * C::kBits / 8);
      }
      commit_copies();
    }
    __device__ void fetch(const Format& format, int step) {
      if (scales && step < steps()) fetched = format.fetch(row, step);
      if constexpr (X::kScaleBytes > 0)
        if (threadIdx.x < C::kTileM && step < steps()) x_fetched = source.fetch(x_scale_row, step);
    }
    __device__ void put(const Format& format, int step) {
      if (scales && step < steps())
        odd |= format.template put<C::kBf16, C::kTileN>(fetched, scale_row, step, threadIdx.x,
                                                        scales_at(step));
      if constexpr (X::kScaleBytes > 0)
        if (threadIdx.x < C::kTileM && step < steps())
          odd |= source.template put<C::kTileM>(x_fetched, x_scale_row, step, x_scales_at(step));
    }
    __device__ void decode_x(int step) {
      if constexpr (X::kDecoded)
        if (step < steps())
          source.template decode<C::kTileM>(at(step), x_scales_at(step), decoded_at(step), odd);
    }
    __device__ void begin(const Format& format) {
      for (int s = 0; s < C::kStages - 1; ++s) fill(s);
#pragma unroll 1
      for (int s = 0; s < C::kStages - 1; ++s) {
        fetch(format, s);
        put(format, s);
      }
      if constexpr (X::kDecoded) {
        wait_for_copies<C::kStages - 2>();
        __syncthreads();
        decode_x(0);
      }
    }
  };

  // What a lane's fragments of the weight are decoded from: 8 codes of each of its 4 rows.
  __device__ static void decode(const Format& format, const char* stage, int unit, bool& odd,
                                uint32_t (&b)[kN8][4]) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int row0 = threadIdx.x / 32 % C::kWarpsN * kWarpN + lane / 4;
    const char* codes = stage + C::kXBytes;
    const char* scales = codes + C::kCodeBytes;
    uint32_t words[kN8][C::kBits / 4];
#pragma unroll
    for (int j = 0; j < kN8; ++j) {
      if constexpr (C::kBits == 4) {
        const char* at = codes + code_place<4>(row0, unit) + j * 8 * 32 + t * 4;
        words[j][0] = *reinterpret_cast<const uint32_t*>(at);
      } else {
        const char* at = codes + code_place<8>(row0, 2 * unit + t / 2) + j * 8 * 64 + t % 2 * 8;
        const uint2 two = *reinterpret_cast<const uint2*>(at);
        words[j][0] = two.x, words[j][1] = two.y;
      }
    }
#pragma unroll
    for (int j = 0; j < kN8; ++j)
      format.template decode<C::kBf16, C::kTileN>(words[j], scales, row0 + 8 * j, unit, t, odd,
                                                  b[j]);
  }

  // 16 rows of x times 8 of the weight: one half of 32 k, and the other.
  __device__ static void multiply_low(float (&d)[4], const uint4& low, const uint4& high,
                                      const uint32_t (&b)[4]) {
    warp::multiply<C::kKind>(d, low.x, high.x, low.y, high.y, b[0], b[1]);
  }
  __device__ static void multiply_high(float (&d)[4], const uint4& low, const uint4& high,
                                       const uint32_t (&b)[4]) {
    warp::multiply<C::kKind>(d, low.z, high.z, low.w, high.w, b[2], b[3]);
  }
  __device__ static void add_sum(float (&d)[4], const float (&sum)[4], const float* of_columns) {
    if constexpr (Format::kGroupSums) {
      const float2 scale = read_again(of_columns);
#pragma unroll
      for (int e = 0; e < 4; ++e) d[e] = __fmaf_rn(sum[e], e % 2 == 0 ? scale.x : scale.y, d[e]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) d[e] += sum[e];
    }
  }
  __device__ static void multiply_unit(const Format& format, const char* x_stage, const char* stage,
                                       int unit, bool& odd, Sums& d) {
    uint32_t b[kN8][4];
    decode(format, stage, unit, odd, b);
    const int lane = threadIdx.x % 32;
    const int column = threadIdx.x / 32 % C::kWarpsN * kWarpN + lane % 4 * 2;
    [[maybe_unused]] const float* of_columns =
        reinterpret_cast<const float*>(stage + C::kXBytes + C::kCodeBytes) + unit * C::kTileN +
        column;
    const char* x = x_stage + x_place(lane / 4, 4 * unit + lane % 4);
#pragma unroll
    for (int i = 0; i < kM16; ++i) {
      uint4 low[X::kParts], high[X::kParts];
#pragma unroll
      for (int p = 0; p < X::kParts; ++p) {
        const char* from = x + (p * C::kTileM + i * 16) * kXRow;
        low[p] = *reinterpret_cast<const uint4*>(from);
        high[p] = *reinterpret_cast<const uint4*>(from + 8 * kXRow);
      }
#pragma unroll
      for (int j = 0; j < kN8; ++j) {
        if constexpr (kApart) {
          float sum[4] = {};
#pragma unroll
          for (int p = X::kParts - 1; p >= 0; --p) {  // the smallest part first
            multiply_low(sum, low[p], high[p], b[j]);
            multiply_high(sum, low[p], high[p], b[j]);
          }
          add_sum(d[i][j], sum, of_columns + 8 * j);
        } else {
          multiply_low(d[i][j], low[0], high[0], b[j]);
        }
      }
      if constexpr (!kApart) {
#pragma unroll
        for (int j = 0; j < kN8; ++j) multiply_high(d[i][j], low[0], high[0], b[j]);
      }
    }
  }

  __device__ static bool is_finite(const Sums& d) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kM16; ++i)
#pragma unroll
      for (int j = 0; j < kN8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) all = all && fabsf(d[i][j][e]) <= 0x1.fffffep127f;
    return all;
  }

  // Sums of the tile; true where they are not to be used.
  __device__ static bool accumulate(const Job& job, const Format& format, const X& source,
                                    const Tile& tile, char* memory, Sums& d) {
    Ring ring(job, format, source, tile, memory);
    ring.begin(format);
#pragma unroll 1
    for (int step = 0; step < ring.steps(); ++step) {
      wait_for_copies<C::kStages - (X::kDecoded ? 3 : 2)>();
      __syncthreads();  // the stage before this one is free
      if (step > 0) ring.put(format, step + C::kStages - 2);
      ring.fill(step + C::kStages - 1);
      ring.fetch(format, step + C::kStages - 1);
      ring.decode_x(step + 1);
      const char* x = ring.x_at(step);
      const char* stage = ring.at(step);
      if constexpr (C::kWarpsK == 1) {
#pragma unroll kApart ? 1 : 2
        for (int unit = 0; unit < 2; ++unit) multiply_unit(format, x, stage, unit, ring.odd, d);
      } else {
        multiply_unit(format, x, stage, threadIdx.x / 32 / C::kWarpsN, ring.odd, d);
      }
    }
    wait_for_copies<0>();
    // x of bf16 may overflow sums that their scales, or terms of the other sign, would have brought
    // back.
    if constexpr ((kApart || Format::kColumnFactors) && C::kBf16) ring.odd |= !is_finite(d);
    return __syncthreads_or(ring.odd);
  }

  // Adds the sums of the warps that took the second half of each stage to those of the first.
  __device__ static void join(char* memory, Sums& d) {
    const int w = threadIdx.x / 32;
    float4* at =
        reinterpret_cast<float4*>(memory) + w % C::kWarpsN * (kM16 * kN8 * 32) + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kM16; ++i)
#pragma unroll
      for (int j = 0; j < kN8; ++j)
        if (w >= C::kWarpsN)
          at[(i * kN8 + j) * 32] = make_float4(d[i][j][0], d[i][j][1], d[i][j][2], d[i][j][3]);
    __syncthreads();
    if (w < C::kWarpsN) {
#pragma unroll
      for (int i = 0; i < kM16; ++i)
#pragma unroll
        for (int j = 0; j < kN8; ++j) {
          const float4 other = at[(i * kN8 + j) * 32];
          d[i][j][0] += other.x, d[i][j][1] += other.y;
          d[i][j][2] += other.z, d[i][j][3] += other.w;
        }
    }
    __syncthreads();
  }

  // 16 rows of a warp's columns, which lie in its shared memory, so that rows are stored in lines.
  template <bool kOfColumns>
  __device__ static void finish_rows(const EpilogueArguments& e, int row0, int column0,
                                     float factor, const float* staging) {
    constexpr int kLanes = kWarpN / 8;  // of a row
    const int lane = threadIdx.x % 32;
    const int first = column0 + lane % kLanes * 8;
    const Columns columns{first, min(8, e.n - first)};
    __syncwarp();
#pragma unroll 1
    for (int r = lane / kLanes; r < 16; r += 32 / kLanes) {
      if (row0 + r < e.m && columns.count > 0)
        finish_row<kOfColumns>(e, columns, row0 + r, factor,
                               staging + r * C::kStagingRow + lane % kLanes * 8);
    }
    __syncwarp();
  }
  __device__ static void stage(float* staging, const float (&d)[kN8][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kN8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* to = staging + (lane / 4 + 8 * h) * C::kStagingRow + j * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = make_float2(d[j][2 * h], d[j][2 * h + 1]);
      }
  }
  __device__ static void finish(const Job& job, const Format& format, const X& source,
                                const Tile& tile, char* memory, const Sums& d) {
    constexpr bool kOfColumns = Format::kColumnFactors;
    const int w = threadIdx.x / 32;
    if (w >= C::kWarpsN) return;
    const int column0 = tile.n * C::kTileN + w * kWarpN;
    const float factor = format.factor() * source.factor();
    if constexpr (C::kStagesAll) {  // so that sums hold no registers below
      float* all = reinterpret_cast<float*>(memory) + w * C::kTileM * C::kStagingRow;
#pragma unroll
      for (int i = 0; i < kM16; ++i) stage(all + i * 16 * C::kStagingRow, d[i]);
#pragma unroll 1
      for (int i = 0; i < kM16; ++i)
        finish_rows<kOfColumns>(job.epilogue, tile.m * C::kTileM + i * 16, column0, factor,
                                all + i * 16 * C::kStagingRow);
      return;
    }
    float* staging = reinterpret_cast<float*>(memory) + w * 16 * C::kStagingRow;
#pragma unroll 1
    for (int i = 0; i < kM16; ++i) {
      // One copy of the code below for all rows: registers have no computed numbers.
#pragma unroll
      for (int from = 0; from < kM16; ++from)
        if (from == i) stage(staging, d[from]);
      finish_rows<kOfColumns>(job.epilogue, tile.m * C::kTileM + i * 16, column0, factor, staging);
    }
  }
  // The same of a tile that is odd.
  __device__ static void finish_odd(const Job& job, const Format& format, const X& source,
                                    const Tile& tile, char* memory) {
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* staging = reinterpret_cast<float*>(memory) + w * 16 * C::kStagingRow;
    const int column0 = tile.n * C::kTileN + w % C::kWarpsN * kWarpN;
#pragma unroll 1
    for (int i = w / C::kWarpsN; i < kM16; i += C::kWarpsK) {
      const int row0 = tile.m * C::kTileM + i * 16;
#pragma unroll 1
      for (int r = 0; r < 16; ++r)
        if (row0 + r < job.m && column0 + lane < job.n)
          staging[r * C::kStagingRow + lane] =
              slow_sum<C::kBf16>(job, format, source, row0 + r, column0 + lane);
      finish_rows<false>(job.epilogue, row0, column0, 1.0f, staging);
    }
  }

  // index: of the tile.
  __device__ static void run(const Job& job, Format format, X source, int index) {
    extern __shared__ __align__(128) char memory[];
    const Tile tile = tile_of(job, index);
    bool odd = format.start();
    odd |= source.start();
    if constexpr (Format::kTableBytes > 0) format.make_table(memory + C::kTablePlace);
    if (!odd) {
      Sums d = {};
      odd = accumulate(job, format, source, tile, memory, d);
      if (!odd) {
        if constexpr (C::kWarpsK > 1) join(memory, d);
        finish(job, format, source, tile, memory, d);
      }
    }
    if (odd) finish_odd(job, format, source, tile, memory);
  }
};

template <class C, class Format>
__global__ void __launch_bounds__(kThreads, C::kWarpsN == 8 ? 1 : 2)
    many_rows_kernel(const __grid_constant__ Job job, const Format format,
                     const typename C::X source) {
  CtaGemm<C, Format>::run(job, format, source, blockIdx.x);
}

// Weights of one x, none of them empty, whose tiles follow one another.
template <class Format>
struct Parts {
  Job jobs[ops::kGemvParts];
  Format formats[ops::kGemvParts];
  ops::GemvParts tiles;
};

// For as few tiles as multiprocessors: two CTAs would not share one. A copy of the code for each weight,
// so that where its job lies costs no registers.
template <class C, class Format>
__global__ void __launch_bounds__(kThreads, 1)
    many_rows_parts_kernel(const __grid_constant__ Parts<Format> all) {
  const int part = all.tiles.part_of(blockIdx.x);
#pragma unroll
  for (int p = 0; p < ops::kGemvParts; ++p)
    if (p == part)
      CtaGemm<C, Format>::run(all.jobs[p], all.formats[p], {}, blockIdx.x - all.tiles.first[p]);
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::many_rows
