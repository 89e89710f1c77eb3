// The matrix product on Hopper: D[m, n] = sum over k of A[m, k] * B[n, k], tiles handed to an
// epilogue.
//
// Map      A persistent grid, one block a multiprocessor: one producer warp (TMA into a ring of
//          kStages) and two consumer warpgroups, each 64 rows x kTileN columns of accumulators in
//          registers (wgmma from shared memory).
// Order    Groups of 16 tiles along m sweep n, so that both operands of what runs at one time fit
//          the L2. Sums run along k in one order: two runs give the same bits.
// Traffic  Per tile and 128 bytes of k: 16 KiB of A, kTileN * 128 bytes of B through L2.
// Tried    Clusters of two that share B by multicast: half the traffic of B, and 0.5 to 0.8 of the
//          speed (H200, bf16, five shapes); not understood, left out.
#pragma once

#include "backends/cuda/device/hopper.cuh"
#include "backends/cuda/device/wgmma.cuh"

namespace pestle::cuda::hopper {

constexpr int kTileM = 128;
constexpr int kRowBytes = 128;               // of k a stage, and of a row of swizzled shared memory
constexpr int kGroup = 16;                   // tiles along m that sweep n together
constexpr int kMatmulThreads = 384;          // producer, two consumers
constexpr int kChunkBytes = 64 * kRowBytes;  // 64 rows

struct MatmulTiles {
  CUtensorMap a;
  CUtensorMap b;
  int m_tiles;
  int n_tiles;
  int k_steps;  // of kRowBytes
  int total;    // m_tiles * n_tiles * batches
};

template <Product kOf, int kN, int kStagesOf, bool kA_AlongK, bool kB_AlongK>
struct MatmulConfig {
  static constexpr Product kProduct = kOf;
  static constexpr int kTileN = kN;
  static constexpr int kStages = kStagesOf;
  static constexpr bool kAlongK_A = kA_AlongK;
  static constexpr bool kAlongK_B = kB_AlongK;
  using Accumulator = float;
};

template <int kTileN, int kStages>
struct MatmulMemory {
  static constexpr int kABytes = kTileM * kRowBytes;
  static constexpr int kBBytes = kTileN * kRowBytes;
  char a[kStages][kABytes];
  char b[kStages][kBBytes];
  char out[2][2 * kChunkBytes];  // of each consumer: 64 rows x 128 columns of 16 bits
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

#if PESTLE_HOPPER

struct Tile {
  int m, n, batch;  // in tiles
};

__device__ inline Tile tile_at(const MatmulTiles& t, int index) {
  const int per_batch = t.m_tiles * t.n_tiles;
  const int batch = index / per_batch;
  const int i = index - batch * per_batch;
  const int width = kGroup * t.n_tiles;
  const int group = i / width;
  const int first = group * kGroup;
  const int rows = min(t.m_tiles - first, kGroup);
  const int j = i - group * width;
  const int n = j / rows;
  return {first + j - n * rows, n, batch};
}

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

template <class Config>
struct HopperMatmul {
  static constexpr Product kProduct = Config::kProduct;
  static constexpr int kTileN = Config::kTileN;
  static constexpr int kStages = Config::kStages;
  static constexpr bool kAlongK_A = Config::kAlongK_A;
  static constexpr bool kAlongK_B = Config::kAlongK_B;
  static constexpr int kElementBytes = is_8_bit(kProduct) ? 1 : 2;
  static constexpr int kStepK = kRowBytes / kElementBytes;
  static constexpr int kAccumulators = kTileN / 2;
  using Memory = MatmulMemory<kTileN, kStages>;
  using Accumulator = typename Config::Accumulator;  // float, or int

  // One stage of A: along k a box of 128 rows; across k two boxes of 64 columns of k.
  __device__ static void load_a(Memory& s, int stage, const MatmulTiles& t, const Tile& tile,
                                int step) {
    if constexpr (kAlongK_A) {
      load_box(s.a[stage], &t.a, &s.full[stage], step * kStepK, tile.m * kTileM, tile.batch);
    } else {
      for (int c = 0; c < kTileM / 64; ++c)
        load_box(s.a[stage] + c * kChunkBytes, &t.a, &s.full[stage], tile.m * kTileM + c * 64,
                 step * kStepK, tile.batch);
    }
  }

