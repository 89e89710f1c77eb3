// A linear layer of quantised operands in one launch: x becomes codes with a scale a row in shared
// memory, and is multiplied there.
//
// Map      A cluster has 64 or 128 rows of x and goes through tiles along n; each of its CTAs has a
//          part of k. A warp brings the weight by TMA into a ring, from the start. The other warps,
//          one to three warpgroups, make codes of their CTA's part of x, which stay: a half-warp a
//          row, eight neighbours a lane, in the swizzled layout that wgmma reads. Then each warpgroup
//          multiplies 64 rows of the weight, the instruction's first operand, with x, its second.
// Cluster  A row's largest magnitude goes from each CTA to all. Sums of eight rows of x go to one CTA,
//          which adds the parts in order and finishes them, eight neighbours of a row a thread. Both are
//          counted by barriers as they arrive; a third says that sums have been read.
// Overlap  The weight's first stages arrive while x becomes codes. Until the kernel before has ended,
//          for it may have made the weight, they go no further than the L2.
// Traffic  The weight once for each 64 or 128 rows of x; x once a cluster from the L2, twice what of it a
//          thread can't keep in registers.
// Numerics Codes and scales are the quantising op's. Integers' sums are exact in s32. Those of 8-bit floats
//          begin anew every 128 of k and are added in f32, whatever `accumulation` asks for. Two runs
//          give the same bits.
// Needs    Code of sm_90a; rows of x at multiples of 16 bytes, K a multiple of 8.
#pragma once

#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/ptx/wgmma.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/gemm/epilogue/fused_epilogue.cuh"
#include "ops/gemm/sm90/one_launch_plan.h"
#include "ops/gemm/weight_only/finish_rows.cuh"
#include "ops/quant/rowwise/quantize_by_reciprocal.cuh"
#include "ops/quant/rowwise/quantize_unit.cuh"

namespace pestle::ops::one_launch {

struct Job {
  cuda::hopper::EpilogueArguments epilogue;  // factors of rows are the kernel's own
  CUtensorMap weight;
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  int m = 0, n = 0, k = 0;
  int groups = 0, parts = 0, boxes = 0, stages = 0, n_tiles = 0, sweeps = 0;  // as of OneLaunchPlan
  int code_place = 0, sum_place = 0, largest_place = 0, scale_place = 0, barrier_place = 0;
};

#ifdef __CUDACC__

struct Barriers {
  uint64_t full[kOneLaunchMostStages];
  uint64_t empty[kOneLaunchMostStages];
  uint64_t largest;    // all parts' magnitudes are here
  uint64_t sums;       // all parts' sums of the tile are here
  uint64_t sums_read;  // every CTA of the cluster has read its own
};
static_assert(sizeof(Barriers) <= kOneLaunchBarrierBytes);

constexpr int kThreads = kOneLaunchMostGroups * 128 + 32;
// What of x a thread keeps in registers: units of eight.
template <class X>
constexpr int kKept = X::kBytes == 2 ? 24 : 12;

#if PESTLE_HOPPER

// Does one product decide most rows' codes?
template <class X, class Code>
constexpr bool kMostlyProducts = X::kBytes == 2 && !std::is_same_v<Code, Fp8Code<formats::E5m2>>;
// Of the rows where it does not: out of line, since code that is not there is not fetched.
template <class X, class Code>
__device__ __noinline__ uint2 encode_rarely(typename X::Raw raw, cuda::Divider by, uint32_t most) {
  return encode_unit_below<X, Code, true>(most, raw, by, {false, 0}, 0);
}

template <cuda::hopper::WgmmaType kWgmma, class X, class Code, int kRows>
struct OneLaunch {
  static constexpr bool kInt = kWgmma == cuda::hopper::WgmmaType::kInt8;
  static constexpr int kBox = kOneLaunchBox;
  static constexpr int kEights = kRows / 8;  // of rows of x
  static constexpr int kUnits = kKept<X>;
  using Sum = std::conditional_t<kInt, int, float>;
  using Raw = typename X::Raw;

