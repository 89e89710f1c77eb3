// The GEMM on sm_90, a warp-specialised persistent kernel: D[m, n] = sum over k of A[m, k] B[n, k],
// tiles handed to an epilogue.
//
// Map      One CTA an SM: a producer warp (TMA into a ring of kStages), two consumer warpgroups,
//          each 64 rows x kTileN columns of accumulators in registers (wgmma from shared memory),
//          and for each consumer a copy warp that brings what its epilogue needs and takes its
//          results away by TMA, while the next tile's sums are made. A consumer's whole tile of out
//          lies in shared memory at one time: two chunks of 64 columns in memory of their own, the
//          others where its rows of a lay in the tile's last stages, which go back to the ring when
//          they have been stored.
// Overlap  (instances of gemm_overlapped.cu) A tile's sums are copied to other registers and become
//          results between the next tile's first multiplications, four elements a thread after each
//          instruction: a warp's instruction begins when the one before it has been begun, so more
//          between two would idle the tensor cores. 192 columns hold 96 sums and 96 pending ones,
//          and all chunks have memory of their own; 256 have room for 64 pending: the first two
//          chunks are finished at once, the last two later, in the memory of the first two.
// Order    Groups of 16 tiles along m sweep n, so that both operands of what runs at one time fit
//          the L2. Sums run along k in one order: two runs give the same bits.
// Split-K  Where tiles leave much of the last wave idle, each of its tiles is made by several CTAs,
//          a split of k each (gemm_tiles.h). All CTAs run at once, and each has one split at most,
//          as its last work: the one with a tile's last split waits for the others' sums, which
//          pass through the L2, adds them in the order of k and finishes the tile.
// Numerics Sum::kDirect adds all of k in the tensor cores' accumulator. Those of 8-bit floats keep
//          13 bits behind the largest term; Sum::kPromoted and Sum::kBlocks begin anew with each
//          stage (128 of k) and add those sums in f32 registers, kBlocks scaled.
// Traffic  Per tile and 128 bytes of k: 16 KiB of A, kTileN * 128 bytes of B through L2.
// Needs    Code of sm_90a (wgmma, TMA), one CTA an SM with up to 227 KiB of shared memory.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <type_traits>

#include "backends/cuda/device/ptx/hopper.cuh"
#include "backends/cuda/device/ptx/wgmma.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/host/early_launch.h"

namespace pestle::cuda::hopper {

constexpr int kTileM = 128;
constexpr int kRowBytes = 128;               // of k a stage, and of a row of swizzled shared memory
constexpr int kGroup = 16;                   // tiles along m that sweep n together
constexpr int kGemmThreads = 384;            // producer, two consumers
constexpr int kLead = 3;                     // stages of the first consumer before the second; < 4
constexpr int kChunkBytes = 64 * kRowBytes;  // 64 rows

// How sums along k are kept.
enum class Sum { kDirect, kPromoted, kBlocks };

// Decode scales of 1 x 128 of A and of 128 x 128 of B; strides in elements.
struct BlockScales {
  const float* a = nullptr;
  const float* b = nullptr;
  int64_t a_row = 0, a_step = 1;
  int64_t b_row = 0, b_step = 1;
  int m = 0, n_blocks = 0;
};

#ifdef __CUDACC__
// A block's scale is a factor of the terms of a sum: an infinite one is NaN, for terms may be 0 or
// of both signs. (That of a tensor or a row multiplies the finished sum.)
__device__ inline float factor_of_terms(const float* p) {
  const float f = __ldg(p);
  return fabsf(f) == INFINITY ? NAN : f;
}
#endif

struct GemmTiles {
  CUtensorMap a;
  CUtensorMap b;
  BlockScales scales;  // Sum::kBlocks
  int m_tiles = 0;
  int n_tiles = 0;
  int k_steps = 0;  // of kRowBytes
  int total = 0;    // m_tiles * n_tiles * batches
  // Tiles from `whole` on are made in `splits` of k; units: whole tiles and splits.
  int whole = 0, splits = 1, units = 0;
  char* parts = nullptr;     // sums of all but a tile's last split, by consumer
  uint32_t* told = nullptr;  // how many of them are there, by tile and consumer
  int lead = 0;  // steps of k that the first consumer is ahead of the second; 0: as it comes
  int kept = 0;  // last stages of a tile that chunks of out lie in
  // Pairs: the columns of b where the two halves of a tile begin.
  int first_of_pairs = 0, last_of_pairs = 0;
  FastDivisor batch, group, last_group;  // tiles of a matrix, of kGroup rows of tiles; the rest

