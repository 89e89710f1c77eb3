// GEMV by wgmma: up to 16 rows of a, of several weights at once up to 64, the weight as the instructions'
// first operand.
//
// Map      A CTA a multiprocessor takes neighbouring columns of out (rows of the weight),
//          as many as leave no multiprocessor without (ops/gemm/select/gemm_tiles.h). A producer
//          thread has TMA fill a ring of stages, each 512 bytes of k of those
//          columns and of a; a warpgroup multiplies: 64 columns are the instruction's rows, the
//          rows of a its 16 columns. Several weights of one a: their tiles side by side.
// Order    Along k in four chains, unit i of every 128 bytes in chain i, then (0 + 1) + (2 + 3);
//          codes of 8-bit floats by 128 of k, in order; more than 16 rows of a in one chain. Two runs
//          give the same bits. Chains, since a product waits for the one before it on its sums, as long
//          as its bytes take to arrive.
// Traffic  b once; a once a CTA, from the L2. Up to 200 KiB are under way to each
//          multiprocessor, past its L1.
// Numerics bf16 and f16 in the tensor cores' f32; 8-bit floats 128 products at a time, those sums
//          in f32 registers; 8-bit integers in s32. Epilogue in f32, one rounding.
//          A kernel's start overlaps the end of the one before; until that has ended, for it may
//          have made the weight, b goes no further than the L2.
// Measured H200, us, bf16 / fp8: 1, 4096, 4096 10.1 / 5.8; 16, 4096, 4096 10.2 / 6.0; 16, 14336,
//          4096 31.5 / 16.6, scales of rows 16.6 (ops/gemm/matmul/matmul.md).
#pragma once

#include "backends/cuda/host/early_launch.h"
#include "ops/gemm/select/gemv_parts.h"
#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {

inline constexpr int kGemvRows = 16;
inline constexpr int kGemvMoreRows = 64;  // of several weights
inline constexpr int kGemvStages = 32;    // at most
inline constexpr int kGemvBoxes = 4;      // of 128 bytes along k, a stage
inline constexpr int kGemvRing = 216 * 1024;
inline constexpr int kGemvHalfRing = 104 * 1024;
inline constexpr int kMostShared = 227 * 1024;
static_assert(2 * kGemvBoxes * (128 + kGemvMoreRows) * hopper::kRowBytes <= kGemvRing &&
              2 * kGemvBoxes * (64 + kGemvRows) * hopper::kRowBytes <= kGemvHalfRing);

enum class GemvKind { kBf16, kF16, kE4m3, kE5m2, kE4m3E5m2, kE5m2E4m3, kInt8 };  // a, then b

// A tile, counted within its weight.
struct GemvWgmmaTile {
  const hopper::EpilogueArguments& epilogue;
  const CUtensorMap& b;
  int tile;
};

struct GemvWgmmaJob {
  hopper::EpilogueArguments epilogue;
  CUtensorMap a, b;
  GemvTile tile;
  int k_elements = 0;  // of 128 bytes
  int k_stages = 0;    // stages a tile
  int stages = 0;      // of the ring
  int ring_bytes = 0;
  int early = 0;        // stages of b that go to the L2 before the kernel in front has ended
  int start_after = 0;  // the next kernel may begin when so many stages were asked for; 0: at once
  int a_rows = kGemvRows;  // of a that a box brings; the rest of its kRows is what lay there

  PESTLE_HD GemvWgmmaTile at(int t) const { return {epilogue, b, t}; }
};

// Several weights, none of them empty. What is the same for all of them, which includes factors of rows
// and alpha, is the first one's.
struct GemvWgmmaPartsJob : GemvWgmmaJob {
  hopper::EpilogueArguments epilogues[kGemvParts];
  CUtensorMap weights[kGemvParts];
  GemvParts parts;

  PESTLE_HD GemvWgmmaTile at(int t) const {
    const int p = parts.part_of(t);
    return {epilogues[p], weights[p], t - parts.first[p]};
  }
};