  struct Cta {
    const Job& of;
    char* memory;
    int part, sweep, first_row;
    int rows;  // of x that there are
    __device__ explicit Cta(const Job& job, char* shared) : of(job), memory(shared) {
      const int cluster = static_cast<int>(blockIdx.x) / of.parts;
      part = static_cast<int>(blockIdx.x) - cluster * of.parts;
      const int m_tile = cluster / of.sweeps;
      sweep = cluster - m_tile * of.sweeps;
      first_row = m_tile * kRows;
      rows = min(of.m - first_row, kRows);
    }
    __device__ int stage_bytes() const { return of.groups * (kOneLaunchBlock * kBox); }
    __device__ char* codes(int box) const { return memory + of.code_place + box * (kRows * kBox); }
    // Rows of parts.
    __device__ float* largest() const {
      return reinterpret_cast<float*>(memory + of.largest_place);
    }
    __device__ float* scales() const { return reinterpret_cast<float*>(memory + of.scale_place); }
    __device__ Barriers& barriers() const {
      return *reinterpret_cast<Barriers*>(memory + of.barrier_place);
    }
    // A part's sums of one tile.
    __device__ int source_bytes() const { return of.groups * 4 * (kEights / of.parts) * 512; }
    __device__ char* sums(int source) const {
      return memory + of.sum_place + source * source_bytes();
    }
    // Those that multiply.
    __device__ void sync() const { cuda::hopper::sync_threads(1, of.groups * 128); }
  };

  // ---- the weight -------------------------------------------------------------------------------
  struct Place {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance(int stages) {
      if (++stage < stages) return;
      stage = 0;
      parity ^= 1;
    }
  };
  __device__ static void prefetch(const Cta& cta) {
    const Job& of = cta.of;
    const int row = cta.sweep * of.groups * kOneLaunchBlock;
    for (int i = 0; i < min(of.stages, of.boxes); ++i)
      cuda::hopper::prefetch_box(&of.weight, (cta.part * of.boxes + i) * kBox, row, 0);
  }
  // By one thread.
  __device__ static void produce(const Cta& cta) {
    const Job& of = cta.of;
    Barriers& b = cta.barriers();
    Place at;
    for (int tile = cta.sweep; tile < of.n_tiles; tile += of.sweeps) {
      for (int i = 0; i < of.boxes; ++i) {
        cuda::hopper::wait(&b.empty[at.stage], at.parity ^ 1);
        cuda::hopper::arrive_expecting(&b.full[at.stage], cta.stage_bytes());
        cuda::hopper::load_box(cta.memory + at.stage * cta.stage_bytes(), &of.weight,
                               &b.full[at.stage], (cta.part * of.boxes + i) * kBox,
                               tile * of.groups * kOneLaunchBlock, 0);
        at.advance(of.stages);
      }
    }
  }

