// The matrix product with few rows of a (16 at most) whose weight has many rows: warpgroup
// instructions, the weight as their first operand.
//
// Map      A thread block a multiprocessor takes neighbouring columns of out (rows of the weight),
//          as many as leave no multiprocessor without (ops/common/matmul_tiles.h). A producer
//          thread has the copy engine fill a ring of stages, each 512 bytes of k of those
//          columns and of a; a warpgroup multiplies: 64 columns are the instruction's rows, the
//          rows of a its 16 columns.
// Order    Along k: two runs give the same bits.
// Traffic  b once; a once a thread block, from the L2. Up to 200 KiB are under way to each
//          multiprocessor, past its L1.
// Numerics bf16 and f16 in the tensor cores' f32; 8-bit floats 128 products at a time, those sums
//          in f32 registers; 8-bit integers in s32. Epilogue in f32, one rounding.
//          A kernel's start overlaps the end of the one before; nothing is read before that has
//          ended, for it may have made the weight.
// Measured H200, us, bf16 / fp8 / int8: 16, 4096, 4096 11.1 / 7.1 / 6.8; 16, 14336, 4096 32.0 /
//          17.8 / 17.8 (ops/matmul/matmul.md).
#pragma once

#include "backends/cuda/early_launch.h"
#include "ops/common/matmul_launch.cuh"

namespace pestle::ops {

inline constexpr int kFewRows = 16;
inline constexpr int kWideStages = 32;  // at most
inline constexpr int kWideBoxes = 4;    // of 128 bytes along k, a stage

enum class FewKind { kBf16, kF16, kE4m3, kE5m2, kE4m3E5m2, kE5m2E4m3, kInt8 };  // a, then b

struct FewWideJob {
  hopper::EpilogueArguments epilogue;
  CUtensorMap a, b;
  FewRowsTile tile;
  int k_elements = 0;  // of 128 bytes
  int k_stages = 0;    // stages a tile
  int stages = 0;      // of the ring
};

struct FewWideMemory {
  static constexpr int kRingBytes = 216 * 1024;
  char ring[kRingBytes];
  char behind[8 * 1024];  // blocks of 64 columns read beyond a tile of fewer
  uint64_t full[kWideStages];
  uint64_t empty[kWideStages];
};

#ifdef __CUDACC__

__device__ inline float float_at(const hopper::FloatMatrix& t, int64_t offset) {
  const char* p = t.data + offset * t.element_bytes();
  return t.dtype == hopper::Float::kF32
             ? *reinterpret_cast<const float*>(p)
             : hopper::half_of(*reinterpret_cast<const uint16_t*>(p), t.dtype);
}

#if PESTLE_HOPPER

template <FewKind kKind>
constexpr hopper::Product few_product() {  // b comes first
  switch (kKind) {
    case FewKind::kBf16: return hopper::Product::kBf16;
    case FewKind::kF16: return hopper::Product::kF16;
    case FewKind::kE4m3: return hopper::Product::kE4m3;
    case FewKind::kE5m2: return hopper::Product::kE5m2;
    case FewKind::kE4m3E5m2: return hopper::Product::kE5m2E4m3;
    case FewKind::kE5m2E4m3: return hopper::Product::kE4m3E5m2;
    default: return hopper::Product::kInt8;
  }
}

template <FewKind kKind, int kBlocks>
struct FewWide {
  static constexpr hopper::Product kProduct = few_product<kKind>();
  static constexpr bool kInt = kKind == FewKind::kInt8;
  static constexpr bool kPromoted = hopper::is_8_bit(kProduct) && !kInt;
  static constexpr int kRowBytes = hopper::kRowBytes;
  static constexpr int kBytesA = kFewRows * kRowBytes;  // of a box
  using Sum = std::conditional_t<kInt, int, float>;
  using Memory = FewWideMemory;

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
  __device__ static int box_bytes(const FewWideJob& job) { return job.tile.columns * kRowBytes; }
  __device__ static int stage_bytes(const FewWideJob& job) {
    return kWideBoxes * (box_bytes(job) + kBytesA);
  }