// In shared memory; the ring comes first.
struct GemvWgmmaBarriers {
  static constexpr int kBehind = 8 * 1024;  // blocks of 64 columns read beyond a tile of fewer
  uint64_t full[kGemvStages];
  uint64_t empty[kGemvStages];
};
inline int shared_bytes_of(const GemvWgmmaJob& job) {
  return job.ring_bytes + GemvWgmmaBarriers::kBehind + static_cast<int>(sizeof(GemvWgmmaBarriers));
}

#ifdef __CUDACC__

__device__ inline float float_at(const hopper::FloatMatrix& t, int64_t offset) {
  const char* p = t.data + offset * t.element_bytes();
  return t.dtype == hopper::Float::kF32
             ? *reinterpret_cast<const float*>(p)
             : hopper::half_of(*reinterpret_cast<const uint16_t*>(p), t.dtype);
}

#if PESTLE_HOPPER

template <GemvKind kKind>
constexpr hopper::WgmmaType gemv_wgmma_type() {  // b comes first
  switch (kKind) {
    case GemvKind::kBf16: return hopper::WgmmaType::kBf16;
    case GemvKind::kF16: return hopper::WgmmaType::kF16;
    case GemvKind::kE4m3: return hopper::WgmmaType::kE4m3;
    case GemvKind::kE5m2: return hopper::WgmmaType::kE5m2;
    case GemvKind::kE4m3E5m2: return hopper::WgmmaType::kE5m2E4m3;
    case GemvKind::kE5m2E4m3: return hopper::WgmmaType::kE4m3E5m2;
    default: return hopper::WgmmaType::kInt8;
  }
}

// kRows: of a, 16 or 64.
template <GemvKind kKind, int kBlocks, class Job, int kRows = kGemvRows>
struct GemvWgmma {
  static constexpr hopper::WgmmaType kWgmma = gemv_wgmma_type<kKind>();
  static constexpr bool kInt = kKind == GemvKind::kInt8;
  static constexpr bool kPromoted = hopper::is_8_bit(kWgmma) && !kInt;
  static constexpr int kRowBytes = hopper::kRowBytes;
  static constexpr int kBytesA = kRows * kRowBytes;  // of a box
  static constexpr int kChains = kRows == kGemvRows ? 4 : 1;
  static constexpr int kSums = kRows / 2;     // a thread's, of a block
  static constexpr int kOwnRows = kRows / 4;  // of a, of a thread
  using Sum = std::conditional_t<kInt, int, float>;
  struct Memory {
    char* ring;
    GemvWgmmaBarriers& barriers;
  };

  struct Place {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance(int stages) {
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  };
  __device__ static int box_bytes(const Job& job) { return job.tile.columns * kRowBytes; }
  __device__ static int stage_bytes(const Job& job) {
    return kGemvBoxes * (box_bytes(job) + kBytesA);
  }

  // One stage of b and of a. Boxes beyond the end of k, and rows beyond a's, are zeros.
  __device__ static void load_stage(const Job& job, char* to, uint64_t* full, int tile, int step) {
    const GemvWgmmaTile at = job.at(tile);
    const int b_bytes = box_bytes(job), row = at.tile * job.tile.columns;
    char* to_a = to + kGemvBoxes * b_bytes;
#pragma unroll 1
    for (int i = 0; i < kGemvBoxes; ++i) {
      const int k = (step * kGemvBoxes + i) * job.k_elements;
      hopper::load_box(to + i * b_bytes, &at.b, full, k, row, 0);
      hopper::load_box(to_a + i * kBytesA, &job.a, full, k, 0, 0);
    }
  }
  __device__ static void prefetch_stage(const Job& job, int tile, int step) {
    const GemvWgmmaTile at = job.at(tile);
    const int row = at.tile * job.tile.columns;
#pragma unroll 1
    for (int i = 0; i < kGemvBoxes; ++i)
      hopper::prefetch_box(&at.b, (step * kGemvBoxes + i) * job.k_elements, row, 0);
  }
  // By one thread.
  __device__ static void produce(const Memory& s, const Job& job) {
    const int bytes = stage_bytes(job);
    Place at;
    const int expected = kGemvBoxes * (box_bytes(job) + job.a_rows * kRowBytes);
    int asked = 0;
    for (int tile = blockIdx.x; tile < job.tile.tiles; tile += gridDim.x) {
      for (int step = 0; step < job.k_stages; ++step) {
        hopper::wait(&s.barriers.empty[at.stage], at.parity ^ 1);
        uint64_t* full = &s.barriers.full[at.stage];
        hopper::arrive_expecting(full, expected);
        load_stage(job, s.ring + at.stage * bytes, full, tile, step);
        at.advance(job.stages);
        if (++asked == job.start_after) cuda::start_next_kernel();
      }
    }
  }

