// GEMMs of 8-bit operands with few rows of a on sm_90: the CTAs of a cluster share k, so that as many
// multiprocessors read the weight as there are, and its first stages are on their way while the kernel in
// front still makes a's codes.
//
// Map      A cluster has 64 or 128 rows of a and goes through tiles along n; each of its CTAs has a part
//          of k. A warp fills a ring by TMA; one to three warpgroups multiply, each 64 rows of the weight,
//          the instruction's first operand, with the rows of a, its second.
// Sums     Those of eight rows of a go to one CTA of the cluster, through its shared memory. It adds the
//          parts in order and finishes them, eight neighbours of a row a thread. A barrier counts the
//          bytes that come, another says that sums have been read.
// Early    Where the kernel in front waits for what is before it and then lets this one begin, and writes
//          no weight, the weight is read before that kernel has ended. Else it goes no further than the L2.
// Traffic  The weight once for each 64 or 128 rows of a; a once a tile, from the L2.
// Numerics Integers' sums are exact in s32. Those of 8-bit floats begin anew every 128 of k and are added
//          in f32, whatever `accumulation` asks for. Two runs give the same bits.
// Needs    Code of sm_90a; what TMA needs.
#pragma once

#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/ptx/wgmma.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/gemm/epilogue/fused_epilogue.cuh"
#include "ops/gemm/sm90/cluster_k_plan.h"
#include "ops/gemm/weight_only/finish_rows.cuh"

namespace pestle::ops::cluster_k {

struct Job {
  cuda::hopper::EpilogueArguments epilogue;
  CUtensorMap weight, a;
  int m = 0, n = 0;
  int a_rows = 0;  // of a box
  int groups = 0, parts = 0, boxes = 0, stages = 0, m_tiles = 0, n_tiles = 0, sweeps = 0;
  int sum_place = 0, barrier_place = 0;
  bool early = false;
  bool plain = false;  // finish_plain_row() takes whole eights
};

#ifdef __CUDACC__

struct Barriers {
  uint64_t full[kClusterMostStages];
  uint64_t empty[kClusterMostStages];
  uint64_t sums;       // those that this CTA adds have come
  uint64_t sums_read;  // every CTA of the cluster has read its own
};
static_assert(sizeof(Barriers) <= kClusterBarrierBytes);

constexpr int kThreads = kClusterMostGroups * 128 + 32;

#if PESTLE_HOPPER

template <cuda::hopper::WgmmaType kWgmma, int kRows>
struct ClusterK {
  static constexpr bool kInt = kWgmma == cuda::hopper::WgmmaType::kInt8;
  static constexpr int kBox = kClusterBox;
  static constexpr int kEights = kRows / 8;  // of rows of a
  using Sum = std::conditional_t<kInt, int, float>;

  struct Cta {
    const Job& of;
    char* memory;
    int part, sweep, first_row;
    int rows;  // of a that there are
    __device__ Cta(const Job& job, char* shared) : of(job), memory(shared) {
      const int cluster = static_cast<int>(blockIdx.x) / of.parts;
      part = static_cast<int>(blockIdx.x) - cluster * of.parts;
      sweep = cluster / of.m_tiles;
      first_row = (cluster - sweep * of.m_tiles) * kRows;
      rows = min(of.m - first_row, kRows);
    }
    __device__ int weight_bytes() const { return of.groups * (kClusterBlock * kBox); }
    __device__ char* stage(int i) const { return memory + i * (weight_bytes() + kRows * kBox); }
    __device__ Barriers& barriers() const {
      return *reinterpret_cast<Barriers*>(memory + of.barrier_place);
    }
    // A part's sums of one tile.
    __device__ int source_bytes() const { return of.groups * 4 * (kEights / of.parts) * 512; }
    __device__ char* sums(int source) const {
      return memory + of.sum_place + source * source_bytes();
    }
  };
  struct Place {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance(int stages) {
      if (++stage < stages) return;
      stage = 0;
      parity ^= 1;
    }
  };

