// Weight-only products with few rows of x by mma.sync: the weight is the left operand and is decoded in
// registers, x is the right one.
//
// Map      A CTA makes a tile of 32 rows of the weight for each of its warps along n, and of up to 64
//          rows of x. Warps along k take turns at chunks of two steps; the CTAs of a cluster have a part
//          of k each. A lane copies the codes that it decodes three steps ahead, so that warps don't
//          wait for each other. x of the part stays in shared memory where it fits; else warps with the
//          same k share three chunks of it and meet once a chunk. Scales of the part come once. A warp's
//          fragments of x serve two products.
// Sums     go to the CTA of the cluster that adds them, through its shared memory: fragment i to CTA
//          i mod parts, beside x and codes if there is room; else they take their place, and all wait
//          for all before. A barrier counts their bytes. They are added in one order, and the epilogue is
//          there.
// k        as in gemv_weight_mma.cuh, whose formats these are: of a product any order, so long as both
//          operands agree. x is put into pairs where it lies, by the thread that copied it.
// Traffic  the weight and its scales once from memory (for each 64 rows of x), x once a tile from L2.
// Numerics as gemv_weight_mma.cuh. 32 rows of the weight that meet what is not exact are made again.
// Needs    rows of x and of the weight at multiples of 16 bytes, K of 32.
#pragma once

#include <cfloat>

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/gemm/gemv/gemv_weight_mma.cuh"
#include "ops/gemm/weight_only/cluster_sums.cuh"
#include "ops/gemm/weight_only/few_rows_plan.h"

namespace pestle::ops::few_rows {

using cuda::warp::Kind;
using gemv::SumsOf;

struct FewRowsJob {
  cuda::many_rows::Job job;
  int n_warps, k_warps, parts, chunks;  // as of FewRowsPlan
  int x_slots;
  int scale_row;  // bytes of a row's scales in shared memory
  bool beside;
  int code_place, sum_place, scale_place, flag_place, barrier_place;  // in shared memory
};

// Threads of a CTA at most: sums take registers, and twice as many where scales multiply them.
template <class Format>
constexpr int most_threads(int eights) {
  const int sums = eights * (Format::kSums == SumsOf::kNone ? 1 : 2);
  return sums <= 4 ? 512 : sums <= 8 ? 384 : 256;
}

#ifdef __CUDACC__

template <bool kBf16, class Format, int kN8>
struct FewRows {
  static constexpr int kDepth = kFewRowsDepth;
  static constexpr int kR = kFewRowsOfWarp / 16;  // products that share a fragment of x
  static constexpr int kStep = gemv::kStepOf<Format::kBits>;
  static constexpr int kSteps = kFewRowsSteps;
  static constexpr int kChunk = few_rows_chunk(Format::kBits);
  static constexpr int kOctets = kStep / 32;              // of a lane and step
  static constexpr int kUnits = kStep / 8;                // of 16 bytes, of a row of x and step
  static constexpr int kRowsAt = 32 / (kSteps * kUnits);  // of x, that a warp copies at a time
  // An octet of all rows of x: 64 bytes each. The distance of two octets keeps the lanes apart that copy.
  static constexpr int kXOctet = kN8 * 8 * 64 + 64;
  static constexpr int kXSlice = static_cast<int>(few_rows_x_slice(kN8, Format::kBits));
  static constexpr int kCodeStep = kFewRowsOfWarp * 64;  // bytes of codes, of a warp and step
  static constexpr bool kExchanged = Format::kSums == SumsOf::kOctets;
  using Mma = gemv::WeightMma<kBf16, gemv::LoneWeight<Format>, kN8, true>;
  using Sums = float[kR][kN8][4];

  struct Cta {
    const FewRowsJob& of;
    char *ring, *codes, *scales;  // x begins the ring
    float* sums;
    uint32_t* flags;  // of odd sums, by source and warp along n
    uint64_t* full;   // counts the bytes of both, where k has parts
    int part, tile_n, tile_m;

    __device__ const cuda::many_rows::Job& job() const { return of.job; }
    __device__ int x_rows() const { return min(job().m - tile_m * (kN8 * 8), kN8 * 8); }
    __device__ int first_row() const { return tile_n * of.n_warps * kFewRowsOfWarp; }
  };
  // Warps along n are neighbours.
  struct Warp {
    int n, k, g, t;
    int first_k, turn_k;  // of its first chunk; from one of its chunks to the next
    __device__ explicit Warp(const Cta& cta)
        : n(threadIdx.x / 32 % cta.of.n_warps),
          k(threadIdx.x / 32 / cta.of.n_warps),
          g(threadIdx.x % 32 / 4),
          t(threadIdx.x % 4),
          first_k((cta.part * cta.of.chunks * cta.of.k_warps + k) * kChunk),
          turn_k(cta.of.k_warps * kChunk) {}
    // Those that have the same part of k.
    __device__ void sync_neighbours(const Cta& cta) const {
      asm volatile("bar.sync %0, %1;" ::"r"(k + 1), "r"(cta.of.n_warps * 32) : "memory");
    }
  };