  // One instruction of one block of 64 columns: unit i (of four) of 128 bytes of k.
  __device__ static void multiply_unit(const char* b, const char* a, int i, bool more,
                                       Sum (&d)[kSums]) {
    hopper::multiply<kWgmma, kRows, true, true>(d, hopper::describe<true>(b, 0) + i * 2,
                                                hopper::describe<true>(a, 0) + i * 2, more);
  }
  __device__ static void release(const Memory& s, int stage) {
    if (threadIdx.x == 0) hopper::arrive(&s.barriers.empty[stage]);
  }

  // Products of 8-bit floats, of each box of a stage anew; the boxes' sums are added in f32.
  __device__ static void multiply_parts(const char* b, const char* a, int b_bytes,
                                        Sum (&d)[kBlocks][kSums]) {
    Sum part[kGemvBoxes][kBlocks][kSums];
    hopper::fence_wgmma();
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int box = 0; box < kGemvBoxes; ++box)
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          multiply_unit(b + box * b_bytes + block * 64 * kRowBytes, a + box * kBytesA, i, i > 0,
                        part[box][block]);
    hopper::commit_wgmma();
    hopper::wait_wgmma<0>();
#pragma unroll
    for (int box = 0; box < kGemvBoxes; ++box)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int j = 0; j < kSums; ++j) d[block][j] += part[box][block][j];
  }
  __device__ static void multiply_stage(const char* b, const char* a, int b_bytes, bool more,
                                        Sum (&d)[kChains][kBlocks][kSums]) {
    hopper::fence_wgmma();
#pragma unroll
    for (int box = 0; box < kGemvBoxes; ++box)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          multiply_unit(b + box * b_bytes + block * 64 * kRowBytes, a + box * kBytesA, i,
                        more || box > 0 || i >= kChains, d[i % kChains][block]);
    hopper::commit_wgmma();
  }

  // All sums along k of one tile.
  __device__ static void accumulate(const Memory& s, const Job& job, Place& at,
                                    Sum (&d)[kBlocks][kSums]) {
    const int b_bytes = box_bytes(job), bytes = stage_bytes(job);
    [[maybe_unused]] Sum chains[kChains][kBlocks][kSums];
    int last = 0;
    for (int step = 0; step < job.k_stages; ++step) {
      hopper::wait(&s.barriers.full[at.stage], at.parity);
      const char* b = s.ring + at.stage * bytes;
      const char* a = b + kGemvBoxes * b_bytes;
      if constexpr (kPromoted) {
        multiply_parts(b, a, b_bytes, d);
        release(s, at.stage);
      } else {
        multiply_stage(b, a, b_bytes, step > 0, chains);
        hopper::wait_wgmma<1>();  // of the stage before
        if (step > 0) release(s, last);
        last = at.stage;
      }
      at.advance(job.stages);
    }
    if constexpr (!kPromoted) {
      hopper::wait_wgmma<0>();
      release(s, last);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int j = 0; j < kSums; ++j) {
          if constexpr (kChains == 4)
            d[block][j] = (chains[0][block][j] + chains[1][block][j]) +
                          (chains[2][block][j] + chains[3][block][j]);
          else
            d[block][j] = chains[0][block][j];
        }
    }
  }

  // Factors and biases are asked for before the products and looked at behind them: a trip to
  // memory takes as long as a stage's bytes, and one behind the other would hold the products back.
  struct Values {
    float factor[2] = {1, 1};
    uint32_t bias[2] = {0, 0};  // as bits of its dtype
  };
  struct RowValues {
    float factor[kOwnRows];
    float alpha = 1;
  };
  __device__ static float ask(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
  }
  __device__ static uint32_t ask_bits(const hopper::FloatMatrix& t, int64_t offset) {
    uint32_t v;
    if (t.dtype == hopper::Float::kF32) {
      asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(t.data + offset * 4));
    } else {
      asm volatile("{\n.reg .u16 h;\nld.global.nc.u16 h, [%1];\ncvt.u32.u16 %0, h;\n}"
                   : "=r"(v)
                   : "l"(t.data + offset * 2));
    }
    return v;
  }

  // This thread's columns of out (of a block: two, 8 apart) and rows (4).
  __device__ static int column_of(const Job& job, const GemvWgmmaTile& at, int block, int half) {
    const int c = block * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;
    const int n = at.tile * job.tile.columns + c;
    return c < job.tile.columns && n < at.epilogue.n ? n : -1;
  }
  __device__ static int row_of(int i) { return threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2; }
  __device__ static Values values_of(const Job& job, const GemvWgmmaTile& at, int block) {
    const hopper::EpilogueArguments& e = at.epilogue;
    Values v;
    int n[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) n[half] = max(0, column_of(job, at, block, half));
    if (e.columns.data) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        v.factor[half] = ask(e.columns.data + n[half] * e.columns.step);
    }
    if (e.bias.data) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        v.bias[half] = ask_bits(e.bias, n[half] * e.bias.column_stride);
    }
    return v;
  }
  __device__ static RowValues row_values(const hopper::EpilogueArguments& e) {
    RowValues v;
#pragma unroll
    for (float& factor : v.factor) factor = 1;
    if (e.rows.data) {
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const int m = row_of(i);
        v.factor[i] = ask(e.rows.data + (m < e.m ? m : 0) * e.rows.step);
      }
    }
    if (e.alpha) v.alpha = ask(e.alpha);
    return v;
  }

  // The results of a block: element i is of row i / 4 * 2 + i % 2 and of column i / 2 % 2.
  __device__ static void scale(const hopper::EpilogueArguments& e, const Values& values,
                               const RowValues& rows, const Sum (&d)[kSums], float (&v)[kSums]) {
    float bias[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (e.bias.data)
        bias[half] = e.bias.dtype == hopper::Float::kF32
                         ? __uint_as_float(values.bias[half])
                         : hopper::half_of(values.bias[half], e.bias.dtype);
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      v[i] = static_cast<float>(d[i]) * rows.factor[i / 4 * 2 + i % 2] * values.factor[i / 2 % 2] *
                 rows.alpha +
             bias[i / 2 % 2];
  }
  // Where a thread's results of a block go; known before the products, for a warp is alone on its
  // scheduler, and behind them each instruction delays the next kernel's start.
  struct Places {
    char* column[2];
    int64_t row[kOwnRows];
  };
  __device__ static Places places_of(const Job& job, const GemvWgmmaTile& at, int block) {
    const hopper::FloatMatrix& out = at.epilogue.out;
    const int bytes = out.element_bytes();
    Places p;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = column_of(job, at, block, half);
      p.column[half] = const_cast<char*>(out.data) + n * out.column_stride * bytes;
      asm volatile("" : "+l"(p.column[half]));  // here, not where it is used
    }
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      p.row[i] = row_of(i) * out.row_stride * bytes;
      asm volatile("" : "+l"(p.row[i]));
    }
    return p;
  }
  __device__ static void finish(const Job& job, const GemvWgmmaTile& at, int block,
                                const Values& values, const RowValues& rows, const Places& places,
                                const Sum (&d)[kSums]) {
    const hopper::EpilogueArguments& e = at.epilogue;
    const int n[2] = {column_of(job, at, block, 0), column_of(job, at, block, 1)};
    float v[kSums];
    scale(e, values, rows, d, v);
    hopper::activate_all(e.activation, v);
    if (e.residual.data) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int m = row_of(i / 4 * 2 + i % 2);
        if (n[i / 2 % 2] >= 0 && m < e.m)
          v[i] += float_at(e.residual,
                           m * e.residual.row_stride + n[i / 2 % 2] * e.residual.column_stride);
      }
    }
    store(e, n, places, v);
  }
  __device__ static void store(const hopper::EpilogueArguments& e, const int (&n)[2],
                               const Places& places, const float (&v)[kSums]) {
    if (e.out.dtype == hopper::Float::kF32) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int half = i / 2 % 2, r = i / 4 * 2 + i % 2;
        if (n[half] >= 0 && row_of(r) < e.m)
          *reinterpret_cast<float*>(places.column[half] + places.row[r]) = v[i];
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kSums; i += 2) {  // two rows
      const int half = i / 2 % 2, r = i / 4 * 2;
      const uint32_t two = hopper::pack(v[i], v[i + 1], e.out.dtype);
      char* to = places.column[half];
      if (n[half] >= 0 && row_of(r) < e.m)
        *reinterpret_cast<uint16_t*>(to + places.row[r]) = static_cast<uint16_t>(two);
      if (n[half] >= 0 && row_of(r + 1) < e.m)
        *reinterpret_cast<uint16_t*>(to + places.row[r + 1]) = static_cast<uint16_t>(two >> 16);
    }
  }

  __device__ static void consume(const Memory& s, const Job& job) {
    const RowValues rows = row_values(job.epilogue);
    Place place;
    for (int tile = blockIdx.x; tile < job.tile.tiles; tile += gridDim.x) {
      const GemvWgmmaTile at = job.at(tile);
      Values values[kBlocks];
      Places places[kBlocks];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        values[block] = values_of(job, at, block);
        places[block] = places_of(job, at, block);
      }
      Sum d[kBlocks][kSums] = {};
      accumulate(s, job, place, d);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        finish(job, at, block, values[block], rows, places[block], d[block]);
    }
  }

  __device__ static void run(const Job& job) {
    extern __shared__ __align__(1024) char raw[];
    const Memory s{raw, *reinterpret_cast<GemvWgmmaBarriers*>(raw + job.ring_bytes +
                                                              GemvWgmmaBarriers::kBehind)};
    if (threadIdx.x == 128) {
      hopper::prefetch_map(&job.at(blockIdx.x).b);
      hopper::prefetch_map(&job.a);
      for (int i = 0; i < job.stages; ++i) {
        hopper::init_barrier(&s.barriers.full[i], 1);
        hopper::init_barrier(&s.barriers.empty[i], 1);
      }
      hopper::publish_barriers();
      for (int i = 0; i < job.early; ++i) prefetch_stage(job, blockIdx.x, i);
    }
    if (job.start_after == 0) cuda::start_next_kernel();
    __syncthreads();
    cuda::wait_previous_kernel();
    if (threadIdx.x < 128)
      consume(s, job);
    else if (threadIdx.x == 128)
      produce(s, job);
  }
};