  // False where there are too many tiles.
  bool cover(int64_t m, int64_t n, int64_t batches, int tile_n) {
    const int64_t down = (m + kTileM - 1) / kTileM, across = (n + tile_n - 1) / tile_n;
    if (batches * down * across > INT_MAX || kGroup * across > INT_MAX) return false;
    m_tiles = static_cast<int>(down);
    n_tiles = static_cast<int>(across);
    total = static_cast<int>(batches * down * across);
    whole = units = total;
    batch = FastDivisor(static_cast<uint32_t>(down * across));
    group = FastDivisor(static_cast<uint32_t>(kGroup * across));
    last_group = FastDivisor(static_cast<uint32_t>(std::max<int64_t>(1, down % kGroup)));
    return true;
  }
};

// What passes between a consumer and its copy warp: chunks of 64 rows x 64 columns of 16 bits.
constexpr int kOwnChunks = 2;
constexpr int kMostChunks = 4;

// Results are made between the next tile's multiplications (Overlapped), or before them.
constexpr int kOverlapSteps = 8;  // of k that an overlapped tile needs at least
struct NotOverlapped {
  static constexpr bool kOverlapped = false;
};
template <int kActivationOf, bool kAddedOf, bool kBf16Of>
struct Overlapped {
  static constexpr bool kOverlapped = true;
  static constexpr int kActivation = kActivationOf;  // ops::Activation
  static constexpr bool kAdded = kAddedOf;           // a residual
  static constexpr bool kBf16 = kBf16Of;             // out and residual; else f16
};

template <WgmmaType kOf, int kN, int kStagesOf, bool kA_AlongK, bool kB_AlongK,
          Sum kSumOf = Sum::kDirect, bool kScaledOf = false, bool kPairsOf = false,
          class EpilogueModeOf = NotOverlapped>
struct GemmConfig {
  using EpilogueMode = EpilogueModeOf;
  // Chunks of out with memory of their own.
  static constexpr int kOwn = EpilogueMode::kOverlapped && kN < 256 ? kN / 64 : kOwnChunks;
  static constexpr WgmmaType kWgmma = kOf;
  static constexpr int kTileN = kN;
  static constexpr int kStages = kStagesOf;
  static constexpr bool kAlongK_A = kA_AlongK;
  static constexpr bool kAlongK_B = kB_AlongK;
  static constexpr Sum kSum = kSumOf;
  static constexpr bool kScaled = kScaledOf;  // factors of rows and columns in the epilogue
  // A tile of b is two boxes of kTileN / 2 columns, and out has half of the columns.
  static constexpr bool kPairs = kPairsOf;
  // Has code for split-K. Sums begun anew fill the registers of 256 columns.
  static constexpr bool kCanSplitK =
      !EpilogueMode::kOverlapped && !kPairs && (kSumOf == Sum::kDirect || kN == 128);
  using Accumulator = std::conditional_t<kOf == WgmmaType::kInt8, int, float>;
};

template <int kOwn = kOwnChunks>
struct ChunksOf {
  char rows[kOwn][kChunkBytes];
};
using Chunks = ChunksOf<>;
struct ChunkBarriers {
  uint64_t ready[2][kMostChunks];               // of each consumer: free, or the residual is there
  uint64_t filled[2][kMostChunks];              // with results
  uint64_t freed[2][kMostChunks - kOwnChunks];  // the products that read its place are done
  uint64_t columns_ready, columns_done;         // factors and biases of the tile's columns
};

template <int kTileN, int kStages, int kOwnOf = kOwnChunks>
struct GemmMemory {
  static constexpr int kRing = kStages;
  static constexpr int kOwn = kOwnOf;  // chunks of a consumer
  static constexpr int kABytes = kTileM * kRowBytes;
  static constexpr int kBBytes = kTileN * kRowBytes;
  char a[kStages][kABytes];
  char b[kStages][kBBytes];
  ChunksOf<kOwn> out[2];      // of each consumer
  float columns[2 * kTileN];  // factors, biases
  uint64_t full[kStages];
  uint64_t empty[kStages];
  ChunkBarriers chunks;
};

#if PESTLE_HOPPER

struct Tile {
  int m, n, batch;  // in tiles
};

__device__ inline Tile tile_at(const GemmTiles& t, int index) {
  const uint32_t batch = t.batch.divide(index);
  const uint32_t i = index - batch * t.batch.divisor;
  const uint32_t group = t.group.divide(i);
  const uint32_t j = i - group * t.group.divisor;
  const int first = static_cast<int>(group) * kGroup;
  const bool whole = t.m_tiles - first >= kGroup;
  const uint32_t n = whole ? j / kGroup : t.last_group.divide(j);
  const uint32_t m = j - n * (whole ? kGroup : t.last_group.divisor);
  return {first + static_cast<int>(m), static_cast<int>(n), static_cast<int>(batch)};
}

// What a CTA makes at a time: a tile, or a split of k of one.
struct Unit {
  Tile tile;
  int first, steps;  // of k
  int split, place;  // of the tile among those that are split
  bool helps;        // another CTA finishes the tile
};

template <bool kCanSplitK = true>
__device__ inline Unit unit_at(const GemmTiles& t, int index) {
  if (!kCanSplitK || index < t.whole) return {tile_at(t, index), 0, t.k_steps, 0, 0, false};
  const int rest = t.total - t.whole;
  const int split = (index - t.whole) / rest, place = index - t.whole - split * rest;
  // Splits of whole fours of steps: factors of blocks are asked for so.
  const int fours = (t.k_steps + 3) / 4;
  const int first = fours * split / t.splits * 4;
  const int end = min(fours * (split + 1) / t.splits * 4, t.k_steps);
  return {tile_at(t, t.whole + place), first, end - first, split, place, split + 1 < t.splits};
}

// Sums of a tile that become results between the next tile's multiplications: all of them, or of a
// wide tile the last two chunks.
template <class EpilogueMode, int kCount, bool = EpilogueMode::kOverlapped>
struct PendingSums {};
template <class EpilogueMode, int kCount>
struct PendingSums<EpilogueMode, kCount, true> {
  static constexpr int kNow = kCount == 128 ? 2 : 0;  // chunks finished at once
  static constexpr int kFirstPiece = kNow * 8, kPieces = kCount / 4 - kFirstPiece;
  static constexpr int kSkip = kNow > 0 ? 2 : 0;  // steps without a piece
  float v[kCount - kNow * 32];
};

// A tile whose results are not made yet.
struct PendingTile {
  uint32_t turn = 0;   // the parity of its barriers
  uint32_t place = 0;  // where this thread's stores of its first chunk begin
  float alpha = 1, beta = 1;
};

// The place in the ring of stages, and how often it went round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Between the consumers, of four warps each, and their copy warps.
__device__ inline void init_chunk_barriers(ChunkBarriers& b) {
  for (int consumer = 0; consumer < 2; ++consumer) {
    for (int i = 0; i < kMostChunks; ++i) {
      init_barrier(&b.ready[consumer][i], 1);
      init_barrier(&b.filled[consumer][i], 4);
    }
    for (uint64_t& freed : b.freed[consumer]) init_barrier(&freed, 1);
  }
  init_barrier(&b.columns_ready, 32);
  init_barrier(&b.columns_done, 8);
}

template <class Config>
struct WarpSpecializedGemm {
  static constexpr WgmmaType kWgmma = Config::kWgmma;
  static constexpr int kTileN = Config::kTileN;
  static constexpr int kStages = Config::kStages;
  static constexpr bool kAlongK_A = Config::kAlongK_A;
  static constexpr bool kAlongK_B = Config::kAlongK_B;
  static constexpr Sum kSum = Config::kSum;
  static constexpr int kElementBytes = is_8_bit(kWgmma) ? 1 : 2;
  static constexpr int kStepK = kRowBytes / kElementBytes;
  static constexpr int kAccumulators = kTileN / 2;
  using Memory = GemmMemory<kTileN, kStages, Config::kOwn>;
  using Accumulator = typename Config::Accumulator;  // float, or int

