// The GEMM by mma.sync and cp.async, for every GPU from sm_80 on and for operands that
// TMA refuses: D[m, n] = sum over k of A[m, k] * B[k, n], then the epilogue.
//
// Map      A CTA of 8 warps takes 128 x kTileN of out, a warp 64 x kTileN / 4 in registers. Both
//          operands go through a ring of stages of kRowBytes of k in shared memory. Copied: 16
//          bytes at a time by cp.async, stored as they lie in memory, along k or across it
//          (ldmatrix transposes 16-bit ones); tails of k, m and n become zeros as they are copied.
//          Whole tiles, with K of whole stages, have a loop of their own: nothing to zero, and
//          addresses that are a register and a constant.
//          Guarded: element by element through registers, for any strides; stored along k.
// Order    Groups of 16 tiles along m sweep n, so that operands of neighbours are in the L2. Sums
//          run along k in one order: two runs give the same bits.
// Traffic  A and B once from memory where a group fits the L2; out and residual once.
// Numerics f32 sums of bf16 and f16 products; 8-bit floats become f16, exactly; 8-bit integers
//          exactly in s32. Epilogue in f32, one rounding.
// Measured H200, bf16, sustained: 417 TFLOP/s at 4096^3, 397 at 4608 x 12288 x 3072; guarded 39 to
//          45 (ops/gemm/matmul/matmul.md).
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "ops/gemm/epilogue/fused_epilogue.cuh"

namespace pestle::cuda::portable_gemm {

using hopper::EpilogueArguments;
using warp::Kind;

constexpr int kTileM = 128;
constexpr int kThreads = 256;
constexpr int kGroup = 16;       // tiles along m that sweep n together
constexpr int kWarpsAlongN = 4;  // and two along m

// One operand; its rows are those of m or n. Strides in bytes.
struct Side {
  const char* data = nullptr;
  int64_t row_stride = 0, k_stride = 0, batch_stride = 0;
  int rows = 0;
  bool e5m2 = false;     // of 8-bit floats
  bool widened = false;  // guarded: codes in memory, f16 in shared memory
  bool along_k = true;   // guarded: neighbouring lanes take neighbours of k
};

struct Job {
  EpilogueArguments epilogue;
  Side a, b;
  int k = 0;  // elements
  int m_tiles = 0, n_tiles = 0;
};

template <Kind kKindOf, bool kA_AlongK, bool kB_AlongK, bool kGuardedOf, int kTileN_Of,
          int kRowBytesOf, int kStagesOf>
struct Config {
  static constexpr Kind kKind = kKindOf;
  static constexpr bool kAlongA = kA_AlongK, kAlongB = kB_AlongK;
  static constexpr bool kGuarded = kGuardedOf;
  static constexpr int kTileN = kTileN_Of;
  static constexpr int kRowBytes = kRowBytesOf;  // of k a stage
  static constexpr int kStages = kStagesOf;
  static constexpr int kBytes = warp::is_8_bit(kKind) ? 1 : 2;  // of an element
  static constexpr int kStepK = kRowBytes / kBytes;
  static constexpr int kUnits = kRowBytes / 32;  // of one instruction's k, a stage
  static constexpr int kABytes = kTileM * kRowBytes;
  static constexpr int kBBytes = kTileN * kRowBytes;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kWarpN = kTileN / kWarpsAlongN;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kGuarded || (kAlongA && kAlongB) || kBytes == 2);
  // What finishing a tile needs: 16 rows of a warp's columns as f32.
  static constexpr int kStagingRow = kWarpN + 8;
  static_assert(kThreads / 32 * 16 * kStagingRow * 4 <= kSharedBytes);
};

#ifdef __CUDACC__

// Where 16 bytes of a row along k lie: so that 8 rows of one column meet in no bank.
template <int kRowBytes>
__device__ inline int along_place(int row, int chunk) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  const int flip = kRowBytes == 64 ? row / 2 % 4 : row % 8;
  return row * kRowBytes + (chunk ^ flip) * 16;
}
// The same of a row across k, of kRows elements of 16 bits.
template <int kRows>
__device__ inline int across_place(int k, int chunk) {
  return k * (kRows * 2) + (chunk ^ (k % 8)) * 16;
}