#endif  // PESTLE_HOPPER

template <GemvKind kKind, int kBlocks>
__global__ void __launch_bounds__(160, 1)
    gemv_wgmma_kernel(const __grid_constant__ GemvWgmmaJob job) {
#if PESTLE_HOPPER
  GemvWgmma<kKind, kBlocks, GemvWgmmaJob>::run(job);
#endif
}

// Of several weights; up to 16 rows of a have the bits that each weight alone gives.
template <GemvKind kKind, int kBlocks, int kRows>
__global__ void __launch_bounds__(160, 1)
    gemv_wgmma_parts_kernel(const __grid_constant__ GemvWgmmaPartsJob job) {
#if PESTLE_HOPPER
  GemvWgmma<kKind, kBlocks, GemvWgmmaPartsJob, kRows>::run(job);
#endif
}

#endif  // __CUDACC__

template <class Job>
Status start_gemv_blocks(const Call& call, const char* name, void (*kernel)(Job), const Job& job) {
  const int device = cuda::device_index(call);
  return cuda::launch_early(call, name,
                            {std::min<int64_t>(job.tile.tiles, cuda::multiprocessors(device)), 160,
                             static_cast<size_t>(shared_bytes_of(job))},
                            kernel, job);
}

// How much is under way, by what was measured (ops/gemm/matmul/matmul.md): the first stages of b,
// 32 to 56 KiB, go to the L2 while the kernel in front ends; where a CTA has little to do, half
// of shared memory is enough, and the next kernel's CTAs wait beside it. Two stages at least: one is
// given back when the next one's products have begun.
inline void plan_ring(int rows, GemvWgmmaJob* job) {
  const bool narrow = job->tile.columns <= 64;
  const int stage = kGemvBoxes * (job->tile.columns + rows) * hopper::kRowBytes;
  const bool little =
      rows == kGemvRows && narrow && int64_t{job->k_stages} * stage <= 2 * kGemvHalfRing;
  job->ring_bytes = little ? kGemvHalfRing : kGemvRing;
  job->start_after = little ? std::max(1, job->k_stages - 2) : 0;
  job->early = std::min(job->k_stages, narrow ? 2 : 1);
  job->stages = std::min(kGemvStages, job->ring_bytes / stage);
}