  __device__ static void load_b(Memory& s, int stage, const MatmulTiles& t, const Tile& tile,
                                int step) {
    if constexpr (kAlongK_B) {
      load_box(s.b[stage], &t.b, &s.full[stage], step * kStepK, tile.n * kTileN, tile.batch);
    } else {
      for (int c = 0; c < kTileN / 64; ++c)
        load_box(s.b[stage] + c * kChunkBytes, &t.b, &s.full[stage], tile.n * kTileN + c * 64,
                 step * kStepK, tile.batch);
    }
  }

  // By one thread.
  template <class Epilogue>
  __device__ static void produce(Memory& s, const MatmulTiles& t, const Epilogue& epilogue) {
    Ring<kStages> ring;
    for (int i = blockIdx.x; i < t.total; i += gridDim.x) {
      const Tile tile = tile_at(t, i);
      for (int step = 0; step < t.k_steps; ++step) {
        wait(&s.empty[ring.stage], ring.parity ^ 1);
        arrive_expecting(&s.full[ring.stage], Memory::kABytes + Memory::kBBytes);
        load_a(s, ring.stage, t, tile, step);
        load_b(s, ring.stage, t, tile, step);
        epilogue.template prefetch<kTileN>(tile, step);
        ring.advance();
      }
    }
  }

  __device__ static void release(Memory& s, int stage) {
    if (threadIdx.x % 128 == 0) arrive(&s.empty[stage]);
  }

  // The sums of one tile; `consumer`: which 64 rows.
  __device__ static void accumulate(Memory& s, const MatmulTiles& t, Ring<kStages>& ring,
                                    int consumer, Accumulator (&d)[kAccumulators]) {
    constexpr int kStepA =
        (kAlongK_A ? 32 : 16 * kRowBytes) >> 4;  // of a descriptor, 32 bytes of k
    constexpr int kStepB = (kAlongK_B ? 32 : 16 * kRowBytes) >> 4;
    int before = -1;
    for (int step = 0; step < t.k_steps; ++step) {
      wait(&s.full[ring.stage], ring.parity);
      const uint64_t a = describe<kAlongK_A>(s.a[ring.stage] + consumer * kChunkBytes, kChunkBytes);
      const uint64_t b = describe<kAlongK_B>(s.b[ring.stage], kChunkBytes);
      fence_products();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        multiply<kProduct, kTileN, kAlongK_A, kAlongK_B>(d, a + i * kStepA, b + i * kStepB,
                                                         step > 0 || i > 0);
      commit_products();
      if (before >= 0) {
        wait_products<1>();
        release(s, before);
      }
      before = ring.stage;
      ring.advance();
    }
    wait_products<0>();
    release(s, before);
  }

  // epilogue(tile, consumer, accumulators, staging memory) stores a tile.
  template <class Epilogue>
  __device__ static void run(const MatmulTiles& t, const Epilogue& epilogue) {
    extern __shared__ char raw[];
    Memory& s =
        *reinterpret_cast<Memory*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        init_barrier(&s.full[i], 1);
        init_barrier(&s.empty[i], 2);
      }
      publish_barriers();
    }
    __syncthreads();
    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
      give_registers<40>();
      if (threadIdx.x == 0) {
        prefetch_map(&t.a);
        prefetch_map(&t.b);
        produce(s, t, epilogue);
      }
    } else {
      take_registers<232>();
      Ring<kStages> ring;
      const int consumer = warpgroup - 1;
      for (int i = blockIdx.x; i < t.total; i += gridDim.x) {
        Accumulator d[kAccumulators];
        accumulate(s, t, ring, consumer, d);
        epilogue(tile_at(t, i), consumer, d, s.out[consumer]);
      }
      epilogue.finish();
    }
  }
};

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