  // By one thread. Boxes beyond the end of k, and rows beyond a's, are zeros.
  __device__ static void produce(Memory& s, const FewWideJob& job) {
    const int b_bytes = box_bytes(job), bytes = stage_bytes(job);
    Place at;
    for (int tile = blockIdx.x; tile < job.tile.tiles; tile += gridDim.x) {
      int k = 0;
      for (int step = 0; step < job.k_stages; ++step) {
        hopper::wait(&s.empty[at.stage], at.parity ^ 1);
        uint64_t* full = &s.full[at.stage];
        hopper::arrive_expecting(full, bytes);
        char* to = s.ring + at.stage * bytes;
        char* to_a = to + kWideBoxes * b_bytes;
#pragma unroll 1
        for (int i = 0; i < kWideBoxes; ++i, k += job.k_elements) {
          hopper::load_box(to + i * b_bytes, &job.b, full, k, tile * job.tile.columns, 0);
          hopper::load_box(to_a + i * kBytesA, &job.a, full, k, 0, 0);
        }
        at.advance(job.stages);
      }
    }
  }

  __device__ static void multiply_box(const char* b, const char* a, bool anew,
                                      Sum (&d)[kBlocks][8]) {
    const uint64_t rows = hopper::describe<true>(a, 0);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint64_t columns = hopper::describe<true>(b + block * 64 * kRowBytes, 0);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        hopper::multiply<kProduct, 16, true, true>(d[block], columns + i * 2, rows + i * 2,
                                                   !anew || i > 0);
    }
  }

  // All sums along k of one tile.
  __device__ static void accumulate(Memory& s, const FewWideJob& job, Place& at,
                                    Sum (&d)[kBlocks][8]) {
    const int b_bytes = box_bytes(job), bytes = stage_bytes(job);
    for (int step = 0; step < job.k_stages; ++step) {
      hopper::wait(&s.full[at.stage], at.parity);
      const char* b = s.ring + at.stage * bytes;
      const char* a = b + kWideBoxes * b_bytes;
      if constexpr (kPromoted) {
        for (int i = 0; i < kWideBoxes; ++i) {
          Sum part[kBlocks][8];
          hopper::fence_products();
          multiply_box(b + i * b_bytes, a + i * kBytesA, true, part);
          hopper::commit_products();
          hopper::wait_products<0>();
#pragma unroll
          for (int block = 0; block < kBlocks; ++block)
#pragma unroll
            for (int j = 0; j < 8; ++j) d[block][j] += part[block][j];
        }
      } else {
        for (int i = 0; i < kWideBoxes; ++i) {
          hopper::fence_products();
          multiply_box(b + i * b_bytes, a + i * kBytesA, step == 0 && i == 0, d);
          hopper::commit_products();
        }
        hopper::wait_products<0>();
      }
      if (threadIdx.x == 0) hopper::arrive(&s.empty[at.stage]);
      at.advance(job.stages);
    }
  }

  struct Values {
    float factor[2] = {1, 1}, bias[2] = {};
  };