  // ---- copies -----------------------------------------------------------------------------------
  // The thread's 16 bytes of every `row_step`-th row of a chunk of x, for its warp and the neighbours.
  // They lie as fragments want them: by step, octet, row, lane of four.
  struct ThreadX {
    int first_row, row_step, rows;
    int column, left;  // the next chunk's; columns of k from there on
    const char* from;
    uint32_t to;  // in a chunk's place
    int slot_bytes;

    __device__ ThreadX(const Cta& cta, const Warp& warp) {
      const int unit = threadIdx.x % (kSteps * kUnits), step = unit / kUnits, q = unit % kUnits;
      // Eight lanes write to two octets, and read whole sectors.
      const int octet = kExchanged ? q / 4 : q / 8 * 2 + q % 2;
      const int t = kExchanged ? q % 4 : q % 8 / 2;
      first_row = warp.n * kRowsAt + threadIdx.x % 32 / (kSteps * kUnits);
      row_step = cta.of.n_warps * kRowsAt;
      rows = cta.x_rows();
      const int v = kExchanged ? q : t * kOctets + octet;
      column = warp.first_k + step * kStep + v * 8;
      left = cta.job().k - column;
      from = cta.job().x + (int64_t{cta.tile_m} * (kN8 * 8) + first_row) * cta.job().x_row * 16 +
             column * int64_t{2};
      slot_bytes = cta.of.k_warps * kXSlice;
      to = cuda::warp::shared_place(cta.ring) + warp.k * kXSlice +
           (step * kOctets + octet) * kXOctet + first_row * 64 + t * 16;
    }
    // The next chunk.
    __device__ void copy(const Cta& cta, const Warp& warp, int slot) {
      const char* source = from;
      const int bytes = left > 0 ? 16 : 0;
      uint32_t place = to + slot * slot_bytes;
#pragma unroll 4
      for (int row = first_row; row < rows; row += row_step) {
        cuda::copy_async(place, source, bytes);
        source += int64_t{row_step} * cta.job().x_row * 16;
        place += row_step * 64;
      }
      from += warp.turn_k * 2;
      left -= warp.turn_k;
    }
    // Codes of 4 bits become pairs (i, i + 4), and so does x.
    __device__ void pair(const Cta& cta, const gemv::Pairing& pairing, int slot) const {
      if constexpr (Format::kBits != 4) return;
      char* at = cta.ring + (to - cuda::warp::shared_place(cta.ring)) + slot * slot_bytes;
#pragma unroll 4
      for (int row = first_row; row < rows; row += row_step, at += row_step * 64)
        *reinterpret_cast<uint4*>(at) = pairing(*reinterpret_cast<const uint4*>(at));
    }
  };
  // The lane's codes of 32 rows of the weight: copied `kDepth` - 1 steps ahead, read by nobody else.
  struct LaneCodes {
    const char* rows[kR * 2];
    uint32_t to;
    const char* at;
    int left;  // columns from the next step's on

