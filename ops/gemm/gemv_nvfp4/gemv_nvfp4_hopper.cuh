// gemv_nvfp4 by Hopper's FP8 tensor cores, which hold E2M1 exactly.
// Map      A CTA of two warpgroups takes 64 rows of a and, where there are too few such, a part of
//          the columns: the CTAs of a cluster share the rows, and the first one joins their sums.
//          Each warpgroup has half of these columns, in steps of 128. In a step lane 4 g + t of a
//          warp has 32 codes, two blocks, of rows g and g + 8 of its 16, which are wgmma's register
//          operand. Of the product's eight columns one is each block's: b stands there and zeros
//          elsewhere, so that four products sum 16 codes each, and each lane finds the sums of its
//          own blocks. b lies in shared memory so, 8 steps at a time.
// Decoding An E2M1 code in the place of E4M3's lower exponent and upper fraction bits is its value
//          times 2^-6: 7 integer instructions for 8 codes.
// Traffic  a and its scales once; b and its scales once a CTA, from the L2.
// Numerics A block's sum is an integer of 12 bits times 2^-14, which the tensor cores' sums hold;
//          its scales and all that follows are f32, in an order that the shapes give.
// Overlap  Two steps of a warp are under way to shared memory while one is multiplied; its wait for
//          the tensor cores is covered by the other warps, 32 a multiprocessor.
// Counted  149 instructions a step and warp, 56 of them to decode, for 1,152 bytes: 0.13 a byte.
//          At 4 TB/s that would be 57 % of the issue slots.
// Measured H200, 7168 x 16384, 8 x 4096 x 7168, 4 x 7168 x 2048: 26.1, 48.2, 12.7 us, 66, 65, 72 % of
//          a copy (gemv_nvfp4 with pairs of f16, H100: 62, 64, 46). Instructions no longer bind; all
//          CTAs run at once, three or four to a multiprocessor, so that some have a third more to do.
// Tried    Steps under way in registers: the assembler puts the loads behind the products, where
//          nothing is left to cover them. mma.sync: sm_90a widens E4M3 to f16 for it.
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "backends/cuda/device/ptx/wgmma_registers.cuh"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_job.cuh"

namespace pestle::ops::gemv_nvfp4 {

inline constexpr int kTileRows = 64;  // of a CTA
inline constexpr int kGroups = 2;     // warpgroups
inline constexpr int kHopperThreads = kGroups * 128;
inline constexpr int kStep = 128;        // columns of four products: 64 bytes of codes
inline constexpr int kLine = 2 * kStep;  // of a row's line in memory, not shared by two slices
inline constexpr int kChunk = 8;         // steps of b in shared memory
inline constexpr int kStages = 3;        // steps of a there
inline constexpr int kMaxRanks = 8;      // CTAs of a cluster
inline constexpr int64_t kCtasWanted = 132 * 3;  // of 132 * 4 that run at once

// CTAs that share rows: no more than are wanted, and at least 4 steps a warpgroup.
inline int ranks_of(int64_t tiles, int64_t k) {
  int ranks = 1;
  while (ranks < kMaxRanks && tiles * ranks < kCtasWanted && k >= 8 * kStep * kGroups * ranks)
    ranks *= 2;
  return ranks;
}

// Codes of a word as E4M3 of 2^-6 times their values: the lower nibbles of its bytes, the upper.
struct Fp8Word {
  uint32_t low, high;
  __device__ explicit Fp8Word(uint32_t word)
      : low(((word << 4) & 0x80808080u) | ((word << 2) & 0x1C1C1C1Cu)),
        high((word & 0x80808080u) | ((word >> 2) & 0x1C1C1C1Cu)) {}
};
inline constexpr float kProductUnit = 4096;  // what products of two such are multiplied by

// b's part in a product: for each half (lower nibbles, upper) and column of the product 16 bytes.
struct Factor {
  uint4 rows[2][8];
};
// A warp's codes and scales of a step: of rows g and g + 8 each lane's 16 bytes; of each 64 columns
// and row four scales.
struct Stage {
  uint4 codes[2][32];
  uint32_t scales[2][16];
};
struct HopperShared {
  struct Group {
    alignas(128) Factor b[kChunk][4];
    float scales[kChunk * 8];  // b's
    Stage ring[4][kStages];    // of each warp
  } groups[kGroups];
  float4 sums[kGroups][kTileRows / 4];
  float4 joined[kMaxRanks][kTileRows / 4];
};

#if PESTLE_HOPPER

__device__ __forceinline__ float2 e4m3_pair(uint32_t half_bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&half_bits));
}

// A word of b, two to a block, and the block's scale; a thread's share of a chunk. Zeros from column
// `end` on.
struct PartOfB {
  uint32_t word = 0;
  uint8_t scale = 0;