  // This thread's columns of out (of a block: two, 8 apart) and rows (4).
  __device__ static int column_of(const FewWideJob& job, int tile, int block, int half) {
    const int c = block * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;
    const int n = tile * job.tile.columns + c;
    return c < job.tile.columns && n < job.epilogue.n ? n : -1;
  }
  __device__ static Values values_of(const FewWideJob& job, int tile, int block) {
    const hopper::EpilogueArguments& e = job.epilogue;
    Values v;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = column_of(job, tile, block, half);
      if (n < 0) continue;
      if (e.columns.data) v.factor[half] = e.columns.at(n);
      if (e.bias.data) v.bias[half] = float_at(e.bias, n * e.bias.column_stride);
    }
    return v;
  }
  __device__ static void finish(const FewWideJob& job, int tile, int block, const Values& values,
                                const float (&row_factor)[4], float alpha, const Sum (&d)[8]) {
    const hopper::EpilogueArguments& e = job.epilogue;
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      v[i] = static_cast<float>(d[i]) * row_factor[i / 4 * 2 + i % 2] * values.factor[i / 2 % 2] *
                 alpha +
             values.bias[i / 2 % 2];
    hopper::activate_all(e.activation, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int n = column_of(job, tile, block, i / 2 % 2);
      const int m = threadIdx.x % 4 * 2 + i / 4 * 8 + i % 2;
      if (n < 0 || m >= e.m) continue;
      float y = v[i];
      if (e.residual.data)
        y += float_at(e.residual, m * e.residual.row_stride + n * e.residual.column_stride);
      char* p = const_cast<char*>(e.out.data) +
                (m * e.out.row_stride + n * e.out.column_stride) * e.out.element_bytes();
      if (e.out.dtype == hopper::Float::kF32)
        *reinterpret_cast<float*>(p) = y;
      else
        *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(hopper::pack(y, 0, e.out.dtype));
    }
  }

  __device__ static void consume(Memory& s, const FewWideJob& job) {
    const hopper::EpilogueArguments& e = job.epilogue;
    float row_factor[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2;
      row_factor[i] = e.rows.data && m < e.m ? e.rows.at(m) : 1.0f;
    }
    const float alpha = e.alpha ? __ldg(e.alpha) : 1.0f;
    Place at;
    for (int tile = blockIdx.x; tile < job.tile.tiles; tile += gridDim.x) {
      Values values[kBlocks];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) values[block] = values_of(job, tile, block);
      Sum d[kBlocks][8] = {};
      accumulate(s, job, at, d);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        finish(job, tile, block, values[block], row_factor, alpha, d[block]);
    }
  }

  __device__ static void run(const FewWideJob& job) {
    extern __shared__ __align__(1024) char raw[];
    Memory& s = *reinterpret_cast<Memory*>(raw);
    if (threadIdx.x == 0) {
      hopper::prefetch_map(&job.a);
      hopper::prefetch_map(&job.b);
      for (int i = 0; i < job.stages; ++i) {
        hopper::init_barrier(&s.full[i], 1);
        hopper::init_barrier(&s.empty[i], 1);
      }
      hopper::publish_barriers();
    }
    cuda::start_next_kernel();
    __syncthreads();
    cuda::wait_previous_kernel();
    if (threadIdx.x < 128)
      consume(s, job);
    else if (threadIdx.x == 128)
      produce(s, job);
  }
};

#endif  // PESTLE_HOPPER

template <FewKind kKind, int kBlocks>
__global__ void __launch_bounds__(160, 1) few_wide_kernel(const __grid_constant__ FewWideJob job) {
#if PESTLE_HOPPER
  FewWide<kKind, kBlocks>::run(job);
#endif
}

#endif  // __CUDACC__

template <FewKind kKind, int kBlocks>
Status start_wide_blocks(const Call& call, const char* name, const FewWideJob& job) {
  const int device = cuda::device_index(call);
  const auto kernel = few_wide_kernel<kKind, kBlocks>;
  static std::atomic<uint64_t> done{0};
  PESTLE_TRY(
      allow_memory(reinterpret_cast<const void*>(kernel), device, sizeof(FewWideMemory), &done));
  return cuda::launch_early(call, name,
                            {std::min<int64_t>(job.tile.tiles, cuda::multiprocessors(device)), 160,
                             sizeof(FewWideMemory)},
                            kernel, job);
}

// `e` comes filled.
template <FewKind kKind>
Status start_few_wide(const Call& call, const char* name, const Operands& o,
                      const hopper::EpilogueArguments& e) {
  static_assert(sizeof(FewWideMemory) <= 227 * 1024);
  FewWideJob job;
  job.epilogue = e;
  job.tile = choose_few_rows_tile(o.out.columns, cuda::multiprocessors(cuda::device_index(call)));
  BoxedTensor a = boxes_of(o.a, true, true);
  BoxedTensor b = boxes_of(o.b, false, true);
  a.box[1] = kFewRows;
  b.box[1] = job.tile.columns;
  job.k_elements = a.box[0];
  job.k_stages =
      static_cast<int>(cuda::ceil_div(o.a.columns, int64_t{job.k_elements} * kWideBoxes));
  const int stage = kWideBoxes * (job.tile.columns + kFewRows) * hopper::kRowBytes;
  job.stages = std::min(kWideStages, FewWideMemory::kRingBytes / stage);
  PESTLE_TRY(cuda::make_tensor_map(a, &job.a));
  PESTLE_TRY(cuda::make_tensor_map(b, &job.b));
  return job.tile.columns <= 64 ? start_wide_blocks<kKind, 1>(call, name, job)
                                : start_wide_blocks<kKind, 2>(call, name, job);
}

}  // namespace pestle::ops