  // One stage of A: along k a box of 128 rows; across k two boxes of 64 columns of k.
  __device__ static void load_a(Memory& s, int stage, const GemmTiles& t, const Tile& tile,
                                int step) {
    if constexpr (kAlongK_A) {
      load_box(s.a[stage], &t.a, &s.full[stage], step * kStepK, tile.m * kTileM, tile.batch);
    } else {
      for (int c = 0; c < kTileM / 64; ++c)
        load_box(s.a[stage] + c * kChunkBytes, &t.a, &s.full[stage], tile.m * kTileM + c * 64,
                 step * kStepK, tile.batch);
    }
  }

  __device__ static void load_b(Memory& s, int stage, const GemmTiles& t, const Tile& tile,
                                int step) {
    if constexpr (Config::kPairs) {
      constexpr int kHalf = kTileN / 2, kColumns = kAlongK_B ? kHalf : 64;
#pragma unroll
      for (int c = 0; c < kTileN; c += kColumns) {
        const int column =
            tile.n * kHalf + c % kHalf + (c < kHalf ? t.first_of_pairs : t.last_of_pairs);
        load_box(s.b[stage] + c * kRowBytes, &t.b, &s.full[stage],
                 kAlongK_B ? step * kStepK : column, kAlongK_B ? column : step * kStepK,
                 tile.batch);
      }
    } else if constexpr (kAlongK_B) {
      load_box(s.b[stage], &t.b, &s.full[stage], step * kStepK, tile.n * kTileN, tile.batch);
    } else {
      for (int c = 0; c < kTileN / 64; ++c)
        load_box(s.b[stage] + c * kChunkBytes, &t.b, &s.full[stage], tile.n * kTileN + c * 64,
                 step * kStepK, tile.batch);
    }
  }

