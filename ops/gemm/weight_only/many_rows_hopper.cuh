// Weight-only products with many rows of x on sm_90, warp-specialised and persistent: the weight is
// wgmma's register operand, so that a code is read and decoded once a tile and never leaves the
// multiprocessor as 16 bits.
//
// Map      One CTA an SM makes tiles of 64 rows of the weight (wgmma's rows) for each of its consumer
//          warpgroups, times kTileM rows of x (its columns). One thread fills a ring with stages of 64 k:
//          x and codes by TMA, as they lie in memory.
// Codes    A lane reads 16 bytes of a row, of which it needs those of every fourth pair of columns. Codes
//          of 4 bits become pairs by a table of all bytes, which every lane has in a bank of its own.
//          A warp fetches the scales of its 16 rows, several pairs of stages before, and puts them into
//          the ring as the format's multipliers.
// Overlap  A consumer decodes 32 of k while those before are multiplied. The second of two starts a
//          few stages later, and stays behind: while one finishes its tile the other has the tensor
//          cores. For few rows of x three or four decode at a time.
//          Where tiles are fewer than multiprocessors, the CTAs of a cluster make parts of k of a tile
//          (k_parts.h) and put their sums together (cluster_sums.cuh). A tile's exchange is below.
// Order    Groups of 2048 rows of x sweep n. Sums run along k in one order, those of parts are added in
//          theirs: two runs give the same bits.
// Traffic  Per tile and 64 of k: kTileM * 128 bytes of x, kTileN * 64 codes and their scales, from
//          the L2; out and residual once. Parts of k: 4 bytes a sum, between multiprocessors.
// Numerics Scaled: code times block scale, exact in x's dtype, times x, summed in the tensor cores'
//          f32. Group sums: exact codes times x, summed so over a group (128 of k at most), times
//          the scale in f32. A tile that meets a scale or code for which that is not so (Format's
//          `odd`) is made again from f32 values; where k has parts, 16 of its rows of the weight are if
//          those of a part are odd. Epilogue in f32, one rounding.
// Needs    x along k, its rows and the codes' at multiples of 16 bytes; code of sm_90a.
// Issue    An instruction of wgmma has 24 (nvfp4, 64 rows of x, 4 warpgroups) to 34 others, most of the
//          ALU, at two cycles each. For 64 rows, 4096 x 4096, the loop takes under half of the samples:
//          the rest are the launch, the first trips to memory, the exchange and the epilogue, of which
//          what waited for instructions was most.
// Measured H200, us, nvfp4: 4096 x 4096, 64, 128, 256 rows 13.8, 18.0, 22.4; 12288 x 3072, 64 and 256
//          20.2, 39.4; 14336 x 4096 29.9, 50; 3072 x 12288 22.8, 43.9. 4096 x 4096, 64 and 256 rows, humming's
//          in brackets: nvfp4 13.8, 22.4 (13.3, 23.8); mxfp4 13.6, 22.9 (12.8, 22.7); fp8 by row 13.8, 22.8
//          (14.0, 22.6); int8 by row 14.8, 24.5 (14.6, 24.3); mxfp8 16.4, 28.1 (14.3, 23.8); int4 as_x 17.0,
//          28.1 (12.1, 21.3), exact 15.5, 26.0; cuBLAS's bf16 12.6, 18.4. 1024 x 12288 x 3072, one part,
//          decoding by a table 121 and by PRMT 128.
// Tried    Two or four warps that put codes into order and scales where they belong, before consumers may
//          read: 4096 x 4096 in 24.5 and 19.6 for 64 rows, whose stages took 0.53 and 0.39 of 128 rows of
//          the weight. Parts of k by the workspace and a second kernel: 18.4 where these then took 16.0;
//          2, 4 or 8 of them, their fragments stored and announced by arrivals: 16.0 for 13.8. Codes read a
//          unit earlier, for which a stage more must be there: 3 % slower at 64 rows, 6 to 17 % at 1,000
//          and 256.
//          256 rows of the weight times 128 of x: as many products for twice the codes, 697 for 608
//          (nvfp4, 4608 x 12288 x 3072); there, a block decoded before its instructions, not between
//          them, 755; codes through a producer's registers 885: a trip to memory a stage.
#pragma once

#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/ptx/wgmma_registers.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/gemm/weight_only/cluster_sums.cuh"
#include "ops/gemm/weight_only/many_rows_hopper_config.cuh"

