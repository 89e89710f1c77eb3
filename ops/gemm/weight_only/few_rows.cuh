// Weight-only products with few rows of x by mma.sync: the weight is the left operand and is decoded in
// registers, x is the right one.
//
// Map      A CTA makes a tile of 32 rows of the weight for each of its warps along n, and of up to 64
//          rows of x. Warps along k take turns at chunks of 128; the CTAs of a cluster have a part of k
//          each. x and codes come through a ring of four stages by cp.async, codes where the lane that
//          decodes them reads them, so that only x has to wait for others; scales of the part come once.
//          A warp's fragments of x serve two products.
// Sums     go to the CTA of the cluster that adds them, through its shared memory, where the ring was:
//          fragment i to CTA i mod parts. They are added in one order, and the epilogue is there.
// k        as in gemv_weight_mma.cuh, whose formats these are: of a product any order, so long as both
//          operands agree. x is put into pairs where it lies, by the thread that copied it.
// Traffic  the weight and its scales once from memory (for each 64 rows of x), x once a tile from L2.
// Numerics as gemv_weight_mma.cuh. 32 rows of the weight that meet what is not exact are made again.
// Needs    rows of x and of the weight at multiples of 16 bytes, K of 32.
#pragma once

#include <cfloat>

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/gemm/gemv/gemv_weight_mma.cuh"
#include "ops/gemm/weight_only/few_rows_plan.h"
#include "ops/gemm/weight_only/finish_rows.cuh"

namespace pestle::ops::few_rows {

using cuda::warp::Kind;
using gemv::SumsOf;

struct FewRowsJob {
  cuda::many_rows::Job job;
  int n_warps, k_warps, parts, chunks;  // as of FewRowsPlan
  int scale_row;                        // bytes of a row's scales in shared memory
  int ring_bytes;
};

// Threads of a CTA at most: sums of 64 rows of x take registers, and twice as many where scales multiply
// sums.
template <class Format>
constexpr int most_threads(int eights) {
  if (eights < 8) return 512;
  return Format::kSums == SumsOf::kNone ? 384 : 256;
}

#ifdef __CUDACC__

template <bool kBf16, class Format, int kN8>
struct FewRows {
  static constexpr int kStages = kFewRowsStages;
  static constexpr int kR = kFewRowsOfWarp / 16;  // products that share a fragment of x
  static constexpr int kStep = gemv::kStepOf<Format::kBits>;
  static constexpr int kSteps = kFewRowsChunk / kStep;  // of a chunk
  static constexpr int kOctets = kStep / 32;            // of a lane and step
  static constexpr int kUnits = kStep / 8;              // of 16 bytes, of a row of x and step
  static constexpr int kChunkUnits = kFewRowsChunk / 8;
  static constexpr int kXRow = kFewRowsChunk * 2;
  static constexpr int kXBytes = kN8 * 8 * kXRow;  // of a warp along k and stage
  static constexpr int kSlots = kSteps * kR * 2;   // of codes, of a lane and stage
  static constexpr bool kExchanged = Format::kSums == SumsOf::kOctets;
  using Mma = gemv::WeightMma<kBf16, gemv::LoneWeight<Format>, kN8, true>;
  using Sums = float[kR][kN8][4];

  struct Cta {
    const FewRowsJob& of;
    char* ring;
    char* scales;
    uint32_t* flags;  // of odd sums, by source and warp along n
    int part, tile_n, tile_m;

    __device__ const cuda::many_rows::Job& job() const { return of.job; }
    __device__ int x_rows() const { return min(job().m - tile_m * (kN8 * 8), kN8 * 8); }
    __device__ int first_row() const { return tile_n * of.n_warps * kFewRowsOfWarp; }
    __device__ int first_k() const { return part * of.chunks * of.k_warps * kFewRowsChunk; }
    __device__ int stage_bytes() const { return of.k_warps * kXBytes + kSlots * 16 * blockDim.x; }
    __device__ char* stage(int chunk) const { return ring + chunk % kStages * stage_bytes(); }
  };
  // Warps along n are neighbours.
  struct Warp {
    int n, k, g, t;
    __device__ explicit Warp(const Cta& cta)
        : n(threadIdx.x / 32 % cta.of.n_warps),
          k(threadIdx.x / 32 / cta.of.n_warps),
          g(threadIdx.x % 32 / 4),
          t(threadIdx.x % 4) {}
  };