  // ---- copies, by one thread ------------------------------------------------------------------------
  __device__ static int column_of(const Cta& cta, int box) {
    return (cta.part * cta.of.boxes + box) * kBox;
  }
  __device__ static void load_weight(const Cta& cta, int stage, int tile, int box) {
    uint64_t* full = &cta.barriers().full[stage];
    cuda::hopper::arrive_expecting(full, cta.weight_bytes() + cta.of.a_rows * kBox);
    cuda::hopper::load_box(cta.stage(stage), &cta.of.weight, full, column_of(cta, box),
                           tile * cta.of.groups * kClusterBlock, 0);
  }
  __device__ static void load_a(const Cta& cta, int stage, int box) {
    cuda::hopper::load_box(cta.stage(stage) + cta.weight_bytes(), &cta.of.a,
                           &cta.barriers().full[stage], column_of(cta, box), cta.first_row, 0);
  }
  // The first tile's first boxes, one a stage.
  __device__ static int first_boxes(const Cta& cta) { return min(cta.of.stages, cta.of.boxes); }
  __device__ static void produce_first(const Cta& cta) {
    const int first = first_boxes(cta);
    const int row = cta.sweep * cta.of.groups * kClusterBlock;
    for (int i = 0; i < first && cta.of.early; ++i) load_weight(cta, i, cta.sweep, i);
    for (int i = 0; i < first && !cta.of.early; ++i)
      cuda::hopper::prefetch_box(&cta.of.weight, column_of(cta, i), row, 0);
    cuda::wait_previous_kernel();
    for (int i = 0; i < first; ++i) {
      if (!cta.of.early) load_weight(cta, i, cta.sweep, i);
      load_a(cta, i, i);
    }
  }
  __device__ static void produce_rest(const Cta& cta) {
    const Job& of = cta.of;
    const int first = first_boxes(cta);
    Place at;
    for (int tile = cta.sweep; tile < of.n_tiles; tile += of.sweeps) {
      for (int box = 0; box < of.boxes; ++box) {
        if (tile != cta.sweep || box >= first) {
          cuda::hopper::wait(&cta.barriers().empty[at.stage], at.parity ^ 1);
          load_weight(cta, at.stage, tile, box);
          load_a(cta, at.stage, box);
        }
        at.advance(of.stages);
      }
    }
  }