namespace pestle::cuda::many_rows {

// Can sums have overflowed that their factors, or terms of the other sign, would have brought back
// (x of bf16), or codes been no numbers?
template <bool kBf16, class Format>
constexpr bool kChecksSums =
    (Format::kGroupSums || Format::kColumnFactors || Format::kNans) && kBf16;

#if PESTLE_HOPPER

// Where TMA puts the first 16 bytes of a row of codes. The bits that it turns pick the others.
template <int kBits>
__device__ inline int lanes_place(int row) {
  if constexpr (kBits == 4)
    return row * 32 + row / 4 % 2 * 16;
  else
    return row * 64 + row / 2 % 4 * 16;
}

template <class C, class Format>
struct HopperGemm {
  static constexpr int kStages = C::kStages, kBits = C::kBits;
  static constexpr int kSums = C::kTileM / 2;
  // Stages of the first consumer before the second, of which the ring has that many fewer. Few rows
  // leave the tensor cores time for all.
  static constexpr int kLead = C::kConsumers > 2 ? 0 : kStages - 3 < 3 ? kStages - 3 : 3;
  static constexpr hopper::WgmmaType kWgmma =
      C::kBf16 ? hopper::WgmmaType::kBf16 : hopper::WgmmaType::kF16;

  struct Barriers {
    uint64_t full[kStages], empty[kStages];
    // The tile, counted by its CTA from 1 on, in which a consumer last met what is odd, of every
    // second tile.
    int odd[C::kConsumers][2];
    // Of parts of k, see exchange_sums().
    uint64_t sums_full[C::kConsumers], sums_free[C::kConsumers], ring_read;
    uint32_t part_odd[C::kConsumers][ops::kMostKParts * 4];  // by part and warp
  };
  static_assert(sizeof(Barriers) <= C::kSharedBytes - C::kBarrierPlace);

  struct Cta {
    const HopperJob& of;
    const Format& format;
    char* memory;
    int part;  // of k

    __device__ const Job& job() const { return of.job; }
    __device__ Barriers& barriers() const {
      return *reinterpret_cast<Barriers*>(memory + C::kBarrierPlace);
    }
    // Consumers take two stages together. Past the end of k all is zeros.
    __device__ int steps() const { return of.parts.steps; }
    __device__ int first_step() const { return part * of.parts.steps; }
    __device__ int tiles() const { return job().m_tiles * job().n_tiles; }
    __device__ int first_tile() const { return static_cast<int>(blockIdx.x) / of.parts.count; }
    __device__ Tile tile(int i) const { return tile_of<C::kTilesM>(job(), i); }
    __device__ char* x_at(int stage) const { return memory + stage * C::kStageBytes; }
    __device__ char* codes_at(int stage) const { return x_at(stage) + C::kXBytes; }
    __device__ char* scales_at(int stage) const { return codes_at(stage) + C::kCodeBytes; }
  };

  // ---- producer ---------------------------------------------------------------------------------
  // By one thread.
  __device__ static void produce(const Cta& cta) {
    Barriers& b = cta.barriers();
    hopper::Ring<kStages> ring;
    int t = 0;
#pragma unroll 1
    for (int i = cta.first_tile(); i < cta.tiles(); i += cta.of.parts.clusters) {
      const Tile tile = cta.tile(i);
      const int first = cta.first_step();
      if (C::kInRing && cta.of.parts.count > 1 && t++ > 0) hopper::wait(&b.ring_read, t % 2);
#pragma unroll 1
      for (int step = first; step < first + cta.steps(); ++step) {
        hopper::wait(&b.empty[ring.stage], ring.parity ^ 1);
        uint64_t* full = &b.full[ring.stage];
        hopper::arrive_expecting(full, C::kXBytes + C::kCodeBytes);
        hopper::load_box(cta.x_at(ring.stage), &cta.of.x, full, step * kStepK, tile.m * C::kTileM,
                         0);
        hopper::load_box(cta.codes_at(ring.stage), &cta.of.codes, full, step * C::kCodeRow,
                         tile.n * C::kTileN, 0);
        ring.advance();
      }
    }
  }

  // ---- consumers --------------------------------------------------------------------------------
  using Sums = float[kSums];

  // The scales of a warp's 16 rows, a pair of stages at a time: each lane has a row and a stage, whose
  // scales it fetches kAhead pairs before, since a trip to memory takes as long, across tiles. No
  // other warp reads them.
  struct WarpScales {
    static constexpr bool kIsTight = C::kGroup != 0 && C::kTileM > 128;  // in registers
    static constexpr int kAhead = C::kConsumers > 2 ? 2 : kIsTight ? 1 : 3;
    char* to;                  // of the lane's next stage
    int index, pair = 0;       // fetched next: the tile, and the pair of its steps
    int line, row = 0;         // of the tile; of the weight, where `index` is
    bool next_is_odd = false;  // the pair that was put last
    typename Format::Row from;
    typename Format::Fetched values[kAhead];
    int rows[kAhead], steps[kAhead];