  // ---- copies -----------------------------------------------------------------------------------
  // The 16 bytes of rows of x that are the thread's, of every stage: the same columns of every
  // `row_step`-th row, whose number has the same parity. Octets of a step that a product takes together
  // are neighbours in shared memory, and no two of eight lanes meet in a bank.
  struct ThreadX {
    int first_row, row_step, rows;
    int column, place;  // in a stage
    const char* from;

    __device__ explicit ThreadX(const Cta& cta) {
      const int units = cta.of.k_warps * kChunkUnits, shift = 31 - __clz(units);
      const int unit = threadIdx.x & (units - 1), v = unit % kUnits;
      const int step = unit % kChunkUnits / kUnits;
      first_row = threadIdx.x >> shift;
      row_step = blockDim.x >> shift;
      rows = cta.x_rows();
      column = unit * 8;
      place = unit / kChunkUnits * kXBytes + first_row * kXRow +
              ((step * kUnits + (kExchanged ? v : v % kOctets * 4 + v / kOctets)) ^ (first_row & 1)
                                                                                        << 2) *
                  16;
      from = cta.job().x + (int64_t{cta.tile_m} * (kN8 * 8) + first_row) * cta.job().x_row * 16 +
             (cta.first_k() + column) * int64_t{2};
    }
    __device__ void copy(const Cta& cta, int chunk) const {
      const int before = chunk * cta.of.k_warps * kFewRowsChunk;
      const bool inside = cta.first_k() + before + column < cta.job().k;
      const char* source = inside ? from + before * int64_t{2} : cta.job().x;
      const int64_t distance = inside ? int64_t{row_step} * cta.job().x_row * 16 : 0;
      uint32_t to = cuda::warp::shared_place(cta.stage(chunk)) + place;
#pragma unroll 4
      for (int row = first_row; row < rows; row += row_step) {
        cuda::copy_async(to, source, inside ? 16 : 0);
        source += distance;
        to += row_step * kXRow;
      }
    }
    // Codes of 4 bits become pairs (i, i + 4), and so does x.
    __device__ void pair(const Cta& cta, const gemv::Pairing& pairing, int chunk) const {
      if constexpr (Format::kBits != 4) return;
      char* at = cta.stage(chunk) + place;
#pragma unroll 4
      for (int row = first_row; row < rows; row += row_step, at += row_step * kXRow)
        *reinterpret_cast<uint4*>(at) = pairing(*reinterpret_cast<const uint4*>(at));
    }
  };
  struct CodeRows {
    const char* rows[kR * 2];
    __device__ CodeRows(const Cta& cta, const Warp& warp) {
      const int first = cta.first_row() + warp.n * kFewRowsOfWarp + warp.g;
#pragma unroll
      for (int r = 0; r < kR * 2; ++r)
        rows[r] = cta.job().weight +
                  int64_t{min(first + 8 * r, cta.job().n - 1)} * cta.job().weight_row * 16;
    }
    __device__ void copy(const Cta& cta, const Warp& warp, int chunk) const {
      constexpr int kCodes = 128 / Format::kBits;  // of a lane's 16 bytes
      const int first = cta.first_k() + (chunk * cta.of.k_warps + warp.k) * kFewRowsChunk;
      const uint32_t to =
          cuda::warp::shared_place(cta.stage(chunk) + cta.of.k_warps * kXBytes) + threadIdx.x * 16;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int column = first + i * kStep + warp.t * kCodes;
        const bool inside = column < cta.job().k;
        const int64_t at = int64_t{column} * Format::kBits / 8;
#pragma unroll
        for (int r = 0; r < kR * 2; ++r)
          cuda::copy_async_of_line(to + (i * kR * 2 + r) * blockDim.x * 16,
                                   inside ? rows[r] + at : cta.job().weight, inside ? 16 : 0);
      }
    }
  };
  __device__ static void copy_scales(const Cta& cta, const Warp& warp, const Format& format) {
    const int line = warp.n * kFewRowsOfWarp + threadIdx.x % 32;
    const int steps = cta.of.chunks * cta.of.k_warps * kSteps;
    const gemv::SomeSteps some{cta.part * steps, steps, warp.k, cta.of.k_warps};
    format.copy_row(min(cta.first_row() + line, cta.job().n - 1), some,
                    cta.scales + line * cta.of.scale_row);
  }