  __device__ void load(const Job& job, int64_t batch, int64_t chunk_column, int64_t end) {
    static_assert(kChunk * kStep / 8 == 128);
    const int64_t column = chunk_column + threadIdx.x % 128 * 8;
    word = 0, scale = 0;
    if (column >= end) return;
    word = __ldg(reinterpret_cast<const uint32_t*>(job.b + batch * job.b_batch + column / 2));
    scale = __ldg(job.scale_b.at(batch, 0, column / kBlock));
  }
  // The word is the one of product 2p + w of lane t: there, bytes 4t of column 2t + p. In the two
  // products of the other p that column is 0.
  __device__ void put(HopperShared::Group& shared) const {
    const int thread = static_cast<int>(threadIdx.x % 128), w = thread % 2, block = thread / 2;
    const int column = block % 8, t = column / 2, product = column % 2 * 2 + w;
    const Fp8Word values(word);
    const auto row = [t](uint32_t v) {
      return make_uint4(t == 0 ? v : 0, t == 1 ? v : 0, t == 2 ? v : 0, t == 3 ? v : 0);
    };
    Factor* const step = shared.b[block / 8];
    step[product].rows[0][column] = row(values.low);
    step[product].rows[1][column] = row(values.high);
    step[product ^ 2].rows[0][column] = step[product ^ 2].rows[1][column] = row(0);
    if (w == 0) shared.scales[block] = e4m3_pair(cuda::warp::widen_e4m3(scale).x).x;
  }
};

// Where a lane of (g, t) reads: codes of rows g and g + 8 of its warp's, of 32 columns; scales of row
// g + 8 (t % 2), of 64 columns. Rows past the end read the last one again.
template <bool kSwizzled>
struct LaneRows {
  const char* codes[2];
  const uint8_t* scales;
  int left;  // pieces of 32 columns from the lane's to the end
  Stage* ring;
  int stage = 0;

  // From column `from` on, up to column `end`.
  __device__ LaneRows(const Job& job, int64_t batch, int64_t tile_row, int64_t from, int64_t end,
                      Stage* warps_ring)
      : ring(warps_ring) {
    const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
    const int64_t first = tile_row + threadIdx.x % 128 / 32 * 16 + lane / 4;
    const int64_t rows[2] = {min(first, job.rows - 1), min(first + 8, job.rows - 1)};
#pragma unroll
    for (int r = 0; r < 2; ++r)
      codes[r] = job.a + batch * job.a_batch + rows[r] * job.a_row + from / 2 + t * 16;
    const int64_t row = t % 2 == 0 ? rows[0] : rows[1], block = from / kBlock + t / 2 * 4;
    const Scales& of = job.scale_a;
    scales =
        of.data + batch * of.batch_bytes +
        (kSwizzled ? formats::swizzle_offset(row, block, of.columns) : row * of.row_bytes + block);
    left = static_cast<int>((end - from) / 32) - t;
  }
  // Asks for the next step. Past the end it is zeros; past a row's scales, too.
  __device__ void ask() {
    const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
    const uint32_t to = cuda::hopper::shared_address(&ring[stage]);
    const int bytes = left > 0 ? 16 : 0;
    cuda::copy_async(to + lane * 16, codes[0], bytes);
    cuda::copy_async(to + 512 + lane * 16, codes[1], bytes);
    // t % 2 pieces before the lane's the four scales begin.
    cuda::copy_word_async(to + 1024 + (t / 2 * 16 + t % 2 * 8 + lane / 4) * 4, scales,
                          max(0, min(2 * (left + t % 2), 4)));
    cuda::commit_copies();
    codes[0] += kStep / 2;
    codes[1] += kStep / 2;
    scales += kSwizzled ? 2 * formats::kSwizzleRows * formats::kSwizzleCols : kStep / kBlock;
    left -= kStep / 32;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
};
static_assert(sizeof(Stage) == 1024 + 128);

// A lane's share of a step.
struct HopperStep {
  uint32_t a[4][4];  // fragments of the four products
  uint32_t scales;   // of two blocks of row g and, above, of row g + 8