    __device__ WarpScales(const Cta& cta, int consumer)
        : to(cta.scales_at(threadIdx.x % 32 / 16)),
          index(cta.first_tile()),
          line(consumer * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 16) {
      enter(cta);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) fetch(cta, i);
    }
    __device__ void enter(const Cta& cta) {
      row = min(cta.tile(index).n * C::kTileN + line, cta.job().n - 1);
      from = cta.format.row_at(row);
    }
    __device__ void fetch(const Cta& cta, int i) {
      const int step = cta.first_step() + pair * 2 + threadIdx.x % 32 / 16;
      values[i] = {}, rows[i] = row, steps[i] = step;
      if (step * kStepK < cta.job().k) values[i] = cta.format.fetch(from, step);
      if ((++pair) * 2 < cta.steps()) return;
      const int next = index + cta.of.parts.clusters;
      if (next >= cta.tiles()) return;  // what is past the last tile is never read
      pair = 0, index = next;
      enter(cta);
    }
    // Those of the next pair.
    __device__ void put(const Cta& cta) {
      next_is_odd =
          cta.format.template put<C::kBf16, C::kTileN>(values[0], rows[0], steps[0], line, to);
      to += 2 * C::kStageBytes;
      if (to >= cta.scales_at(kStages)) to -= kStages * C::kStageBytes;
      __syncwarp();
#pragma unroll
      for (int i = 1; i < kAhead; ++i)
        values[i - 1] = values[i], rows[i - 1] = rows[i], steps[i - 1] = steps[i];
      fetch(cta, kAhead - 1);
    }
  };

  using Kept = typename Format::Kept;

  // A lane's two rows: codes of a stage as they lie in memory; those of a unit of 32 k of it, or their
  // pairs; and scales of its stage.
  struct Codes {
    static constexpr int kPieces = kBits / 4;  // of 16 bytes
    using Piece = std::conditional_t<kBits == 4, uint4, uint2>;
    Piece read[2][2][kPieces];  // by unit and row
    uint32_t words[2][Format::kPairTable ? 4 : kPieces];
    typename Format::Scales scales[2];
    uint32_t bank = threadIdx.x % 32 * 4;
    // Of 4 bits, what finds the lane's byte of four: it comes to bit 8 by __byte_perm, or to bit 7 by
    // a turn. Of 8 bits, what finds its two of four.
    uint32_t finds = kBits == 8             ? (threadIdx.x % 2 == 0 ? 0x5410u : 0x7632u)
                     : C::kTableLine == 256 ? 0x5504u | threadIdx.x % 4 << 4
                                            : (threadIdx.x % 4 * 8 + 25) % 32;
    int first_line, place;  // of the lane's first row: in the tile, and of its codes in a stage