    __device__ LaneCodes(const Cta& cta, const Warp& warp) {
      constexpr int kCodes = 128 / Format::kBits;  // of 16 bytes
      const int first = cta.first_row() + warp.n * kFewRowsOfWarp + warp.g;
      const int column = warp.first_k + warp.t * kCodes;
#pragma unroll
      for (int r = 0; r < kR * 2; ++r)
        rows[r] = cta.job().weight +
                  int64_t{min(first + 8 * r, cta.job().n - 1)} * cta.job().weight_row * 16 +
                  int64_t{column} * Format::kBits / 8;
      left = cta.job().k - column;
      char* own = cta.codes + threadIdx.x / 32 * (kDepth * kCodeStep) + threadIdx.x % 32 * 16;
      at = own;
      to = cuda::warp::shared_place(own);
    }
    // Step `i` of the chunk that is copied. Of a chunk past the part's end nothing.
    __device__ void copy(int slot, int i, bool any) {
      const int bytes = left > i * kStep ? 16 : 0;
      const uint32_t place = to + slot * kCodeStep;
      if (any) {  // zeros would be written where sums lie by then
#pragma unroll
        for (int r = 0; r < kR * 2; ++r)
          cuda::copy_async_of_line(place + r * 512, rows[r] + i * 64, bytes);
      }
      cuda::commit_copies();
    }
    __device__ void next_chunk(const Warp& warp) {
#pragma unroll
      for (int r = 0; r < kR * 2; ++r) rows[r] += warp.turn_k * Format::kBits / 8;
      left -= warp.turn_k;
    }
    __device__ void load(int slot, uint32_t (&words)[kR * 2][4]) const {
#pragma unroll
      for (int r = 0; r < kR * 2; ++r) {
        const uint4 v = *reinterpret_cast<const uint4*>(at + slot * kCodeStep + r * 512);
        words[r][0] = v.x, words[r][1] = v.y, words[r][2] = v.z, words[r][3] = v.w;
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
  // 32 rows of the weight times a step of x, whose fragments of the lane begin at `x`.
  __device__ static void add_step(const Format& format, const char* x, uint32_t (&words)[kR * 2][4],
                                  const char* scales, int scale_row, int step_of_part,
                                  uint32_t& odd, Sums& d) {
    typename Format::Ready ready[kR * 2];
#pragma unroll
    for (int r = 0; r < kR * 2; ++r) {
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
        const uint4 v = *reinterpret_cast<const uint4*>(x + o * kXOctet + i * 512);
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
  // x of the first chunks, which are all where it stays.
  __device__ static void copy_first_x(const Cta& cta, const Warp& warp, bool stays, ThreadX* x) {
    const int first = stays ? cta.of.chunks : kFewRowsSlots - 1;  // of more chunks than slots
#pragma unroll 1
    for (int i = 0; i < first; ++i) x->copy(cta, warp, i);
  }
  __device__ static void multiply_part(const Cta& cta, const Warp& warp, const Format& format,
                                       uint32_t& odd, Sums& d) {
    static_assert(kSteps == 2 && kDepth == 2 * kSteps, "the ring is two chunks of codes");
    const gemv::Pairing pairing(format.high_first);
    const int chunks = cta.of.chunks, slots = cta.of.x_slots;
    const bool stays = slots >= chunks;
    LaneCodes codes(cta, warp);
    ThreadX xs(cta, warp);
    codes.copy(0, 0, true), codes.copy(1, 1, true);
    codes.next_chunk(warp);
    codes.copy(2, 0, chunks > 1);
    copy_first_x(cta, warp, stays, &xs);
    copy_scales(cta, warp, format);
    const Format of_part = of_steps(format, chunks * cta.of.k_warps * kSteps);
    const char* scales = cta.scales + (warp.n * kFewRowsOfWarp + warp.g) * cta.of.scale_row;
    const char* x_of_lane = cta.ring + warp.k * kXSlice + threadIdx.x % 32 * 16;
    cuda::wait_for_all_copies();
    if (stays) {
#pragma unroll 1
      for (int i = 0; i < chunks; ++i) xs.pair(cta, pairing, i);
    }
    __syncthreads();  // scales are of several warps, and x
    int slot = 0, next_slot = kFewRowsSlots - 1;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const char* x = x_of_lane + slot * xs.slot_bytes;
      const int ring = chunk % 2 * kSteps;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        cuda::wait_for_copies<kDepth - 2>();
        if (i == 0 && !stays) {
          xs.pair(cta, pairing, slot);
          warp.sync_neighbours(cta);  // and all have done with the slot that is filled next
          if (chunk + kFewRowsSlots - 1 < chunks) xs.copy(cta, warp, next_slot);
        }
        uint32_t words[kR * 2][4];
        codes.load(ring + i, words);
        // Three steps on: of the next chunk the second step, of the one behind it the first.
        if (i == 0) {
          codes.copy((ring + 3) % kDepth, 1, chunk + 1 < chunks);
          codes.next_chunk(warp);
        } else {
          codes.copy(ring, 0, chunk + 2 < chunks);
        }
        add_step(of_part, x + i * (kOctets * kXOctet), words, scales, cta.of.scale_row,
                 (chunk * cta.of.k_warps + warp.k) * kSteps + i, odd, d);
      }
      if (++slot == slots) slot = 0;
      if (++next_slot == slots) next_slot = 0;
    }
  }

  // ---- sums -------------------------------------------------------------------------------------
  __device__ static int fragments(const Cta& cta) { return cta.of.n_warps * kR * kN8; }
  __device__ static int each(const Cta& cta) {
    return cuda::many_rows::most_added(fragments(cta), cta.of.parts);
  }
  // Before the kernel reads: its barrier, and word of it to the cluster.
  __device__ static void begin_parts(const Cta& cta) {
    if (cta.of.parts == 1) return;
    const int parts = cta.of.parts, sources = parts * cta.of.k_warps;
    if (threadIdx.x == 0) {
      const int bytes =
          cuda::many_rows::bytes_for(cta.part, fragments(cta), parts, sources, cta.of.n_warps);
      cuda::begin_barrier(cta.full);
      cuda::expect_bytes(cta.full, bytes);
    }
    __syncwarp();
    cuda::cluster_begin();
  }
  // Before sums are put: nobody reads what lies there any more.
  __device__ static void wait_for_room(const Cta& cta) {
    if (cta.of.parts == 1) return __syncthreads();
    cuda::cluster_wait();
    if (cta.of.beside) return;
    cuda::cluster_arrive();
    cuda::cluster_wait();
  }
  __device__ static void wait_for_sums(const Cta& cta) {
    if (cta.of.parts == 1)
      __syncthreads();
    else
      cuda::wait_bytes(cta.full, 0);
  }
  template <class T>
  __device__ static void put(const Cta& cta, T* own, int rank, const T& v) {
    if (cta.of.parts == 1)
      *own = v;
    else
      cuda::tell_block(own, cta.full, static_cast<unsigned>(rank), v);
  }
  // Of a warp, to those that add them.
  __device__ static void put_sums(const Cta& cta, const Warp& warp, uint32_t odd, const Sums& d) {
    const int parts = cta.of.parts, lane = threadIdx.x % 32;
    const int source = cta.part * cta.of.k_warps + warp.k;
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
    auto* to = reinterpret_cast<float4*>(cta.sums) + source * each(cta) * 32 + lane;
    cuda::many_rows::put_fragments<kR * kN8>(
        parts, warp.n * (kR * kN8), to, &d[0][0][0],
        [&](float4* own, int rank, const float4& v) { put(cta, own, rank, v); });
  }
  __device__ static void finish(const Cta& cta, const Format& format, bool all_odd) {
    const cuda::many_rows::Job& job = cta.job();
    const int parts = cta.of.parts;
    const cuda::many_rows::ClusterSums sums{
        cta.sums,       cta.flags,      parts,     cta.part,        parts * cta.of.k_warps,
        cta.of.n_warps, fragments(cta), each(cta), cta.first_row(), int64_t{cta.tile_m} * (kN8 * 8),
        cta.x_rows()};
    const float factor = format.factor();
    cuda::many_rows::finish_fragments<kN8, kR>(
        job, sums, threadIdx.x, blockDim.x, all_odd,
        [&](const cuda::many_rows::Columns& columns, int64_t row, bool odd, float*, float(&y)[8]) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            if (j >= columns.count) break;
            const int n = columns.first + j;
            const bool is_odd = odd || format.row_is_odd(n) || (kBf16 && !(fabsf(y[j]) <= FLT_MAX));
            y[j] = is_odd ? cuda::many_rows::slow_sum<kBf16>(job, format,
                                                             cuda::many_rows::PlainRows{}, row, n)
                          : y[j] * (factor * format.row_factor(n));
          }
        });
  }