// Copies of one operand by cp.async: what a thread keeps over the steps of k.
template <class C, int kRows, bool kAlong>
struct Copier {
  static constexpr int kRowBytes = C::kRowBytes;
  static constexpr int kChunks = kAlong ? kRowBytes / 16 : kRows / 8;  // of 16 bytes, a row
  static constexpr int kLines = kThreads / kChunks;  // of shared memory that the CTA fills at once
  static constexpr int kTimes = (kAlong ? kRows : C::kStepK) / kLines;
  static_assert(kLines % 8 == 0);

  const char* from;               // of a stage
  const char* at;                 // of the next part
  int64_t line_step, stage_step;  // bytes
  int place, left, k_left;        // left: rows along k, bytes across it

  __device__ Copier(const Side& side, int row0, int batch, int k) {
    const int chunk = threadIdx.x % kChunks, line = threadIdx.x / kChunks;
    from = side.data + batch * side.batch_stride;
    if constexpr (kAlong) {
      from += (row0 + line) * side.row_stride + chunk * 16;
      line_step = kLines * side.row_stride;
      stage_step = kRowBytes;
      place = along_place<kRowBytes>(line, chunk);
      left = side.rows - row0 - line;
      k_left = k * C::kBytes - chunk * 16;
    } else {
      from += line * side.k_stride + (row0 + chunk * 8) * 2;
      line_step = kLines * side.k_stride;
      stage_step = C::kStepK * side.k_stride;
      place = across_place<kRows>(line, chunk);
      left = max(0, min(16, (side.rows - row0 - chunk * 8) * 2));
      k_left = k - line;
    }
  }
  // Part kPart of kParts of the next stage's bytes, to the operand's part of it at `to`.
  template <int kPart, int kParts>
  __device__ void copy(uint32_t to) {
    if constexpr (kPart == 0) at = from;
#pragma unroll
    for (int i = kPart * kTimes / kParts; i < (kPart + 1) * kTimes / kParts; ++i) {
      const int bytes = kAlong ? (i * kLines < left ? max(0, min(16, k_left)) : 0)
                               : (i * kLines < k_left ? left : 0);
      constexpr int kLineBytes = kAlong ? kRowBytes : kRows * 2;
      copy_async(to + place + i * kLines * kLineBytes, at, bytes);
      at += line_step;
    }
    if constexpr (kPart + 1 == kParts) {
      from += stage_step;
      k_left -= kAlong ? kRowBytes : C::kStepK;
    }
  }
};

// Elements one by one: words of neighbours along k in registers, stored a step later.
template <class C, int kRows>
struct Gatherer {
  static constexpr int kWordsOfRow = C::kRowBytes / 4;
  static constexpr int kWords = kRows * kWordsOfRow / kThreads;
  static constexpr int kOfWord = 4 / C::kBytes;  // elements

  const Side& side;
  const char* from;
  int offset, word_step, row, row_step, word, word_step_k, k_left;
  uint32_t words[kWords];

  __device__ Gatherer(const Side& s, int row0, int batch, int k) : side(s), k_left(k) {
    const int lane = threadIdx.x;
    row = s.along_k ? lane / kWordsOfRow : lane % kRows;
    word = s.along_k ? lane % kWordsOfRow : lane / kRows;
    row_step = s.along_k ? kThreads / kWordsOfRow : 0;
    word_step_k = s.along_k ? 0 : kThreads / kRows;
    from = s.data + batch * s.batch_stride + row0 * s.row_stride;
    const int k_bytes = static_cast<int>(s.k_stride) * kOfWord;
    offset = row * static_cast<int>(s.row_stride) + word * k_bytes;
    word_step = row_step * static_cast<int>(s.row_stride) + word_step_k * k_bytes;
    rows_left = s.rows - row0;
  }
  int rows_left;