    __device__ explicit Codes(int row0)
        : first_line(row0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4),
          place(lanes_place<kBits>(first_line) + (kBits == 8 ? threadIdx.x % 4 / 2 * 4 : 0)) {}
    __device__ uint32_t pair(const Cta& cta, uint32_t word) const {
      const uint32_t at = C::kTableLine == 256
                              ? __byte_perm(word, bank, finds)
                              : (__funnelshift_r(word, word, finds) & 0x7F80u) | bank;
      return *reinterpret_cast<const uint32_t*>(cta.memory + C::kTablePlace + at);
    }
    __device__ void load(const Cta& cta, int stage) {
      const char* const codes = cta.codes_at(stage);
#pragma unroll
      for (int piece = 0; piece < 2 * kPieces; ++piece) {
        const int at = place ^ (piece * 16);
#pragma unroll
        for (int r = 0; r < 2; ++r) {  // eight rows on, all is swizzled alike
          const char* from = codes + at + r * 8 * C::kCodeRow;
          Piece& to = read[piece / kPieces][r][piece % kPieces];
          if constexpr (kBits == 4)
            to = *reinterpret_cast<const uint4*>(from);
          else
            to = make_uint2(*reinterpret_cast<const uint32_t*>(from),
                            *reinterpret_cast<const uint32_t*>(from + 8));
        }
      }
    }
    __device__ void look_up(const Cta& cta, int stage, int unit) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (unit == 0)
          scales[r] =
              cta.format.template scales_of<C::kTileN>(cta.scales_at(stage), first_line + 8 * r);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const Piece v = read[unit][r][i];
          if constexpr (Format::kPairTable)
            words[r][0] = pair(cta, v.x), words[r][1] = pair(cta, v.y),
            words[r][2] = pair(cta, v.z), words[r][3] = pair(cta, v.w);
          else
            words[r][i] = __byte_perm(v.x, v.y, finds);
        }
      }
    }
    // The weight's fragments of the unit's two instructions.
    __device__ void decode(const Cta& cta, const Kept& kept, int unit, uint32_t (&a)[2][4]) const {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t b[4];
        cta.format.template fragments<C::kBf16>(kept, words[r], scales[r], unit, b);
        a[0][r] = b[0], a[0][2 + r] = b[1];
        a[1][r] = b[2], a[1][2 + r] = b[3];
      }
      hopper::hold(a);
    }
  };
  // Each thread has some of the bytes. Those of a quarter of a warp begin in different banks.
  __device__ static void make_table(char* memory, const Format& format) {
    if constexpr (Format::kPairTable) {
      auto* table = reinterpret_cast<uint4*>(memory + C::kTablePlace);
      for (int byte = threadIdx.x; byte < 256; byte += C::kThreads) {
        const uint32_t pair = format.template table_pair<C::kBf16>(byte);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          table[byte * (C::kTableLine / 16) + (byte + i) % 8] = make_uint4(pair, pair, pair, pair);
      }
    }
  }

  __device__ static void release(Barriers& b, int stage) {
    if (threadIdx.x % 128 == 0) hopper::arrive(&b.empty[stage]);
  }
  __device__ static void wait_stage(Barriers& b, const hopper::Ring<kStages>& ring) {
    hopper::wait(&b.full[ring.stage], ring.parity);
  }

  __device__ static void clear(Sums& d) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) d[i] = 0;
  }
  // The scales of a group's sums in a lane's two rows.
  __device__ static float2 group_scales(const char* scales, int row0, int unit) {
    const float* of_rows = reinterpret_cast<const float*>(scales) + unit * C::kTileN + row0 +
                           threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    return {of_rows[0], of_rows[8]};
  }
  __device__ static void add_group(const float2& scales, Sums& p, Sums& d) {
    hopper::wait_wgmma<0>();
    hopper::hold(p);
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      d[i] = __fmaf_rn(p[i], i / 2 % 2 == 0 ? scales.x : scales.y, d[i]);
    hopper::hold(p);
  }

  // A descriptor of x, whose upper half is always the same.
  struct XPlace {
    uint32_t lower, upper;
    __device__ explicit XPlace(uint64_t of)
        : lower(keep(static_cast<uint32_t>(of))), upper(static_cast<uint32_t>(of >> 32)) {}
    __device__ XPlace(uint32_t low, uint32_t high) : lower(low), upper(high) {}
    __device__ XPlace after(uint32_t pieces) const {
      return {lower + pieces, upper};
    }  // of 16 bytes
    __device__ uint64_t descriptor() const {
      uint64_t d;
      asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(lower), "r"(upper));
      return d;
    }
  };

  // The two instructions of a unit of 32 k.
  __device__ static void multiply(const XPlace& x, const uint32_t (&a)[2][4], bool more, Sums& d) {
    hopper::fence_wgmma();
    hopper::multiply_registers<kWgmma, C::kTileM, true>(d, a[0], x.descriptor(), more);
    hopper::multiply_registers<kWgmma, C::kTileM, true>(d, a[1], x.after(2).descriptor(), true);
    hopper::commit_wgmma();
  }

  // A unit is decoded while those before it are multiplied, and multiplied next: had it time until
  // later, ptxas would gather the decoding of several in one place, where the tensor cores wait.
  // kGroups: its sums are p, and are added to d at the end of a group.
  static constexpr bool kGroups = Format::kGroupSums;
  static constexpr int kUnderWay = kGroups ? 1 : 2;  // units, while one is decoded
  static constexpr int kFragments = kGroups ? 2 : 4;
  // True: of odd scales.
  __device__ static bool accumulate(const Cta& cta, int consumer, hopper::Ring<kStages>& ring,
                                    WarpScales& of_warp, Sums& d) {
    constexpr int kGroupUnits = kGroups ? C::kGroup / 32 : 1;
    Barriers& b = cta.barriers();
    const int steps = cta.steps(), row0 = consumer * 64;
    const XPlace first_x(hopper::describe<true>(cta.x_at(0), 0));
    uint32_t a[kFragments][2][4] = {};
    [[maybe_unused]] Sums p = {};
    [[maybe_unused]] float2 scales = {0, 0};  // of the sums in p
    const Kept kept(cta.format);
    Codes codes(row0);
    int before = 0;
    bool odd = of_warp.next_is_odd;
    if constexpr (kGroups) clear(d);
    wait_stage(b, ring);
    codes.load(cta, ring.stage);
    codes.look_up(cta, ring.stage, 0);
    codes.decode(cta, kept, 0, a[0]);
#pragma unroll 1
    for (int first = 0; first < steps; first += 2) {
      odd |= of_warp.next_is_odd;
      of_warp.put(cta);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int step = first + i, stage = ring.stage;
        const XPlace x = first_x.after(stage * (C::kStageBytes / 16));
        // The last step decodes its codes again.
        hopper::Ring<kStages> next = ring;
        ring.advance();
        if (i == 0 || step + 1 < steps) next = ring;
#pragma unroll
        for (int unit = 0; unit < 2; ++unit) {
          const int at = 2 * i + unit;
          const bool begins = at % kGroupUnits == 0, ends = (at + 1) % kGroupUnits == 0;  // a group
          uint32_t(&then)[2][4] = a[(at + 1) % kFragments];
          if constexpr (kGroups) {
            if (begins) scales = group_scales(cta.scales_at(stage), row0, unit);
            multiply(x.after(unit * 4), a[at % kFragments], !begins, p);
          } else {
            multiply(x.after(unit * 4), a[at % kFragments], step > 0 || unit > 0, d);
          }
          if (unit == 1) wait_stage(b, next), codes.load(cta, next.stage);
          codes.look_up(cta, unit == 1 ? next.stage : stage, 1 - unit);
          hopper::wait_wgmma<kUnderWay>();
          hopper::hold(then);
          codes.decode(cta, kept, 1 - unit, then);
          if (unit == kUnderWay - 1 && step > 0) release(b, before);
          if constexpr (kGroups)
            if (ends) add_group(scales, p, d);
        }
        before = stage;
      }
    }
    hopper::wait_wgmma<0>();
    release(b, before);
    hopper::hold(d);
    return odd;
  }

  __device__ static bool is_finite(const Sums& d) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kSums; ++i) all = all && fabsf(d[i]) <= 0x1.fffffep127f;
    return all;
  }

  // Sums of kStagedRows rows of x, those from `first` on, each row of x in a line.
  __device__ static void stage(float* staging, int first, const Sums& d) {
    const int lane = threadIdx.x % 32;
    float* to = staging + lane % 4 * 2 * C::kStagingRow + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < C::kStagedRows / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        to[(8 * j + e % 2) * C::kStagingRow + e / 2 * 8] = d[(first / 8 + j) * 4 + e];
  }
  template <bool kOfColumns>
  __device__ static void finish_staged(const Job& job, const float* staging, int row0, int column0,
                                       float factor) {
    const int thread = threadIdx.x % 128;
    const int first = column0 + thread % 8 * 8;
    const Columns columns{first, min(8, job.n - first)};
    if (columns.count <= 0) return;
#pragma unroll 1
    for (int r = thread / 8; r < min(C::kStagedRows, job.m - row0); r += 16)
      finish_row<kOfColumns>(job.epilogue, columns, row0 + r, factor,
                             staging + r * C::kStagingRow + thread % 8 * 8);
  }

  // ---- 16-bit results without residual and gate: made in registers, transposed by stmatrix ------
  __device__ static bool makes_in_registers(const EpilogueArguments& e) {
    return !e.residual.data && !e.gate.data && e.out.dtype != hopper::Float::kF32 &&
           e.out.aligned && e.n % 8 == 0;
  }
  struct RowValues {  // of a lane's two rows of the weight
    float factor[2] = {1, 1}, bias[2] = {0, 0};
  };
  __device__ static RowValues row_values(const EpilogueArguments& e, int row) {
    RowValues v;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int n = min(row + 8 * r, e.n - 1);
      if constexpr (Format::kColumnFactors) v.factor[r] = e.columns.at(n);
      float one[8] = {};
      if (e.bias.data) load_8(e.bias, n * e.bias.column_stride, 1, one);
      v.bias[r] = one[0];
    }
    return v;
  }
  // Results as 16 bits of kStoredRows from `first` on, each row of x in a line of 128 bytes.
  __device__ static void stage_results(const EpilogueArguments& e, const RowValues& v, float factor,
                                       int first, char* staging, const Sums& d) {
    const float alpha = e.alpha ? __ldg(e.alpha) : 1.0f;
    const int lane = threadIdx.x % 32;
    const int piece = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2, line = lane / 16 * 8 + lane % 8;
    const uint32_t to = hopper::shared_address(staging) + line * 128 + (piece ^ lane % 8) * 16;
#pragma unroll
    for (int j = 0; j < C::kStoredRows / 16; ++j) {  // 16 rows of x
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = i / 2 % 2;
        y[i] = __fmaf_rn(d[first / 2 + 8 * j + i] * v.factor[r] * factor, alpha, v.bias[r]);
      }
      hopper::activate_all(e.activation, y);
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = hopper::pack(y[2 * i], y[2 * i + 1], e.out.dtype);
      hopper::store_transposed(to + j * 16 * 128, words[0], words[1], words[2], words[3]);
    }
  }
  __device__ static void store_staged(const Job& job, const char* staging, int row0, int column0) {
    const int thread = threadIdx.x % 128, piece = thread % 8, column = column0 + piece * 8;
    if (column >= job.n) return;
    const FloatMatrix& out = job.epilogue.out;
    char* to = const_cast<char*>(out.data) + (row0 * out.row_stride + column) * 2;
#pragma unroll 4
    for (int r = thread / 8; r < min(C::kStoredRows, job.m - row0); r += 16)
      *reinterpret_cast<uint4*>(to + r * out.row_stride * 2) =
          *reinterpret_cast<const uint4*>(staging + r * 128 + (piece ^ r % 8) * 16);
  }
  __device__ static void finish_in_registers(const Cta& cta, int consumer, const Tile& tile,
                                             const Sums& d) {
    const EpilogueArguments& e = cta.job().epilogue;
    char* staging = reinterpret_cast<char*>(staging_of(cta, consumer));
    const float factor = cta.format.factor();
    const int column0 = tile.n * C::kTileN + consumer * 64;
    const RowValues v = row_values(e, column0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
#pragma unroll
    for (int first = 0; first < C::kTileM; first += C::kStoredRows) {
      hopper::sync_threads(1 + consumer, 128);
      stage_results(e, v, factor, first, staging, d);
      hopper::sync_threads(1 + consumer, 128);
      store_staged(cta.job(), staging, tile.m * C::kTileM + first, column0);
    }
  }

  __device__ static float* staging_of(const Cta& cta, int consumer) {
    return reinterpret_cast<float*>(cta.memory + C::kStagingPlace + consumer * C::kStagingBytes);
  }
  __device__ static void finish(const Cta& cta, int consumer, const Tile& tile, const Sums& d) {
    float* staging = staging_of(cta, consumer);
    const float factor = cta.format.factor();
#pragma unroll 1
    for (int row = 0; row < C::kTileM; row += C::kStagedRows) {
      hopper::sync_threads(1 + consumer, 128);
      // One copy of the code below for all pieces: registers have no computed numbers.
#pragma unroll
      for (int from = 0; from < C::kTileM; from += C::kStagedRows)
        if (from == row) stage(staging, from, d);
      hopper::sync_threads(1 + consumer, 128);
      finish_staged<Format::kColumnFactors>(cta.job(), staging, tile.m * C::kTileM + row,
                                            tile.n * C::kTileN + consumer * 64, factor);
    }
  }
  // The same of a tile that is odd.
  __device__ static void finish_odd(const Cta& cta, int consumer, const Tile& tile) {
    const Job& job = cta.job();
    float* staging = staging_of(cta, consumer);
#pragma unroll 1
    for (int row = 0; row < C::kTileM; row += C::kStagedRows) {
      const int row0 = tile.m * C::kTileM + row;
      const int column0 = tile.n * C::kTileN + consumer * 64;
      hopper::sync_threads(1 + consumer, 128);
#pragma unroll 1
      for (int i = threadIdx.x % 128; i < C::kStagedRows * 64; i += 128)
        if (row0 + i / 64 < job.m && column0 + i % 64 < job.n)
          staging[i / 64 * C::kStagingRow + i % 64] =
              slow_sum<C::kBf16>(job, cta.format, PlainRows{}, row0 + i / 64, column0 + i % 64);
      hopper::sync_threads(1 + consumer, 128);
      finish_staged<false>(job, staging, row0, column0, 1.0f);
    }
  }

  // ---- parts of k -------------------------------------------------------------------------------
  // Consumer c of each CTA of the cluster has 64 rows of the weight, the same in all, of a part of k. It
  // adds its share of these rows' fragments, which all of them store into its exchange.
  //
  //   source   waits for sums_free of its own CTA: all exchanges are free; sends fragments and flags
  //            to each CTA, whose sums_full counts their bytes.
  //   reader   waits for the bytes that sums_full expects, and adds.
  //
  // Beside the ring, exchanges are free at first, then when sums are read: each of a reader's warps
  // arrives at sums_free of each CTA (not behind the last tile). Tile t, from 0 on, is phase t of both, and
  // is stored after phase t - 1 of sums_free.
  // In the ring, they are free where all consumers of the cluster have multiplied: each of their warps
  // then arrives at the first sums_free of each CTA, and tile t is stored after its phase t. The producer
  // loads the next tile when all warps of the CTA have read: phase t of ring_read. The ring's scales,
  // which are the next tile's by then, stay.
  //
  // No phase is missed. Phase t of sums_full ends by the arrival of its readers' first thread too, and
  // nothing is sent for phase t + 1 before all of them have read phase t; phase t of sums_free by those of
  // all that wait for it, which come to the next after waiting. Clusters make as many tiles in all of their CTAs.
  // A CTA that has waited for its last phase of sums_full has received all that is sent to it: none
  // stores into a CTA that has ended. That all have begun, a barrier of the cluster says (run()).
  static constexpr int kEights = C::kTileM / 8, kFragmentsOf64 = C::kFragmentsOf64;
  // Where those lie that a consumer adds: half of the sources in each of two stages, in the ring.
  __device__ static float* exchange_of(const Cta& cta, int consumer) {
    return C::kInRing ? reinterpret_cast<float*>(cta.x_at(2 * consumer))
                      : staging_of(cta, consumer);
  }
  static constexpr int kGap = C::kInRing ? (C::kStageBytes - C::kXBytes) / 4 : 0;
  __device__ static uint64_t* free_barrier(const Cta& cta, int consumer) {
    return &cta.barriers().sums_free[C::kInRing ? 0 : consumer];
  }
  __device__ static void init_part_barriers(Barriers& b, int parts) {
    for (int i = 0; i < C::kConsumers; ++i) {
      hopper::init_barrier(&b.sums_full[i], 1);
      hopper::init_barrier(&b.sums_free[i], 4 * parts * (C::kInRing ? C::kConsumers : 1));
    }
    hopper::init_barrier(&b.ring_read, 4 * C::kConsumers);
  }
  // By a warp, at each CTA's.
  __device__ static void arrive_everywhere(const Cta& cta, uint64_t* barrier) {
    __syncwarp();
    const int lane = threadIdx.x % 32;
    if (lane < cta.of.parts.count) cuda::arrive_at_block(barrier, lane);
  }
  __device__ static ClusterSums sums_of(const Cta& cta, int consumer, const Tile& tile) {
    const int parts = cta.of.parts.count, first_x = tile.m * C::kTileM;
    return {exchange_of(cta, consumer),
            cta.barriers().part_odd[consumer],
            parts,
            cta.part,
            parts,
            4,
            kFragmentsOf64,
            most_added(kFragmentsOf64, parts),
            tile.n * C::kTileN + consumer * 64,
            first_x,
            min(C::kTileM, cta.job().m - first_x),
            kGap};
  }
  // In registers of its own: those that are stored together are neighbours, which in the main loop would
  // be one condition more for where sums lie.
  __device__ static float4 elsewhere(const float4& v, int parts) {
    const auto zero = static_cast<uint32_t>(parts) >> 8;  // ptxas does not know
    const auto moved = [&](float f) { return __uint_as_float(__float_as_uint(f) | zero); };
    return make_float4(moved(v.x), moved(v.y), moved(v.z), moved(v.w));
  }
  __device__ static void put_part(const Cta& cta, int consumer, bool odd, const Sums& d) {
    Barriers& b = cta.barriers();
    const int parts = cta.of.parts.count, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const bool any_odd = __any_sync(0xFFFFFFFFu, odd);
    uint64_t* const full = &b.sums_full[consumer];
    if (threadIdx.x % 128 == 0)
      cuda::expect_bytes(full, bytes_for(cta.part, kFragmentsOf64, parts, parts, 4));
    uint32_t* flag = &b.part_odd[consumer][cta.part * 4 + warp];
    if (lane < parts) cuda::tell_block(flag, full, lane, uint32_t{any_odd});
    const int each = most_added(kFragmentsOf64, parts);
    float* of_source =
        exchange_of(cta, consumer) + cta.part * each * 128 + (2 * cta.part >= parts ? kGap : 0);
    put_fragments<kEights>(parts, warp * kEights, reinterpret_cast<float4*>(of_source) + lane, d,
                           [&](float4* own, int rank, float4 v) {
                             if (kGroups) v = elsewhere(v, parts);
                             cuda::tell_block(own, full, static_cast<unsigned>(rank), v);
                           });
  }
  __device__ static void finish_part(const Cta& cta, int consumer, const Tile& tile, bool all_odd) {
    const Job& job = cta.job();
    const float factor = cta.format.factor();
    finish_fragments<kEights, 1>(
        job, sums_of(cta, consumer, tile), threadIdx.x % 128, 128, all_odd,
        [&](const Columns& columns, int64_t row, bool all, float* at, float(&y)[8]) {
          uint32_t odd = all ? 0xFF : 0;
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            if constexpr (kChecksSums<C::kBf16, Format>)
              odd |= !(fabsf(y[j]) <= 0x1.fffffep127f) ? 1u << j : 0;
            if constexpr (Format::kColumnFactors)
              y[j] *= job.epilogue.columns.at(min(columns.first + j, job.n - 1));
            y[j] *= factor;
          }
          if (__builtin_expect(odd != 0, 0)) put_slow_sums(cta, columns, row, odd, at, y);
        });
  }
  // In place of those whose bits are set, by way of their unit: it saves the main loop registers.
  __device__ static void put_slow_sums(const Cta& cta, const Columns& columns, int64_t row,
                                       uint32_t which, float* at, float (&y)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) at[j * 16] = y[j];