// All but the weight, for the tile chosen. rows: the kernel's.
inline Status plan_gemv(const Operands& o, int rows, GemvWgmmaJob* job) {
  BoxedTensor a = boxes_of(o.a, true, true);
  job->a_rows = static_cast<int>(std::clamp<int64_t>(o.out.rows, 1, rows));
  a.box[1] = job->a_rows;
  job->k_elements = a.box[0];
  job->k_stages =
      static_cast<int>(cuda::ceil_div(o.a.columns, int64_t{job->k_elements} * kGemvBoxes));
  plan_ring(rows, job);
  return cuda::make_tensor_map(a, &job->a);
}
inline Status map_gemv_weight(const Operands& o, const GemvTile& tile, CUtensorMap* map) {
  BoxedTensor b = boxes_of(o.b, false, true);
  b.box[1] = tile.columns;
  return cuda::make_tensor_map(b, map);
}

// `e` comes filled.
template <GemvKind kKind>
Status start_gemv_wgmma(const Call& call, const char* name, const Operands& o,
                        const hopper::EpilogueArguments& e) {
  GemvWgmmaJob job;
  job.epilogue = e;
  job.tile = choose_gemv_tile(o.out.columns, cuda::multiprocessors(cuda::device_index(call)));
  PESTLE_TRY(plan_gemv(o, kGemvRows, &job));
  PESTLE_TRY(map_gemv_weight(o, job.tile, &job.b));
  return job.tile.columns <= 64 ? start_gemv_blocks(call, name, gemv_wgmma_kernel<kKind, 1>, job)
                                : start_gemv_blocks(call, name, gemv_wgmma_kernel<kKind, 2>, job);
}