  __device__ static void run(const FewRowsJob& of, Format format) {
    extern __shared__ uint4 memory[];
    const int n_tiles = of.job.n_tiles, tile = static_cast<int>(blockIdx.x) / of.parts;
    Cta cta{of};
    cta.ring = reinterpret_cast<char*>(memory);
    cta.codes = cta.ring + of.code_place;
    cta.sums = reinterpret_cast<float*>(cta.ring + of.sum_place);
    cta.scales = cta.ring + of.scale_place;
    cta.flags = reinterpret_cast<uint32_t*>(cta.ring + of.flag_place);
    cta.full = reinterpret_cast<uint64_t*>(cta.ring + of.barrier_place);
    cta.part = static_cast<int>(blockIdx.x) - tile * of.parts;
    cta.tile_m = tile / n_tiles;
    cta.tile_n = tile - cta.tile_m * n_tiles;
    begin_parts(cta);
    cuda::wait_previous_kernel();
    const bool all_odd = format.start() != 0;
    if (all_odd) {
      if (of.parts > 1) cuda::cluster_wait();
    } else {
      const Warp warp(cta);
      uint32_t odd = 0;
      Sums d = {};
      multiply_part(cta, warp, format, odd, d);
      cuda::start_next_kernel();
      wait_for_room(cta);
      put_sums(cta, warp, odd, d);
      wait_for_sums(cta);
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