  __device__ explicit HopperStep(const Stage& from) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const uint4 x = from.codes[0][lane], y = from.codes[1][lane];
    const auto* two = reinterpret_cast<const uint16_t*>(from.scales[t / 2]) + t % 2;
    scales = static_cast<uint32_t>(two[2 * g]) | static_cast<uint32_t>(two[2 * g + 16]) << 16;
    const uint32_t words[2][4] = {{x.x, x.y, x.z, x.w}, {y.x, y.y, y.z, y.w}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Fp8Word upper(words[0][i]), lower(words[1][i]);
      a[i][0] = upper.low, a[i][1] = lower.low;
      a[i][2] = upper.high, a[i][3] = lower.high;
    }
    cuda::hopper::hold(a);
  }
  // Sums of blocks times their scales, onto those of rows g and g + 8. `b`: descriptor of the step's
  // first factor; `by`: b's scales of the lane's blocks.
  __device__ void multiply(uint64_t b, float2 by, float (&sums)[2]) {
    using namespace cuda::hopper;
    float d[4] = {};
    hold(d);
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_eight(d, a[i], b + i * (sizeof(Factor) >> 4), i > 0);
    commit_wgmma();
    const uint2 own = cuda::warp::widen_e4m3(scales);
    const float2 s0 = e4m3_pair(own.x), s1 = e4m3_pair(own.y);
    const float by0 = s0.x * by.x, by1 = s0.y * by.y, by2 = s1.x * by.x, by3 = s1.y * by.y;
    wait_wgmma<0>();
    hold(d);
    hold(a);
    sums[0] = __fmaf_rn(d[1], by1, __fmaf_rn(d[0], by0, sums[0]));
    sums[1] = __fmaf_rn(d[3], by3, __fmaf_rn(d[2], by2, sums[1]));
  }
};

// A warpgroup's sums of columns [from, end), a lane's of each of its two rows. All take as many steps:
// those past the end are zeros.
template <bool kSwizzled>
__device__ void sum_columns(const Job& job, int64_t batch, int64_t first_row, int64_t from,
                            int64_t end, HopperShared::Group& shared, float (&sums)[2]) {
  const int thread = static_cast<int>(threadIdx.x % 128);
  Stage* const ring = shared.ring[thread / 32];
  LaneRows<kSwizzled> rows(job, batch, first_row, from, end, ring);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) rows.ask();
  PartOfB next;
  next.load(job, batch, from, end);
  const int steps = static_cast<int>(job.slice / kStep);
  const uint64_t first_b = cuda::hopper::describe_eight(shared.b);
  const float* first_scales = shared.scales + thread % 4 * 2;
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int place = step % kChunk;
    if (place == 0) {
      if (step > 0) __syncthreads();  // b before was read
      next.put(shared);
      cuda::hopper::fence_async_proxy();
      __syncthreads();
      next.load(job, batch, from + int64_t{step + kChunk} * kStep, end);
    }
    cuda::wait_for_copies<kStages - 2>();
    __syncwarp();
    HopperStep now(ring[stage]);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    rows.ask();
    now.multiply(first_b + place * (sizeof(shared.b[0]) >> 4),
                 *reinterpret_cast<const float2*>(first_scales + place * 8), sums);
  }
  cuda::wait_for_copies<0>();
}

// The warpgroups' sums, then the cluster's, in this order. By all threads.
__device__ inline void join_sums(HopperShared& shared, int rank, int ranks, float (&sums)[2]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  float* own = reinterpret_cast<float*>(shared.sums[thread / 128]) + thread % 128 / 32 * 16;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] += __shfl_xor_sync(~0u, sums[r], 1);
    sums[r] += __shfl_xor_sync(~0u, sums[r], 2);
    if (lane % 4 == 0) own[lane / 4 + 8 * r] = sums[r];
  }
  __syncthreads();
  if (ranks > 1) cuda::cluster_wait();  // the first one has begun
  if (thread < kTileRows / 4) {
    const float4 x = shared.sums[0][thread], y = shared.sums[1][thread];
    const float4 sum = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    if (rank == 0)
      shared.joined[0][thread] = sum;
    else
      cuda::store_to_block(&shared.joined[rank][thread], 0, sum);
  }
  __syncthreads();
  if (ranks == 1) return;
  cuda::cluster_arrive();
  cuda::cluster_wait();
}

#endif  // PESTLE_HOPPER

template <bool kSwizzled>
__global__ void __launch_bounds__(kHopperThreads, 4)
    gemv_hopper(const __grid_constant__ Job job, int ranks) {
#if PESTLE_HOPPER
  __shared__ HopperShared shared;
  if (ranks > 1) cuda::cluster_begin();
  const int thread = static_cast<int>(threadIdx.x);
  const int group = __shfl_sync(~0u, thread / 128, 0);  // the same in a warp, which wgmma asks for
  const int rank = static_cast<int>(blockIdx.x) % ranks;
  const int64_t tile = static_cast<int>(blockIdx.x) / ranks;
  const int64_t batch = tile / job.row_groups, first_row = tile % job.row_groups * kTileRows;
  const int64_t from = (rank * kGroups + group) * job.slice;
  float sums[2] = {};
  sum_columns<kSwizzled>(job, batch, first_row, from, min(from + job.slice, job.k),
                         shared.groups[group], sums);
  join_sums(shared, rank, ranks, sums);
  if (rank > 0 || thread >= kTileRows || first_row + thread >= job.rows) return;
  float sum = 0;
  for (int i = 0; i < ranks; ++i) sum += reinterpret_cast<const float*>(shared.joined[i])[thread];
  store_result(job.out, job.alpha, batch, first_row + thread, sum * kProductUnit);
#endif
}

}  // namespace pestle::ops::gemv_nvfp4