  // ---- x ------------------------------------------------------------------------------------------
  // The thread's units of x: box by box of a row, then the next row of its half-warp.
  struct Units {
    int lane, step, first_row;  // of 16; rows from one to the half-warp's next
    int count;
    const char* from;
    int left;  // columns from the lane's first one on
    __device__ explicit Units(const Cta& cta)
        : lane(threadIdx.x % 16), step(cta.of.groups * 8), first_row(threadIdx.x / 16) {
      count = (cta.rows + step - 1) / step * cta.of.boxes;
      const int column = cta.part * cta.of.boxes * kBox + lane * 8;
      from = cta.of.x + int64_t{cta.first_row} * cta.of.x_row_bytes + int64_t{column} * X::kBytes;
      left = cta.of.k - column;
    }
  };
  struct UnitPlace {
    int row, box;
    __device__ UnitPlace(const Units& u, int unit, int boxes)
        : row(u.first_row + unit / boxes * u.step), box(unit % boxes) {}
    // True at the end of a row.
    __device__ bool advance(const Units& u, int boxes) {
      if (++box < boxes) return false;
      box = 0;
      row += u.step;
      return true;
    }
  };
  __device__ static void load(const Cta& cta, const Units& u, int first, Raw (&raw)[kUnits]) {
    UnitPlace at(u, first, cta.of.boxes);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (first + i >= u.count) break;
      const bool has = at.row < cta.rows && at.box * kBox < u.left;
      raw[i] = has ? X::load(u.from + at.row * cta.of.x_row_bytes + at.box * (kBox * X::kBytes))
                   : X::zero();
      at.advance(u, cta.of.boxes);
    }
  }
  // Rows' largest magnitudes to every CTA; `most`: of a row that has begun.
  __device__ static void tell_largest(const Cta& cta, const Units& u, int first,
                                      const Raw (&raw)[kUnits], uint32_t& most) {
    UnitPlace at(u, first, cta.of.boxes);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (first + i >= u.count) break;
      most = max(most, cuda::largest_of_unit<X>(raw[i]));
      const int row = at.row;
      if (!at.advance(u, cta.of.boxes)) continue;
#pragma unroll
      for (int apart = 8; apart > 0; apart /= 2)
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, apart));
      if (u.lane < cta.of.parts && row < cta.rows)
        cuda::tell_block(cta.largest() + row * cta.of.parts + cta.part, &cta.barriers().largest,
                         static_cast<unsigned>(u.lane), __uint_as_float(most));
      most = 0;
    }
  }
  struct Rule {
    uint32_t most = 0;
    ByteRule bytes;
    __device__ Rule(const Cta& cta, const Units& u, int row) {
      const float* from = cta.largest() + min(row, cta.rows - 1) * cta.of.parts;
      for (int i = 0; i < cta.of.parts; ++i) most = max(most, __float_as_uint(from[i]));
      bytes = computed_rule<X, Code>(Code::scale(most), most);
      if (u.lane == 0 && row < cta.rows) cta.scales()[row] = bytes.by.scale;
    }
    __device__ uint2 codes(const Raw& raw) const {
      if constexpr (kMostlyProducts<X, Code>)
        return bytes.by_reciprocal ? bytes_by_reciprocal<X, Code, true>(raw, bytes)
                                   : encode_rarely<X, Code>(raw, bytes.by, most);
      else
        return encode_unit_below<X, Code, true>(most, raw, bytes.by, {false, 0}, 0);
    }
  };
  __device__ static void encode(const Cta& cta, const Units& u, int first,
                                const Raw (&raw)[kUnits]) {
    UnitPlace at(u, first, cta.of.boxes);
    Rule rule(cta, u, at.row);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (first + i >= u.count) break;
      const uint2 codes = rule.codes(raw[i]);
      if (at.row < cta.rows)
        *reinterpret_cast<uint2*>(cta.codes(at.box) + one_launch_code_place(at.row, u.lane)) =
            codes;
      if (at.advance(u, cta.of.boxes) && first + i + 1 < u.count) rule = Rule(cta, u, at.row);
    }
  }
  // All codes of the CTA's part of x, into shared memory. Rows that there are not have none: they make
  // sums that nobody reads.
  __device__ static void quantize(const Cta& cta) {
    Barriers& b = cta.barriers();
    if (threadIdx.x == 0) cuda::expect_bytes(&b.largest, cta.of.parts * cta.rows * 4);
    const Units u(cta);
    Raw raw[kUnits];
    load(cta, u, 0, raw);
    cuda::cluster_wait();  // the others have begun: their barriers can be told
    uint32_t most = 0;
    tell_largest(cta, u, 0, raw, most);
    int first = 0;
    while (first + kUnits < u.count) {
      first += kUnits;
      load(cta, u, first, raw);
      tell_largest(cta, u, first, raw, most);
    }
    cuda::wait_bytes(&b.largest, 0);
    // Backwards: the last ones are still in registers.
    encode(cta, u, first, raw);
    while (first > 0) {
      first -= kUnits;
      load(cta, u, first, raw);
      encode(cta, u, first, raw);
    }
    cuda::hopper::fence_async_proxy();
    cta.sync();
  }

  // ---- products -----------------------------------------------------------------------------------
  __device__ static void release(const Cta& cta, int stage) {
    if (threadIdx.x % 128 == 0) cuda::hopper::arrive(&cta.barriers().empty[stage]);
  }
  template <int kN>
  __device__ static void multiply_box(const char* weight, const char* codes, bool more,
                                      Sum (&d)[kN / 2]) {
    const uint64_t a = cuda::hopper::describe<true>(weight, 0);
    const uint64_t b = cuda::hopper::describe<true>(codes, 0);
    cuda::hopper::fence_wgmma();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      cuda::hopper::multiply<kWgmma, kN, true, true>(d, a + i * 2, b + i * 2, more || i > 0);
    cuda::hopper::commit_wgmma();
  }
  __device__ static void multiply_tile(const Cta& cta, Place& at, Sum (&d)[kRows / 2]) {
    const int group = threadIdx.x / 128;
    int before = -1;
    for (int box = 0; box < cta.of.boxes; ++box) {
      cuda::hopper::wait(&cta.barriers().full[at.stage], at.parity);
      const char* weight = cta.memory + at.stage * cta.stage_bytes() + group * (64 * kBox);
      if constexpr (kInt) {
        multiply_box<kRows>(weight, cta.codes(box), box > 0, d);
        if (before >= 0) {
          cuda::hopper::wait_wgmma<1>();
          release(cta, before);
        }
      } else {
        // 64 rows of x at a time: sums of 128 and as many in the making would not fit in registers.
#pragma unroll
        for (int half = 0; half < kRows / 64; ++half) {
          float of_box[32];
          multiply_box<64>(weight, cta.codes(box) + half * (64 * kBox), false, of_box);
          cuda::hopper::wait_wgmma<0>();
#pragma unroll
          for (int i = 0; i < 32; ++i) d[half * 32 + i] += of_box[i];
        }
        release(cta, at.stage);
      }
      before = at.stage;
      at.advance(cta.of.stages);
    }
    if constexpr (kInt) {
      cuda::hopper::wait_wgmma<0>();
      release(cta, before);
    }
  }

  // ---- sums ---------------------------------------------------------------------------------------
  __device__ static float bits_of(float v) { return v; }
  __device__ static float bits_of(int v) { return __int_as_float(v); }
  // How many eights of rows of x this CTA finishes.
  __device__ static int eights_of(const Cta& cta) {
    const int eights = (cta.rows + 7) / 8;
    return eights > cta.part ? (eights - cta.part + cta.of.parts - 1) / cta.of.parts : 0;
  }
  __device__ static void send_sums(const Cta& cta, const Sum (&d)[kRows / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, parts = cta.of.parts;
    Barriers& b = cta.barriers();
    if (threadIdx.x == 0)
      cuda::expect_bytes(&b.sums, parts * cta.of.groups * 4 * eights_of(cta) * 512);
    auto* to = reinterpret_cast<float4*>(cta.sums(cta.part)) + lane;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      if (i * 8 >= cta.rows) break;
      cuda::tell_block(to + one_launch_fragment(warp, i, kEights, parts) * 32, &b.sums,
                       static_cast<unsigned>(i % parts),
                       make_float4(bits_of(d[4 * i]), bits_of(d[4 * i + 1]), bits_of(d[4 * i + 2]),
                                   bits_of(d[4 * i + 3])));
    }
  }
  // Eight neighbours of a row of out. Lanes that swap read them in another order than the warp's others,
  // which read another fragment, so that none meet in a bank.
  __device__ static void add_parts(const Cta& cta, int fragment, int unit, int swap,
                                   float (&y)[8]) {
    const auto* from = reinterpret_cast<const Sum*>(cta.sums(0)) + fragment * 128 +
                       one_launch_sum_place(unit / 8 * 8, unit % 8);
    const int source = cta.source_bytes() / 4;
    Sum sums[8] = {};
#pragma unroll 2
    for (int s = 0; s < cta.of.parts; ++s, from += source) {
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const Sum a = from[(j + swap) * 16], b = from[(j + 1 - swap) * 16];
        sums[j] += swap ? b : a;
        sums[j + 1] += swap ? a : b;
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = static_cast<float>(sums[j]);
  }
  __device__ static void finish(const Cta& cta, int tile) {
    const Job& of = cta.of;
    const int mine = eights_of(cta), warps = of.groups * 4;
    const bool of_terms = !kInt;  // an infinite factor of terms is NaN
#pragma unroll 1
    for (int q = threadIdx.x; q < mine * warps * 16; q += of.groups * 128) {
      const int unit = q % 16, warp = q / 16 % warps, eight = q / 16 / warps * of.parts + cta.part;
      const int row = eight * 8 + unit % 8;
      const int n = (tile * warps + warp) * 16 + unit / 8 * 8;
      if (row >= cta.rows || n >= of.n) continue;
      alignas(16) float y[8];
      add_parts(cta, one_launch_fragment(warp, eight, kEights, of.parts), unit, q / 16 % 2, y);
      float factor = cta.scales()[row];
      if (of_terms && fabsf(factor) == INFINITY) factor = NAN;
      cuda::many_rows::finish_row<true>(of.epilogue, {n, min(8, of.n - n)},
                                        int64_t{cta.first_row} + row, factor, y);
    }
  }
  // Columns' factors and biases of the tile on their way to the L2.
  __device__ static void prefetch_columns(const Cta& cta, int tile) {
    const cuda::hopper::EpilogueArguments& e = cta.of.epilogue;
    const int thread = static_cast<int>(threadIdx.x), columns = cta.of.groups * kOneLaunchBlock;
    const int n = tile * columns + thread;
    if (thread >= columns || n >= cta.of.n) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(e.columns.data + n * e.columns.step));
    if (e.bias.data)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(e.bias.data + n * e.bias.column_stride *
                                                                      e.bias.element_bytes()));
  }

  __device__ static void multiply_and_finish(const Cta& cta) {
    const Job& of = cta.of;
    Barriers& b = cta.barriers();
    Place at;
    uint32_t turn = 0;
    for (int tile = cta.sweep; tile < of.n_tiles; tile += of.sweeps, turn ^= 1) {
      Sum d[kRows / 2] = {};
      multiply_tile(cta, at, d);
      if (tile != cta.sweep) cuda::wait_bytes(&b.sums_read, turn ^ 1);  // of the tile before
      send_sums(cta, d);
      cuda::wait_bytes(&b.sums, turn);
      finish(cta, tile);
      const int next = tile + of.sweeps;
      if (next >= of.n_tiles) break;
      prefetch_columns(cta, next);
      cta.sync();
      if (static_cast<int>(threadIdx.x) < of.parts)
        cuda::arrive_at_block(&b.sums_read, threadIdx.x);
    }
  }

  __device__ static void init(const Cta& cta) {
    Barriers& b = cta.barriers();
    for (int i = 0; i < cta.of.stages; ++i) {
      cuda::hopper::init_barrier(&b.full[i], 1);
      cuda::hopper::init_barrier(&b.empty[i], cta.of.groups);
    }
    cuda::hopper::init_barrier(&b.largest, 1);
    cuda::hopper::init_barrier(&b.sums, 1);
    cuda::hopper::init_barrier(&b.sums_read, cta.of.parts);
    cuda::hopper::publish_barriers();
  }
  __device__ static void run(const Job& of) {
    extern __shared__ __align__(1024) char raw[];
    const Cta cta(of, raw);
    const int multiplying = of.groups * 128, thread = static_cast<int>(threadIdx.x);
    if (thread == multiplying) {
      cuda::hopper::prefetch_map(&of.weight);
      init(cta);
      prefetch(cta);
    }
    cuda::start_next_kernel();
    __syncthreads();
    cuda::cluster_arrive();
    cuda::wait_previous_kernel();
    if (thread >= multiplying) {
      if (thread == multiplying) produce(cta);
      __syncwarp();
      cuda::cluster_wait();
      return;
    }
    prefetch_columns(cta, cta.sweep);
    quantize(cta);
    multiply_and_finish(cta);
  }
};

#endif  // PESTLE_HOPPER

template <cuda::hopper::WgmmaType kWgmma, class X, class Code, int kRows>
__global__ void __launch_bounds__(kThreads, 1) one_launch_kernel(const __grid_constant__ Job job) {
#if PESTLE_HOPPER
  OneLaunch<kWgmma, X, Code, kRows>::run(job);
#endif
}

#endif  // __CUDACC__

}  // namespace pestle::ops::one_launch