#pragma unroll 1
    for (int j = 0; j < columns.count; ++j)
      if ((which >> j & 1) != 0)
        at[j * 16] = slow_sum<C::kBf16>(cta.job(), cta.format, PlainRows{}, row, columns.first + j);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = at[j * 16];
  }
  // Of the cluster's tile `t`, from 0 on.
  __device__ static void exchange_sums(const Cta& cta, int consumer, const Tile& tile, int t,
                                       bool is_last, bool odd, const Sums& d) {
    Barriers& b = cta.barriers();
    uint64_t* const free = free_barrier(cta, consumer);
    if constexpr (C::kInRing) arrive_everywhere(cta, free);
    const int phase = C::kInRing ? t : t - 1;
    if (phase >= 0) cuda::wait_bytes(free, phase % 2);
    put_part(cta, consumer, odd, d);
    cuda::wait_bytes(&b.sums_full[consumer], t % 2);
    finish_part(cta, consumer, tile, false);
    if (is_last) return;
    if constexpr (C::kInRing) {
      hopper::fence_async_proxy();
      __syncwarp();
      if (threadIdx.x % 32 == 0) hopper::arrive(&b.ring_read);
    } else {
      arrive_everywhere(cta, free);
    }
  }

  __device__ static void consume(const Cta& cta, int consumer) {
    Barriers& b = cta.barriers();
    const int tiles = cta.tiles();
    hopper::Ring<kStages> ring;
    WarpScales scales(cta, consumer);
    int count = 0;
    scales.put(cta);
    if (consumer == 1 && cta.steps() > kLead) hopper::wait(&b.full[kLead], 0);
#pragma unroll 1
    for (int i = cta.first_tile(); i < tiles; i += cta.of.parts.clusters) {
      ++count;
      const Tile tile = cta.tile(i);
      Sums d;
      bool odd = accumulate(cta, consumer, ring, scales, d);
      if constexpr (kChecksSums<C::kBf16, Format>) odd |= !is_finite(d);
      if (cta.of.parts.count > 1) {
        exchange_sums(cta, consumer, tile, count - 1, i + cta.of.parts.clusters >= tiles, odd, d);
        continue;
      }
      int& of_consumer = b.odd[consumer][count % 2];
      if (odd) of_consumer = count;
      hopper::sync_threads(1 + consumer, 128);
      odd = of_consumer == count;
      if (odd)
        finish_odd(cta, consumer, tile);
      else if (makes_in_registers(cta.job().epilogue))
        finish_in_registers(cta, consumer, tile, d);
      else
        finish(cta, consumer, tile, d);
    }
  }
  // Of a weight that is odd as a whole: parts share the tile, and none waits for another.
  __device__ static void consume_odd(const Cta& cta, int consumer) {
#pragma unroll 1
    for (int i = cta.first_tile(); i < cta.tiles(); i += cta.of.parts.clusters) {
      if (cta.of.parts.count > 1)
        finish_part(cta, consumer, cta.tile(i), true);
      else
        finish_odd(cta, consumer, cta.tile(i));
    }
  }

  __device__ static void run(const HopperJob& of, Format format) {
    extern __shared__ __align__(1024) char raw[];
    Barriers& b = *reinterpret_cast<Barriers*>(raw + C::kBarrierPlace);
    if (threadIdx.x == 0) {
      hopper::prefetch_map(&of.x);
      hopper::prefetch_map(&of.codes);
      for (int i = 0; i < kStages; ++i) {
        hopper::init_barrier(&b.full[i], 1);
        hopper::init_barrier(&b.empty[i], C::kConsumers);
      }
      for (int i = 0; i < C::kConsumers; ++i) b.odd[i][0] = b.odd[i][1] = 0;
      init_part_barriers(b, of.parts.count);
      hopper::publish_barriers();
    }
    const bool in_parts = of.parts.count > 1;
    if (in_parts) {
      __syncwarp();
      cuda::cluster_begin();
    }
    make_table(raw, format);
    cuda::wait_previous_kernel();
    // Clusters leave multiprocessors to blocks of the next one.
    if (in_parts) cuda::start_next_kernel();
    const bool all_odd = format.start();
    __syncthreads();
    const int part = static_cast<int>(blockIdx.x) % of.parts.count;
    const Cta cta{of, format, raw, part};
    if (threadIdx.x < 128) {
      hopper::give_registers<C::kProducerRegisters>();
      if (!all_odd && threadIdx.x == 0) produce(cta);
      __syncwarp();
      if (in_parts) cuda::cluster_wait();
    } else {
      hopper::take_registers<C::kConsumerRegisters>();
      if (in_parts) cuda::cluster_wait();
      const int consumer = threadIdx.x / 128 - 1;
      if (all_odd)
        consume_odd(cta, consumer);
      else
        consume(cta, consumer);
    }
  }
};

#endif  // PESTLE_HOPPER

#ifdef __CUDACC__

template <class C, class Format>
__global__ void __launch_bounds__(C::kThreads, 1)
    many_rows_hopper_kernel(const __grid_constant__ HopperJob job, const Format format) {
#if PESTLE_HOPPER
  HopperGemm<C, Format>::run(job, format);
#endif
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::many_rows