template <GemvKind kKind, int kRows>
Status start_gemv_parts_of_rows(const Call& call, const char* name, const Operands& o,
                                GemvWgmmaPartsJob& job) {
  PESTLE_TRY(plan_gemv(o, kRows, &job));
  return job.tile.columns <= 64
             ? start_gemv_blocks(call, name, gemv_wgmma_parts_kernel<kKind, 1, kRows>, job)
             : start_gemv_blocks(call, name, gemv_wgmma_parts_kernel<kKind, 2, kRows>, job);
}

// Several weights of one a, up to 64 rows, in one launch. No alpha, no factors of rows.
template <GemvKind kKind>
Status start_gemv_parts(const Call& call, const char* name, std::span<const Operands> o,
                        std::span<const hopper::EpilogueArguments> e) {
  int64_t widths[kGemvParts];
  for (size_t p = 0; p < o.size(); ++p) widths[p] = o[p].out.columns;
  const std::span<const int64_t> all(widths, o.size());
  GemvWgmmaPartsJob job;
  job.epilogue = e[0];
  job.tile = choose_gemv_tile(all, cuda::multiprocessors(cuda::device_index(call)));
  job.parts = lay_out_parts(all, job.tile.columns);
  for (size_t p = 0; p < o.size(); ++p) {
    job.epilogues[p] = e[p];
    PESTLE_TRY(map_gemv_weight(o[p], job.tile, &job.weights[p]));
  }
  return o[0].out.rows <= kGemvRows
             ? start_gemv_parts_of_rows<kKind, kGemvRows>(call, name, o[0], job)
             : start_gemv_parts_of_rows<kKind, kGemvMoreRows>(call, name, o[0], job);
}

}  // namespace pestle::ops