  // By one thread.
  __device__ static void produce(Memory& s, const GemmTiles& t) {
    Ring<kStages> ring;
    for (int i = blockIdx.x; i < t.units; i += gridDim.x) {
      const Unit unit = unit_at<Config::kCanSplitK>(t, i);
      for (int step = unit.first; step < unit.first + unit.steps; ++step) {
        wait(&s.empty[ring.stage], ring.parity ^ 1);
        arrive_expecting(&s.full[ring.stage], Memory::kABytes + Memory::kBBytes);
        load_a(s, ring.stage, t, unit.tile, step);
        load_b(s, ring.stage, t, unit.tile, step);
        ring.advance();
      }
    }
  }

  // Without a branch, by one thread of a consumer.
  __device__ static void give_back(Memory& s, int stage) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0;\n"
        "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(shared_address(&s.empty[stage])),
        "r"(threadIdx.x % 128)
        : "memory");
  }
  // The last stages of `steps` go to the copy warp.
  __device__ static void release(Memory& s, const GemmTiles& t, int stage, int step, int steps,
                                 int consumer) {
    if constexpr (Config::EpilogueMode::kOverlapped) {
      give_back(s, stage);
      return;
    }
    if (threadIdx.x % 128 != 0) return;
    const int kept = step - (steps - t.kept);
    arrive(kept < 0 ? &s.empty[stage] : &s.chunks.freed[consumer][kept]);
  }

  // The second consumer begins a tile when the first has a lead: else both would come to their
  // epilogues together, and the tensor cores would idle.
  static constexpr int kLeadBarrier = 3;
  __device__ static void let_other_begin() { arrive_threads(kLeadBarrier, 256); }

  // The sums of one tile along `steps` of k; `consumer`: which 64 rows.
  __device__ static void accumulate(Memory& s, const GemmTiles& t, Ring<kStages>& ring, int steps,
                                    int consumer, Accumulator (&d)[kAccumulators]) {
    constexpr int kStepA =
        (kAlongK_A ? 32 : 16 * kRowBytes) >> 4;  // of a descriptor, 32 bytes of k
    constexpr int kStepB = (kAlongK_B ? 32 : 16 * kRowBytes) >> 4;
    int before = -1;
    for (int step = 0; step < steps; ++step) {
      wait(&s.full[ring.stage], ring.parity);
      const uint64_t a = describe<kAlongK_A>(s.a[ring.stage] + consumer * kChunkBytes, kChunkBytes);
      const uint64_t b = describe<kAlongK_B>(s.b[ring.stage], kChunkBytes);
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        multiply<kWgmma, kTileN, kAlongK_A, kAlongK_B>(d, a + i * kStepA, b + i * kStepB,
                                                       step > 0 || i > 0);
      commit_wgmma();
      if (before >= 0) {
        wait_wgmma<1>();
        release(s, t, before, step - 1, steps, consumer);
      }
      if (consumer == 0 && step + 1 == t.lead) let_other_begin();
      before = ring.stage;
      ring.advance();
    }
    wait_wgmma<0>();
    release(s, t, before, steps - 1, steps, consumer);
  }

  // Scales of blocks: those of four stages at a time lie in the four lanes that share rows.
  struct BlockFactors {
    float low = 1, high = 1;                             // of this thread's two rows
    float columns[kTileN / 128 > 0 ? kTileN / 128 : 1];  // of 128 columns each
  };
  __device__ static BlockFactors ask_factors(const GemmTiles& t, const Tile& tile, int consumer,
                                             int first) {
    BlockFactors f;
    const BlockScales& s = t.scales;
    const int step = min(first + static_cast<int>(threadIdx.x % 4), t.k_steps - 1);
    const int row =
        tile.m * kTileM + consumer * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    if (row < s.m) f.low = factor_of_terms(s.a + row * s.a_row + step * s.a_step);
    if (row + 8 < s.m) f.high = factor_of_terms(s.a + (row + 8) * s.a_row + step * s.a_step);
#pragma unroll
    for (int h = 0; h < kTileN / 128; ++h) {
      const int block = min(tile.n * (kTileN / 128) + h, s.n_blocks - 1);
      f.columns[h] = factor_of_terms(s.b + block * s.b_row + step * s.b_step);
    }
    return f;
  }
  // What sums of one stage are multiplied by.
  struct StageFactors {
    float low[kTileN / 128 > 0 ? kTileN / 128 : 1];
    float high[kTileN / 128 > 0 ? kTileN / 128 : 1];
  };
  __device__ static StageFactors factors_of(const BlockFactors& four, int step) {
    StageFactors f;
    const float low = __shfl_sync(~0u, four.low, step % 4, 4);
    const float high = __shfl_sync(~0u, four.high, step % 4, 4);
#pragma unroll
    for (int h = 0; h < kTileN / 128; ++h) {
      const float column = __shfl_sync(~0u, four.columns[h], step % 4, 4);
      f.low[h] = low * column;
      f.high[h] = high * column;
    }
    return f;
  }
  // The factors of the steps in turn; asks for the next four's when the last of four is handed out.
  struct FactorsAhead {
    BlockFactors four;
    // `first`: a multiple of four.
    __device__ void begin(const GemmTiles& t, const Tile& tile, int consumer, int first) {
      if constexpr (kSum == Sum::kBlocks) four = ask_factors(t, tile, consumer, first);
    }
    __device__ StageFactors at(const GemmTiles& t, const Tile& tile, int consumer, int step) {
      StageFactors f = {};
      if constexpr (kSum == Sum::kBlocks) {
        f = factors_of(four, step);
        if (step % 4 == 3) four = ask_factors(t, tile, consumer, step + 1);
      }
      return f;
    }
  };

  // The same sums, begun anew each stage and added in f32 registers, 128 columns at a time.
  __device__ static void accumulate_halves(Memory& s, const GemmTiles& t, Ring<kStages>& ring,
                                           const Unit& unit, int consumer,
                                           float (&d)[kAccumulators]) {
    static_assert(kTileN % 128 == 0);
    constexpr bool kBlocks = kSum == Sum::kBlocks;
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) d[i] = 0;
    FactorsAhead factors;
    factors.begin(t, unit.tile, consumer, unit.first);
    for (int step = 0; step < unit.steps; ++step) {
      const StageFactors f = factors.at(t, unit.tile, consumer, unit.first + step);
      wait(&s.full[ring.stage], ring.parity);
      const uint64_t a = describe<true>(s.a[ring.stage] + consumer * kChunkBytes, kChunkBytes);
#pragma unroll
      for (int h = 0; h < kTileN / 128; ++h) {
        const uint64_t b = describe<true>(s.b[ring.stage] + h * 2 * kChunkBytes, kChunkBytes);
        float part[64];
        fence_wgmma();
#pragma unroll
        for (int i = 0; i < 4; ++i)
          multiply<kWgmma, 128, true, true>(part, a + i * 2, b + i * 2, i > 0);
        commit_wgmma();
        wait_wgmma<0>();
        if (h + 1 == kTileN / 128) release(s, t, ring.stage, step, unit.steps, consumer);
        if (h == 0 && consumer == 0 && step + 1 == t.lead) let_other_begin();
#pragma unroll
        for (int i = 0; i < 64; ++i) {
          float& sum = d[h * 64 + i];
          sum = kBlocks ? fmaf(part[i], i % 4 < 2 ? f.low[h] : f.high[h], sum) : sum + part[i];
        }
      }
      ring.advance();
    }
  }

  // The same for tiles of 256 columns, 64 at a time, two such parts in turns: one is added while
  // the tensor cores make the other. A comes from registers, so that each part reads no more than
  // its own B from shared memory.
  using Part = float[32];
  __device__ static void load_fragments(const char* a, uint32_t (&f)[4][4]) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + (lane / 8 & 1) * 8 + lane % 8;
    const uint32_t from = shared_address(a) + row * kRowBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) load_matrices(from + ((2 * i + lane / 16) ^ (row % 8)) * 16, f[i]);
  }
  __device__ static void start_part(const uint32_t (&a)[4][4], uint64_t b, Part& part) {
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_registers<kWgmma>(part, a[i], b + i * 2, i > 0);
    commit_wgmma();
  }
  template <int kPart>
  __device__ static void add_part(const StageFactors& f, const Part& part,
                                  float (&d)[kAccumulators]) {
    constexpr bool kBlocks = kSum == Sum::kBlocks;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float& sum = d[kPart * 32 + i];
      sum = kBlocks ? fmaf(part[i], i % 4 < 2 ? f.low[kPart / 2] : f.high[kPart / 2], sum)
                    : sum + part[i];
    }
  }
  __device__ static void accumulate_parts(Memory& s, const GemmTiles& t, Ring<kStages>& ring,
                                          const Unit& unit, int consumer,
                                          float (&d)[kAccumulators]) {
    static_assert(kTileN == 256);
    constexpr int kNext = (64 * kRowBytes) >> 4;  // of a descriptor, the next part's columns
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) d[i] = 0;
    FactorsAhead factors;
    factors.begin(t, unit.tile, consumer, unit.first);
    for (int step = 0; step < unit.steps; ++step) {
      const StageFactors f = factors.at(t, unit.tile, consumer, unit.first + step);
      wait(&s.full[ring.stage], ring.parity);
      uint32_t a[4][4];
      load_fragments(s.a[ring.stage] + consumer * kChunkBytes, a);
      const uint64_t b = describe<true>(s.b[ring.stage], kChunkBytes);
      Part one, two;
      start_part(a, b, one);
      start_part(a, b + kNext, two);
      wait_wgmma<1>();
      add_part<0>(f, one, d);
      start_part(a, b + 2 * kNext, one);
      wait_wgmma<1>();
      add_part<1>(f, two, d);
      start_part(a, b + 3 * kNext, two);
      wait_wgmma<1>();
      add_part<2>(f, one, d);
      wait_wgmma<0>();
      release(s, t, ring.stage, step, unit.steps, consumer);
      ring.advance();
      if (consumer == 0 && step + 1 == t.lead) let_other_begin();
      add_part<3>(f, two, d);
    }
  }

  __device__ static void init(Memory& s) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&s.full[i], 1);
      init_barrier(&s.empty[i], 2);
    }
    init_chunk_barriers(s.chunks);
    publish_barriers();
  }

  // Four sums of a thread of a consumer, and 128 threads' beside one another.
  struct alignas(16) Quad {
    Accumulator v[4];
  };
  static constexpr int kQuads = kAccumulators / 4;
  __device__ static Quad* part_at(const GemmTiles& t, const Unit& unit, int split, int consumer) {
    const int64_t part = int64_t{unit.place} * (t.splits - 1) + split;
    return reinterpret_cast<Quad*>(t.parts) + (part * 2 + consumer) * kQuads * 128 +
           threadIdx.x % 128;
  }
  __device__ static uint32_t* told_of(const GemmTiles& t, const Unit& unit, int consumer) {
    return t.told + unit.place * 2 + consumer;
  }
  // The sums of a split for the CTA that finishes the tile.
  __device__ static void give_part(const GemmTiles& t, const Unit& unit, int consumer,
                                   const Accumulator (&d)[kAccumulators]) {
    Quad* to = part_at(t, unit, unit.split, consumer);
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      to[i * 128] = {d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]};
    __threadfence();
    sync_threads(1 + consumer, 128);
    if (threadIdx.x % 128 == 0) count_up(told_of(t, unit, consumer));
  }
  // d, the last split's sums, plus those of the others, one after the other along k.
  __device__ static void add_parts(const GemmTiles& t, const Unit& unit, int consumer,
                                   Accumulator (&d)[kAccumulators]) {
    const auto others = static_cast<uint32_t>(t.splits - 1);
    if (threadIdx.x % 128 == 0) wait_count(told_of(t, unit, consumer), others);
    sync_threads(1 + consumer, 128);
    const Quad* from = part_at(t, unit, 0, consumer);
#pragma unroll 1
    for (uint32_t split = 0; split < others; ++split, from += 2 * kQuads * 128) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const Quad more = load_quad(from + i * 128);
#pragma unroll
        for (int j = 0; j < 4; ++j) d[4 * i + j] += more.v[j];
      }
    }
  }
  // Past the L1, which other CTAs' stores do not reach.
  __device__ static Quad load_quad(const Quad* from) {
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(from));
    return __builtin_bit_cast(Quad, words);
  }

  template <class Epilogue>
  __device__ static void consume(Memory& s, const GemmTiles& t, const Epilogue& epilogue,
                                 int consumer) {
    Ring<kStages> ring;
    uint32_t turn = 0;
    for (int i = blockIdx.x; i < t.units; i += gridDim.x, turn ^= 1) {
      Accumulator d[kAccumulators];
      const Unit unit = unit_at<Config::kCanSplitK>(t, i);
      const auto factors = epilogue.row_factors(unit.tile, consumer);
      if (consumer == 1 && t.lead > 0) sync_threads(kLeadBarrier, 256);
      if constexpr (kSum == Sum::kDirect)
        accumulate(s, t, ring, unit.steps, consumer, d);
      else if constexpr (kTileN == 128)
        accumulate_halves(s, t, ring, unit, consumer, d);
      else
        accumulate_parts(s, t, ring, unit, consumer, d);
      if (unit.helps) {
        give_part(t, unit, consumer, d);
        return;
      }
      if (unit.split > 0) add_parts(t, unit, consumer, d);
      epilogue.finish_tile(s, ring.stage, turn, unit.tile, consumer, factors, d);
    }
  }

  using Sums = PendingSums<typename Config::EpilogueMode, kAccumulators>;
  // The sums of a tile, and between its first multiplications the results of the one before.
  template <class Epilogue>
  __device__ static void accumulate_overlapped(Memory& s, const GemmTiles& t, Ring<kStages>& ring,
                                               int consumer, const Epilogue& epilogue,
                                               const PendingTile& tile, Sums& pending,
                                               Accumulator (&d)[kAccumulators]) {
    using EpilogueMode = typename Config::EpilogueMode;
    constexpr int kStepA = (kAlongK_A ? 32 : 16 * kRowBytes) >> 4;
    constexpr int kStepB = (kAlongK_B ? 32 : 16 * kRowBytes) >> 4;
    constexpr int kSteps = Sums::kSkip + Sums::kPieces / 4;
    uint32_t old[4] = {};
    int before = -1;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wait(&s.full[ring.stage], ring.parity);
      const uint64_t a = describe<kAlongK_A>(s.a[ring.stage] + consumer * kChunkBytes, kChunkBytes);
      const uint64_t b = describe<kAlongK_B>(s.b[ring.stage], kChunkBytes);
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        multiply<kWgmma, kTileN, kAlongK_A, kAlongK_B>(d, a + i * kStepA, b + i * kStepB,
                                                       step > 0 || i > 0);
        if (i == 3) {
          commit_wgmma();
          if (step > 0) {
            wait_wgmma<1>();
            release(s, t, before, step - 1, t.k_steps, consumer);
          }
        }
        if (step < Sums::kSkip) continue;
        epilogue.template finish_pending<EpilogueMode>(s, (step - Sums::kSkip) * 4 + i, consumer,
                                                       tile, pending, old);
      }
      before = ring.stage;
      ring.advance();
    }
    for (int step = kSteps; step < t.k_steps; ++step) {
      wait(&s.full[ring.stage], ring.parity);
      const uint64_t a = describe<kAlongK_A>(s.a[ring.stage] + consumer * kChunkBytes, kChunkBytes);
      const uint64_t b = describe<kAlongK_B>(s.b[ring.stage], kChunkBytes);
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        multiply<kWgmma, kTileN, kAlongK_A, kAlongK_B>(d, a + i * kStepA, b + i * kStepB, true);
      commit_wgmma();
      wait_wgmma<1>();
      release(s, t, before, step - 1, t.k_steps, consumer);
      before = ring.stage;
      ring.advance();
    }
    wait_wgmma<0>();
    release(s, t, before, t.k_steps - 1, t.k_steps, consumer);
  }

  template <class Epilogue>
  __device__ static void consume_overlapped(Memory& s, const GemmTiles& t, const Epilogue& epilogue,
                                            int consumer) {
    Ring<kStages> ring;
    using EpilogueMode = typename Config::EpilogueMode;
    Accumulator d[kAccumulators];
    Sums pending;
    PendingTile tile = epilogue.pending_tile(s, consumer);
    auto rows = epilogue.row_factors(tile_at(t, blockIdx.x), consumer);
    accumulate(s, t, ring, t.k_steps, consumer, d);
    epilogue.template defer<EpilogueMode>(s, consumer, tile, rows, d, pending);
    for (int i = blockIdx.x + gridDim.x; i < t.total; i += gridDim.x) {
      if constexpr (Config::kScaled) rows = epilogue.row_factors(tile_at(t, i), consumer);
      accumulate_overlapped(s, t, ring, consumer, epilogue, tile, pending, d);
      tile.turn ^= 1;
      epilogue.template defer<EpilogueMode>(s, consumer, tile, rows, d, pending);
    }
    uint32_t old[4] = {};
#pragma unroll
    for (int p = 0; p < Sums::kPieces; ++p)
      epilogue.template finish_pending<EpilogueMode>(s, p, consumer, tile, pending, old);
  }

  // Before any CTA counts.
  __device__ static void clear_counts(const GemmTiles& t) {
    if (blockIdx.x == 0) {
      for (int i = threadIdx.x; i < 2 * (t.total - t.whole); i += kGemmThreads) t.told[i] = 0;
    }
    cooperative_groups::this_grid().sync();
  }

  template <class Epilogue>
  __device__ static void run(const GemmTiles& t, const Epilogue& epilogue) {
    extern __shared__ __align__(1024) char raw[];
    Memory& s = *reinterpret_cast<Memory*>(raw);
    if (threadIdx.x == 0) {
      init(s);
      prefetch_map(&t.a);
      prefetch_map(&t.b);
    }
    cuda::wait_previous_kernel();
    __syncthreads();
    if (Config::kCanSplitK && t.splits > 1) clear_counts(t);
    int warpgroup = threadIdx.x / 128;
    // By a shuffle: the compiler knows it for the same in a warp and makes the places of operands
    // in uniform registers. Overlapped kernels gain 1 to 2 %; in others no difference was shown.
    if constexpr (Config::EpilogueMode::kOverlapped) warpgroup = __shfl_sync(~0u, warpgroup, 0);
    if (warpgroup == 0) {
      give_registers<40>();
      const int warp = threadIdx.x / 32;
      if (threadIdx.x == 0) {
        produce(s, t);
      } else if (warp == 1 || warp == 2) {
        if constexpr (Config::EpilogueMode::kOverlapped)
          epilogue.template copy_overlapped<kTileN>(s, t, warp - 1);
        else
          epilogue.template copy_chunks<kTileN>(s, t, warp - 1);
      } else if (warp == 3) {
        epilogue.template hand_columns<kTileN>(s, t);
      }
    } else {
      take_registers<232>();
      if constexpr (Config::EpilogueMode::kOverlapped)
        consume_overlapped(s, t, epilogue, warpgroup - 1);
      else
        consume(s, t, epilogue, warpgroup - 1);
    }
  }
};

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