  template <int kElementBytes>
  __device__ uint32_t gather(const char* p, int count) const {
    uint32_t w = 0;
#pragma unroll
    for (int e = 0; e < kOfWord; ++e) {
      if (e < count) {
        const char* element = p + e * static_cast<int>(side.k_stride);
        if constexpr (kElementBytes == 2)
          w |= uint32_t{__ldg(reinterpret_cast<const unsigned short*>(element))} << (16 * e);
        else
          w |= uint32_t{__ldg(reinterpret_cast<const unsigned char*>(element))} << (8 * e);
      }
    }
    return w;
  }
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const bool inside = row + i * row_step < rows_left;
      const int count = inside ? k_left - (word + i * word_step_k) * kOfWord : 0;
      const char* p = from + offset + i * word_step;
      if constexpr (C::kKind == Kind::kInt8)
        words[i] = gather<1>(p, count);
      else if (C::kKind == Kind::kF16 && side.widened)
        words[i] = warp::widen(gather<1>(p, count), side.e5m2).x;
      else
        words[i] = gather<2>(p, count);
    }
    from += C::kStepK * side.k_stride;
    k_left -= C::kStepK;
  }
  __device__ void store(char* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int r = row + i * row_step, w = word + i * word_step_k;
      *reinterpret_cast<uint32_t*>(to + along_place<C::kRowBytes>(r, w / 4) + w % 4 * 4) = words[i];
    }
  }
};

template <class C>
struct Fragments {
  static constexpr int kEights = C::kWarpN / 8;
  uint32_t a[4][4];
  uint32_t b[kEights][2];

  // Of one unit of k of a stage: 16 rows of a.
  __device__ void load_a(uint32_t stage, int unit, int i) {
    const int lane = threadIdx.x % 32;
    const int m0 = threadIdx.x / 32 / kWarpsAlongN * 64;
    int place;
    if constexpr (C::kAlongA)
      place = along_place<C::kRowBytes>(m0 + i * 16 + lane % 16, 2 * unit + lane / 16);
    else
      place = across_place<kTileM>(unit * 16 + lane % 8 + lane / 16 * 8,
                                   (m0 + i * 16) / 8 + lane / 8 % 2);
    warp::load_fragments<!C::kAlongA>(stage + place, a[i][0], a[i][1], a[i][2], a[i][3]);
  }
  // 16 columns of b.
  __device__ void load_b(uint32_t stage, int unit, int i) {
    const int lane = threadIdx.x % 32;
    const int n0 = threadIdx.x / 32 % kWarpsAlongN * C::kWarpN;
    int place;
    if constexpr (C::kAlongB)
      place = along_place<C::kRowBytes>(n0 + i * 16 + lane % 8 + lane / 16 * 8,
                                        2 * unit + lane / 8 % 2);
    else
      place = across_place<C::kTileN>(unit * 16 + lane % 16, n0 / 8 + i * 2 + lane / 16);
    warp::load_fragments<!C::kAlongB>(stage + C::kABytes + place, b[2 * i][0], b[2 * i][1],
                                      b[2 * i + 1][0], b[2 * i + 1][1]);
  }
  __device__ void load(uint32_t stage, int unit) {
#pragma unroll
    for (int i = 0; i < 4; ++i) load_a(stage, unit, i);
#pragma unroll
    for (int i = 0; i < kEights / 2; ++i) load_b(stage, unit, i);
  }
};

template <class C>
struct WgmmaType {
  static constexpr int kEights = C::kWarpN / 8;
  using Sum = warp::SumOf<C::kKind>;
  using Sums = Sum[4][kEights][4];