  // ---- products ---------------------------------------------------------------------------------
  // A lane's fragments of x of a chunk.
  struct LaneX {
    const char* at[2];  // of octets of even and of odd number
    __device__ LaneX(const Cta& cta, const Warp& warp, int chunk) {
      const char* row = cta.stage(chunk) + warp.k * kXBytes + warp.g * kXRow + warp.t * 16;
      at[0] = row + (warp.g & 1) * 64;
      at[1] = row + (1 - (warp.g & 1)) * 64;
    }
    __device__ uint4 load(int i, int step, int o) const {
      return *reinterpret_cast<const uint4*>(at[o & 1] + i * (8 * kXRow) + step * (kUnits * 16) +
                                             o / 2 * 128);
    }
  };

  // 32 rows of the weight times a step of x.
  __device__ static void add_step(const Format& format, const LaneX& x, const char* codes,
                                  const char* scales, int scale_row, int step_of_part, int step,
                                  uint32_t& odd, Sums& d) {
    uint32_t words[kR * 2][4];
    typename Format::Ready ready[kR * 2];
#pragma unroll
    for (int r = 0; r < kR * 2; ++r) {
      const uint4 v = *reinterpret_cast<const uint4*>(
          codes + (step * kR * 2 + r) * static_cast<int>(blockDim.x) * 16);
      words[r][0] = v.x, words[r][1] = v.y, words[r][2] = v.z, words[r][3] = v.w;
      ready[r] =
          format.template ready<kBf16>(scales + r * 8 * scale_row, words[r], step_of_part, odd);
      if constexpr (kExchanged) gemv::exchange(words[r]);
    }
    Sums of_step;
    if constexpr (Format::kSums == SumsOf::kSteps) {
#pragma unroll
      for (int e = 0; e < kR * kN8 * 4; ++e) (&of_step[0][0][0])[e] = 0;
    }
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      uint32_t p[kR * 2][4];
#pragma unroll
      for (int r = 0; r < kR * 2; ++r)
        format.template decode<kBf16>(words[r], o, ready[r], odd, p[r]);
#pragma unroll
      for (int i = 0; i < kN8; ++i) {
        const uint4 v = x.load(i, step, o);
#pragma unroll
        for (int r = 0; r < kR; ++r) {
          if constexpr (kExchanged) {
            float sums[4] = {};
            Mma::multiply(sums, p[2 * r], p[2 * r + 1], v);
            Mma::add_scaled(d[r][i], sums, format.factor(ready[2 * r], o),
                            format.factor(ready[2 * r + 1], o));
          } else {
            Mma::multiply(Format::kSums == SumsOf::kSteps ? of_step[r][i] : d[r][i], p[2 * r],
                          p[2 * r + 1], v);
          }
        }
      }
    }
    if constexpr (Format::kSums == SumsOf::kSteps) {
#pragma unroll
      for (int r = 0; r < kR; ++r)
#pragma unroll
        for (int i = 0; i < kN8; ++i)
          Mma::add_scaled(d[r][i], of_step[r][i], format.factor(ready[2 * r], 0),
                          format.factor(ready[2 * r + 1], 0));
    }
  }

  // The format as scales of so many steps lie in shared memory.
  __device__ static Format of_steps(const Format& format, [[maybe_unused]] int steps) {
    if constexpr (requires { format.of_steps(steps); })
      return format.of_steps(steps);
    else
      return format;
  }
  __device__ static void multiply_part(const Cta& cta, const Warp& warp, const Format& format,
                                       uint32_t& odd, Sums& d) {
    const gemv::Pairing pairing(format.high_first);
    const CodeRows rows(cta, warp);
    const ThreadX xs(cta);
    const int chunks = cta.of.chunks;
    copy_scales(cta, warp, format);
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < chunks) rows.copy(cta, warp, i), xs.copy(cta, i);
      cuda::commit_copies();
    }
    const Format of_part = of_steps(format, chunks * cta.of.k_warps * kSteps);
    const char* scales = cta.scales + (warp.n * kFewRowsOfWarp + warp.g) * cta.of.scale_row;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      cuda::wait_for_copies<kStages - 2>();
      xs.pair(cta, pairing, chunk);
      __syncthreads();  // and all have done with the stage that is filled next
      const int next = chunk + kStages - 1;
      if (next < chunks) rows.copy(cta, warp, next), xs.copy(cta, next);
      cuda::commit_copies();
      const LaneX x(cta, warp, chunk);
      const char* codes = cta.stage(chunk) + cta.of.k_warps * kXBytes + threadIdx.x * 16;
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        add_step(of_part, x, codes, scales, cta.of.scale_row,
                 (chunk * cta.of.k_warps + warp.k) * kSteps + i, i, odd, d);
    }
  }

  // ---- sums -------------------------------------------------------------------------------------
  __device__ static void sync(const Cta& cta) {
    if (cta.of.parts == 1) return __syncthreads();
    cuda::cluster_arrive();
    cuda::cluster_wait();
  }
  template <class T>
  __device__ static void put(const Cta& cta, T* own, int rank, const T& v) {
    if (cta.of.parts == 1)
      *own = v;
    else
      cuda::store_to_block(own, static_cast<unsigned>(rank), v);
  }
  // Of a warp, to those that add them.
  __device__ static void put_sums(const Cta& cta, const Warp& warp, uint32_t odd, const Sums& d) {
    const int parts = cta.of.parts, lane = threadIdx.x % 32;
    const int source = cta.part * cta.of.k_warps + warp.k;
    const int all = cta.of.n_warps * kR * kN8, each = (all + parts - 1) / parts;
    if (kBf16) {
#pragma unroll
      for (int r = 0; r < kR; ++r)
#pragma unroll
        for (int i = 0; i < kN8; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            // x of bf16 may overflow sums that scales would have brought back.
            const bool is_read = i * 8 + warp.t * 2 + e % 2 < cta.x_rows();
            odd |= is_read && !(fabsf(d[r][i][e]) <= FLT_MAX);
          }
    }
    const bool any_odd = __any_sync(0xFFFFFFFFu, odd != 0);
    if (lane < parts)
      put(cta, cta.flags + source * cta.of.n_warps + warp.n, lane, uint32_t{any_odd});
    auto* to = reinterpret_cast<float4*>(cta.ring) + source * each * 32 + lane;
    int f = warp.n * (kR * kN8);
#pragma unroll
    for (int r = 0; r < kR; ++r)
#pragma unroll
      for (int i = 0; i < kN8; ++i, ++f) {
        const int of = f / parts;
        put(cta, to + of * 32, f - of * parts,
            make_float4(d[r][i][0], d[r][i][1], d[r][i][2], d[r][i][3]));
      }
  }
  // Eight neighbours of a row of out, from fragment `local` of those that this CTA adds. Lanes of odd
  // fragments read them in another order than those of even ones, so that none meet in a bank.
  __device__ static void add_sums(const Cta& cta, int local, int each, int unit, float (&y)[8]) {
    const auto* from = reinterpret_cast<const float*>(cta.ring) + local * 128 + unit % 8 / 2 * 4 +
                       unit / 8 * 2 + unit % 2;
    const int swap = local & 1;
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = 0;
#pragma unroll 1
    for (int s = 0; s < cta.of.parts * cta.of.k_warps; ++s, from += each * 128) {
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const float a = from[(j + swap) * 16], b = from[(j + 1 - swap) * 16];
        y[j] += swap ? b : a;
        y[j + 1] += swap ? a : b;
      }
    }
  }
  __device__ static void finish(const Cta& cta, const Format& format, bool all_odd) {
    const cuda::many_rows::Job& job = cta.job();
    const int parts = cta.of.parts, sources = parts * cta.of.k_warps;
    const int all = cta.of.n_warps * kR * kN8, each = (all + parts - 1) / parts;
    const float factor = format.factor();
#pragma unroll 1
    for (int q = threadIdx.x; q < each * 16; q += blockDim.x) {
      const int local = q / 16, unit = q % 16, fragment = local * parts + cta.part;
      const int lines = fragment / kN8;
      const int m = fragment % kN8 * 8 + unit % 8;
      const int n = cta.first_row() + lines * 16 + unit / 8 * 8;
      if (fragment >= all || m >= cta.x_rows() || n >= job.n) continue;
      const int64_t row = int64_t{cta.tile_m} * (kN8 * 8) + m;
      const cuda::many_rows::Columns columns{n, min(8, job.n - n)};
      alignas(16) float y[8];
      bool odd = all_odd;
      if (!all_odd) {
        add_sums(cta, local, each, unit, y);
        for (int s = 0; s < sources; ++s) odd |= cta.flags[s * cta.of.n_warps + lines / kR] != 0;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j >= columns.count) break;
        const bool is_odd = odd || format.row_is_odd(n + j) || (kBf16 && !(fabsf(y[j]) <= FLT_MAX));
        y[j] = is_odd ? cuda::many_rows::slow_sum<kBf16>(job, format, cuda::many_rows::PlainRows{},
                                                         row, n + j)
                      : y[j] * (factor * format.row_factor(n + j));
      }
      cuda::many_rows::finish_row<false>(job.epilogue, columns, row, 1.0f, y);
    }
  }

  __device__ static void run(const FewRowsJob& of, Format format) {
    extern __shared__ uint4 memory[];
    cuda::wait_previous_kernel();
    const int n_tiles = of.job.n_tiles, tile = static_cast<int>(blockIdx.x) / of.parts;
    Cta cta{of};
    cta.ring = reinterpret_cast<char*>(memory);
    cta.scales = cta.ring + of.ring_bytes;
    cta.flags =
        reinterpret_cast<uint32_t*>(cta.scales + of.n_warps * kFewRowsOfWarp * of.scale_row);
    cta.part = static_cast<int>(blockIdx.x) - tile * of.parts;
    cta.tile_m = tile / n_tiles;
    cta.tile_n = tile - cta.tile_m * n_tiles;
    const bool all_odd = format.start() != 0;
    if (!all_odd) {
      const Warp warp(cta);
      uint32_t odd = 0;
      Sums d = {};
      multiply_part(cta, warp, format, odd, d);
      cuda::start_next_kernel();
      sync(cta);  // nobody reads the ring any more
      put_sums(cta, warp, odd, d);
      sync(cta);
    }
    finish(cta, format, all_odd);
  }
};

template <bool kBf16, class Format, int kN8>
__global__ void __launch_bounds__(most_threads<Format>(kN8), 1)
    few_rows_kernel(const __grid_constant__ FewRowsJob job, const Format format) {
  FewRows<kBf16, Format, kN8>::run(job, format);
}

#endif  // __CUDACC__

}  // namespace pestle::ops::few_rows