  // ---- products -----------------------------------------------------------------------------------
  // By each warp: with a stage for every box, one may be behind the others by a whole ring.
  __device__ static void release(const Cta& cta, int stage) {
    if (threadIdx.x % 32 == 0) cuda::hopper::arrive(&cta.barriers().empty[stage]);
  }
  template <int kN>
  __device__ static void multiply_box(const char* weight, const char* rows, bool more,
                                      Sum (&d)[kN / 2]) {
    const uint64_t a = cuda::hopper::describe<true>(weight, 0);
    const uint64_t b = cuda::hopper::describe<true>(rows, 0);
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
      const char* weight = cta.stage(at.stage) + group * (kClusterBlock * kBox);
      const char* rows = cta.stage(at.stage) + cta.weight_bytes();
      if constexpr (kInt) {
        multiply_box<kRows>(weight, rows, box > 0, d);
        if (before >= 0) {
          cuda::hopper::wait_wgmma<1>();
          release(cta, before);
        }
      } else {
        // 64 rows of a at a time: sums of 128 and as many in the making would not fit in registers.
#pragma unroll
        for (int half = 0; half < kRows / 64; ++half) {
          float of_box[32];
          multiply_box<64>(weight, rows + half * (64 * kBox), false, of_box);
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
  // How many eights of rows of a this CTA finishes.
  __device__ static int eights_of(const Cta& cta) {
    const int eights = (cta.rows + 7) / 8;
    return eights > cta.part ? (eights - cta.part + cta.of.parts - 1) / cta.of.parts : 0;
  }
  __device__ static void send_sums(const Cta& cta, const Sum (&d)[kRows / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, parts = cta.of.parts;
    uint64_t* const sums = &cta.barriers().sums;
    if (threadIdx.x == 0)
      cuda::expect_bytes(sums, parts * cta.of.groups * 4 * eights_of(cta) * 512);
    auto* to = reinterpret_cast<float4*>(cta.sums(cta.part)) + lane;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      if (i * 8 >= cta.rows) break;
      cuda::tell_block(to + cluster_fragment(warp, i, kEights, parts) * 32, sums,
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
                       cluster_sum_place(unit / 8 * 8, unit % 8);
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
#pragma unroll 1
    for (int q = threadIdx.x; q < mine * warps * 16; q += of.groups * 128) {
      const int unit = q % 16, warp = q / 16 % warps, eight = q / 16 / warps * of.parts + cta.part;
      const int row = eight * 8 + unit % 8;
      const int n = (tile * warps + warp) * 16 + unit / 8 * 8;
      if (row >= cta.rows || n >= of.n) continue;
      const float factor = of.epilogue.rows.at(cta.first_row + row);
      alignas(16) float y[8];
      add_parts(cta, cluster_fragment(warp, eight, kEights, of.parts), unit, q / 16 % 2, y);
      if (of.plain && n + 8 <= of.n) {
#pragma unroll
        for (int j = 0; j < 8; ++j) y[j] = y[j] * of.epilogue.columns.at(n + j) * factor;
        cuda::many_rows::finish_plain_row(of.epilogue, n, int64_t{cta.first_row} + row, y);
        continue;
      }
      cuda::many_rows::finish_row<true>(of.epilogue, {n, min(8, of.n - n)},
                                        int64_t{cta.first_row} + row, factor, y);
    }
  }
  // Columns' factors and biases of the tile on their way to the L2.
  __device__ static void prefetch_columns(const Cta& cta, int tile) {
    const cuda::hopper::EpilogueArguments& e = cta.of.epilogue;
    const int thread = static_cast<int>(threadIdx.x), columns = cta.of.groups * kClusterBlock;
    const int n = tile * columns + thread;
    if (thread >= columns || n >= cta.of.n) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(e.columns.data + n * e.columns.step));
    if (e.bias.data)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(e.bias.data + n * e.bias.column_stride *
                                                                      e.bias.element_bytes()));
  }
  __device__ static void consume(const Cta& cta) {
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
      cuda::hopper::sync_threads(1, of.groups * 128);
      if (static_cast<int>(threadIdx.x) < of.parts)
        cuda::arrive_at_block(&b.sums_read, threadIdx.x);
    }
  }

  __device__ static void init(const Cta& cta) {
    Barriers& b = cta.barriers();
    for (int i = 0; i < cta.of.stages; ++i) {
      cuda::hopper::init_barrier(&b.full[i], 1);
      cuda::hopper::init_barrier(&b.empty[i], cta.of.groups * 4);
    }
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
      cuda::hopper::prefetch_map(&of.a);
      init(cta);
    }
    __syncthreads();
    cuda::cluster_begin();
    if (thread >= multiplying) {
      if (thread == multiplying) produce_first(cta);
      __syncwarp();
      cuda::cluster_wait();
      if (thread == multiplying) produce_rest(cta);
      return;
    }
    prefetch_columns(cta, cta.sweep);
    cuda::wait_previous_kernel();
    cuda::start_next_kernel();
    cuda::cluster_wait();  // the others have begun: their memory can be written
    consume(cta);
  }
};

#endif  // PESTLE_HOPPER

template <cuda::hopper::WgmmaType kWgmma, int kRows>
__global__ void __launch_bounds__(kThreads, 1) cluster_k_kernel(const __grid_constant__ Job job) {
#if PESTLE_HOPPER
  ClusterK<kWgmma, kRows>::run(job);
#endif
}

#endif  // __CUDACC__

}  // namespace pestle::ops::cluster_k