  __device__ static void multiply_codes(Sums& d, const Fragments<C>& f, bool a_e5m2, bool b_e5m2) {
    // A half of the codes of k at a time: codes 0 to 3 of each lane, then the 4 that are 16 on.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint2 b[kEights];
#pragma unroll
      for (int j = 0; j < kEights; ++j) b[j] = warp::widen(f.b[j][h], b_e5m2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 low = warp::widen(f.a[i][2 * h], a_e5m2);
        const uint2 high = warp::widen(f.a[i][2 * h + 1], a_e5m2);
#pragma unroll
        for (int j = 0; j < kEights; ++j)
          warp::multiply<C::kKind>(d[i][j], low.x, high.x, low.y, high.y, b[j].x, b[j].y);
      }
    }
  }
  __device__ static void multiply(Sums& d, const Fragments<C>& f, const Job& job) {
    if constexpr (C::kKind == Kind::kCodes) {
      multiply_codes(d, f, job.a.e5m2, job.b.e5m2);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < kEights; ++j)
          warp::multiply<C::kKind>(d[i][j], f.a[i][0], f.a[i][1], f.a[i][2], f.a[i][3], f.b[j][0],
                                   f.b[j][1]);
    }
  }

  struct Tile {
    int m, n, batch;
  };
  __device__ static Tile tile_of(const Job& job) {
    const int per_batch = job.m_tiles * job.n_tiles;
    const int batch = blockIdx.x / per_batch;
    const int i = blockIdx.x - batch * per_batch;
    const int width = kGroup * job.n_tiles;
    const int first = i / width * kGroup;
    const int rows = min(job.m_tiles - first, kGroup);
    const int j = i % width;
    return {first + j % rows, j / rows, batch};
  }

  // Multiplies `now` while `next` is loaded, a little at a time: loads in one go would keep the
  // warp's products waiting for their queue.
  __device__ static void multiply_and_load(Sums& d, const Fragments<C>& now, Fragments<C>& next,
                                           uint32_t stage, int unit, const Job& job) {
    if constexpr (C::kKind == Kind::kCodes) {
      next.load(stage, unit);
      multiply(d, now, job);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        next.load_a(stage, unit, i);
        if (i < kEights / 2) next.load_b(stage, unit, i);
#pragma unroll
        for (int j = 0; j < kEights; ++j)
          warp::multiply<C::kKind>(d[i][j], now.a[i][0], now.a[i][1], now.a[i][2], now.a[i][3],
                                   now.b[j][0], now.b[j][1]);
      }
    }
  }

  // Both operands' copies, and the ring of stages.
  struct Ring {
    Copier<C, kTileM, C::kAlongA> a;
    Copier<C, C::kTileN, C::kAlongB> b;
    uint32_t base;
    int steps;

    __device__ Ring(const Job& job, const Tile& tile, char* memory)
        : a(job.a, tile.m * kTileM, tile.batch, job.k),
          b(job.b, tile.n * C::kTileN, tile.batch, job.k),
          base(warp::shared_place(memory)),
          steps((job.k + C::kStepK - 1) / C::kStepK) {}
    __device__ uint32_t at(int stage) const { return base + stage * C::kStageBytes; }
    __device__ static int after(int stage) { return stage + 1 == C::kStages ? 0 : stage + 1; }
    __device__ static int before(int stage) { return stage == 0 ? C::kStages - 1 : stage - 1; }
    // Part kPart of kParts of step `step`.
    template <int kPart, int kParts>
    __device__ void fill(int step, int stage) {
      if (step < steps) {
        a.template copy<kPart, kParts>(at(stage));
        b.template copy<kPart, kParts>(at(stage) + C::kABytes);
      }
      if constexpr (kPart + 1 == kParts) commit_copies();
    }
    __device__ void begin() {
      for (int s = 0; s < C::kStages - 1; ++s) fill<0, 1>(s, s);
    }
  };

  template <int kUnit>
  __device__ static void do_unit(Ring& ring, Fragments<C> (&f)[2], int step, int stage,
                                 const Job& job, Sums& d) {
    constexpr int kUnits = C::kUnits;
    constexpr bool kLast = kUnit + 1 == kUnits;
    if constexpr (kLast) {
      wait_for_copies<C::kStages - 2>();
      __syncthreads();
    } else {
      ring.template fill<kUnit, kUnits - 1>(step + C::kStages - 1, Ring::before(stage));
    }
    multiply_and_load(d, f[kUnit % 2], f[(kUnit + 1) % 2],
                      ring.at(kLast ? Ring::after(stage) : stage), (kUnit + 1) % kUnits, job);
    if constexpr (!kLast) do_unit<kUnit + 1>(ring, f, step, stage, job, d);
  }

  // The next unit's fragments are on their way while one is multiplied; a stage is filled again
  // when the barrier has passed behind which nobody reads it.
  __device__ static void accumulate_copied(const Job& job, const Tile& tile, char* memory,
                                           Sums& d) {
    static_assert(C::kUnits % 2 == 0);
    Ring ring(job, tile, memory);
    ring.begin();
    wait_for_copies<C::kStages - 2>();
    __syncthreads();
    Fragments<C> f[2];
    f[0].load(ring.base, 0);
    int stage = 0;
    for (int step = 0; step < ring.steps; ++step) {
      do_unit<0>(ring, f, step, stage, job, d);
      stage = Ring::after(stage);
    }
    wait_for_copies<0>();
  }

  // ---- whole tiles: nothing is zeroed, and every address is a register and a constant ----

  // Copies of one operand where the tile has all its rows and all of k.
  template <int kRows, bool kAlong>
  struct WholeCopier {
    using General = Copier<C, kRows, kAlong>;
    const char* from;
    const char* at;
    int64_t line_step, stage_step;
    uint32_t place;

    __device__ WholeCopier(const Side& side, int row0, int batch, int k, uint32_t base) {
      const General general(side, row0, batch, k);
      from = general.from;
      line_step = general.line_step;
      stage_step = general.stage_step;
      place = base + general.place;
    }
    template <int kPart, int kParts>
    __device__ void copy(uint32_t stage) {
      constexpr int kTimes = General::kTimes;
      constexpr int kLineBytes = kAlong ? C::kRowBytes : kRows * 2;
      if constexpr (kPart == 0) at = from;
#pragma unroll
      for (int i = kPart * kTimes / kParts; i < (kPart + 1) * kTimes / kParts; ++i) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         place + stage + i * General::kLines * kLineBytes),
                     "l"(at)
                     : "memory");
        at += line_step;
      }
      if constexpr (kPart + 1 == kParts) from += stage_step;
    }
  };

  // Where a warp's fragments lie in the first stage: along k the swizzle asks for an address a unit
  // of k, across it for one each 16 rows. The other of both, and the stage, are constants.
  template <bool kAlong, int kRows>
  struct Places {
    uint32_t at[4];
    __device__ Places(uint32_t base, int row0, int along_row, int along_chunk, int across_k,
                      int across_chunk) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kAlong)
          at[i] = base + along_place<C::kRowBytes>(row0 + along_row, 2 * i + along_chunk);
        else
          at[i] = base + across_place<kRows>(across_k, row0 / 8 + 2 * i + across_chunk);
      }
    }
    __device__ uint32_t of(int unit, int i) const {
      return kAlong ? at[unit] + i * 16 * C::kRowBytes : at[i] + unit * 16 * kRows * 2;
    }
  };

  struct Whole {
    WholeCopier<kTileM, C::kAlongA> a;
    WholeCopier<C::kTileN, C::kAlongB> b;
    Places<C::kAlongA, kTileM> a_at;
    Places<C::kAlongB, C::kTileN> b_at;
    int steps, step = 0;

    __device__ Whole(const Job& job, const Tile& tile, uint32_t base, int lane, int warp)
        : a(job.a, tile.m * kTileM, tile.batch, job.k, base),
          b(job.b, tile.n * C::kTileN, tile.batch, job.k, base + C::kABytes),
          a_at(base, warp / kWarpsAlongN * 64, lane % 16, lane / 16, lane % 8 + lane / 16 * 8,
               lane / 8 % 2),
          b_at(base + C::kABytes, warp % kWarpsAlongN * C::kWarpN, lane % 8 + lane / 16 * 8,
               lane / 8 % 2, lane % 16, lane / 16),
          steps(job.k / C::kStepK) {}
    template <int kPart, int kParts>
    __device__ void fill(int step_of, int stage) {
      if (step_of < steps) {
        a.template copy<kPart, kParts>(stage * C::kStageBytes);
        b.template copy<kPart, kParts>(stage * C::kStageBytes);
      }
      if constexpr (kPart + 1 == kParts) commit_copies();
    }
    __device__ void load_a(Fragments<C>& f, int stage, int unit, int i) const {
      warp::load_fragments<!C::kAlongA>(a_at.of(unit, i) + stage * C::kStageBytes, f.a[i][0],
                                        f.a[i][1], f.a[i][2], f.a[i][3]);
    }
    __device__ void load_b(Fragments<C>& f, int stage, int unit, int i) const {
      warp::load_fragments<!C::kAlongB>(b_at.of(unit, i) + stage * C::kStageBytes, f.b[2 * i][0],
                                        f.b[2 * i][1], f.b[2 * i + 1][0], f.b[2 * i + 1][1]);
    }
  };

  // One unit of k, in two halves of the columns: what one half of b needs is loaded while the other
  // is multiplied, and a fragment of a is replaced as soon as it has served, 12 products or more
  // before it is needed again.
  template <int kStage, int kUnit>
  __device__ static void do_whole_unit(Whole& w, Fragments<C>& f, Sums& d) {
    constexpr int kUnits = C::kUnits, kHalf = kEights / 2;
    constexpr bool kLast = kUnit + 1 == kUnits;
    constexpr int kNext = kLast ? (kStage + 1) % C::kStages : kStage;
    constexpr int kNextUnit = (kUnit + 1) % kUnits;
#pragma unroll
    for (int i = kHalf / 2; i < kHalf; ++i) w.load_b(f, kStage, kUnit, i);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < kHalf; ++j)
        warp::multiply<C::kKind>(d[i][j], f.a[i][0], f.a[i][1], f.a[i][2], f.a[i][3], f.b[j][0],
                                 f.b[j][1]);
    if constexpr (kLast) {
      wait_for_copies<C::kStages - 2>();
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) w.load_b(f, kNext, kNextUnit, i);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = kHalf; j < kEights; ++j)
        warp::multiply<C::kKind>(d[i][j], f.a[i][0], f.a[i][1], f.a[i][2], f.a[i][3], f.b[j][0],
                                 f.b[j][1]);
      w.load_a(f, kNext, kNextUnit, i);
    }
    if constexpr (!kLast) {
      w.template fill<kUnit, kUnits - 1>(w.step + C::kStages - 1,
                                         (kStage + C::kStages - 1) % C::kStages);
      do_whole_unit<kStage, kUnit + 1>(w, f, d);
    }
  }
  template <int kStage>
  __device__ static void do_whole_stages(Whole& w, Fragments<C>& f, Sums& d) {
    do_whole_unit<kStage, 0>(w, f, d);
    if (++w.step == w.steps) return;
    if constexpr (kStage + 1 < C::kStages) do_whole_stages<kStage + 1>(w, f, d);
  }
  __device__ static void accumulate_whole(const Job& job, const Tile& tile, char* memory, Sums& d) {
    static_assert(kEights == 8);  // Places, and halves of four

    Whole w(job, tile, warp::shared_place(memory), threadIdx.x % 32, threadIdx.x / 32);
#pragma unroll
    for (int s = 0; s < C::kStages - 1; ++s) w.template fill<0, 1>(s, s);
    wait_for_copies<C::kStages - 2>();
    __syncthreads();
    Fragments<C> f;
#pragma unroll
    for (int i = 0; i < 4; ++i) w.load_a(f, 0, 0, i);
#pragma unroll
    for (int i = 0; i < kEights / 4; ++i) w.load_b(f, 0, 0, i);
    while (w.step < w.steps) do_whole_stages<0>(w, f, d);
    wait_for_copies<0>();
  }
  __device__ static void accumulate_tile(const Job& job, const Tile& tile, char* memory, Sums& d) {
    if constexpr (C::kKind != Kind::kCodes) {
      if (is_whole(job, tile)) return accumulate_whole(job, tile, memory, d);
    }
    accumulate_copied(job, tile, memory, d);
  }
  __device__ static bool is_whole(const Job& job, const Tile& tile) {
    return (tile.m + 1) * kTileM <= job.a.rows && (tile.n + 1) * C::kTileN <= job.b.rows &&
           job.k % C::kStepK == 0;
  }

  __device__ static void accumulate_guarded(const Job& job, const Tile& tile, char* memory,
                                            Sums& d) {
    Gatherer<C, kTileM> a(job.a, tile.m * kTileM, tile.batch, job.k);
    Gatherer<C, C::kTileN> b(job.b, tile.n * C::kTileN, tile.batch, job.k);
    const uint32_t base = warp::shared_place(memory);
    const int steps = (job.k + C::kStepK - 1) / C::kStepK;
    int stage = 0;
    for (int step = -1; step < steps; ++step) {
      const bool more = step + 1 < steps;
      if (more) {
        a.load();
        b.load();
      }
      if (step >= 0) {
#pragma unroll
        for (int unit = 0; unit < C::kUnits; ++unit) {
          Fragments<C> f;
          f.load(base + stage * C::kStageBytes, unit);
          multiply(d, f, job);
        }
        stage ^= 1;
      }
      if (more) {
        a.store(memory + stage * C::kStageBytes);
        b.store(memory + stage * C::kStageBytes + C::kABytes);
      }
      __syncthreads();
    }
  }

  // Eight columns of a row: epilogue and store.
  struct Columns {
    float factor[8], bias[8];
    float alpha;
    int first, count;
  };
  __device__ static Columns columns_of(const EpilogueArguments& e, int first) {
    Columns c{{}, {}, 1.0f, first, min(8, e.n - first)};
    if (e.alpha) c.alpha = __ldg(e.alpha);
    if (e.bias.data && c.count > 0) load_8(e.bias, first * e.bias.column_stride, c.count, c.bias);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      c.factor[j] = e.columns.data && j < c.count ? e.columns.at(first + j) : 1.0f;
    return c;
  }
  __device__ static void finish_row(const EpilogueArguments& e, const Columns& c, int64_t row,
                                    int64_t batch, const float* staged,
                                    const float (&residual)[8]) {
    const float4 low = reinterpret_cast<const float4*>(staged)[0];
    const float4 high = reinterpret_cast<const float4*>(staged)[1];
    float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const float of_row = e.rows.data ? e.rows.at(row) : 1.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = fmaf(y[j] * of_row * c.factor[j], c.alpha, c.bias[j]);
    hopper::activate_all(e.activation, y);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] += residual[j];
    store_8(e.out,
            batch * e.out.batch_stride + row * e.out.row_stride + c.first * e.out.column_stride,
            c.count, y);
  }

  // 16 rows of a warp through its own shared memory, so that rows are stored in lines. All
  // residuals are asked for before any is needed.
  __device__ static void finish_rows(const EpilogueArguments& e, const Columns& columns, int row0,
                                     int64_t batch, float* staging, const Sum (&d)[kEights][4]) {
    constexpr int kLanes = C::kWarpN / 8;  // of a row
    constexpr int kEach = 16 * kLanes / 32;
    const int lane = threadIdx.x % 32;
    float residual[kEach][8] = {};
    const auto& t = e.residual;
    if (t.data) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int row = row0 + lane / kLanes + i * (32 / kLanes);
        if (row < e.m && columns.count > 0)
          load_8(t, batch * t.batch_stride + row * t.row_stride + columns.first * t.column_stride,
                 columns.count, residual[i]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kEights; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* to = staging + (lane / 4 + 8 * h) * C::kStagingRow + j * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(to) =
            make_float2(static_cast<float>(d[j][2 * h]), static_cast<float>(d[j][2 * h + 1]));
      }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = lane / kLanes + i * (32 / kLanes);
      if (row0 + r < e.m && columns.count > 0)
        finish_row(e, columns, row0 + r, batch, staging + r * C::kStagingRow + lane % kLanes * 8,
                   residual[i]);
    }
  }

  __device__ static void finish(const EpilogueArguments& e, const Tile& tile, char* memory,
                                const Sums& d) {
    const int w = threadIdx.x / 32;
    const int row0 = tile.m * kTileM + w / kWarpsAlongN * 64;
    const int column0 = tile.n * C::kTileN + w % kWarpsAlongN * C::kWarpN;
    float* staging = reinterpret_cast<float*>(memory) + w * 16 * C::kStagingRow;
    const Columns columns = columns_of(e, column0 + threadIdx.x % 32 % (C::kWarpN / 8) * 8);
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      // One copy of the code below for all rows: registers have no computed numbers.
      Sum sums[kEights][4];
#pragma unroll
      for (int from = 0; from < 4; ++from) {
        if (from != i) continue;
#pragma unroll
        for (int j = 0; j < kEights; ++j)
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[j][k] = d[from][j][k];
      }
      finish_rows(e, columns, row0 + i * 16, tile.batch, staging, sums);
    }
  }

  __device__ static void run(const Job& job) {
    extern __shared__ __align__(128) char memory[];
    const Tile tile = tile_of(job);
    Sums d = {};
    if constexpr (C::kGuarded)
      accumulate_guarded(job, tile, memory, d);
    else
      accumulate_tile(job, tile, memory, d);
    __syncthreads();
    finish(job.epilogue, tile, memory, d);
  }
};

#endif  // __CUDACC__

}  // namespace pestle::cuda::portable_gemm
