// What happens to accumulators before they are stored (ops/gemm/epilogue/epilogue.h on a GPU):
// y = activation(acc * factor[row] * factor[column] * alpha + bias), of pairs of columns
// activation(one) * the other, then residual * beta + gate * y, in f32, one rounding.
//
// Map      Where TMA takes out (16 bits) and residual (the same dtype): a consumer's
//          tile in chunks of 64 rows x 64 columns, each with a place of its own in shared memory
//          (gemm_warp_specialized.cuh), so that none waits for another's store. The copy warp has
//          put the residual's chunk there, a warp of its own the factors and biases; each thread
//          adds its accumulators to the residual's elements in place; the copy warp stores the
//          chunk. Else accumulators go to shared memory as f32, and each thread takes 8
//          neighbouring columns of 4 rows, so that residual and result move in whole lines.
//          Pairs (kPairs): a tile's first columns are those that the activation takes, its last
//          the others, so that chunk c meets its partner, chunk c + kTileN / 128, in the same
//          thread's registers.
//          Gate: in the place of a column's factor, which is multiplied after the activation; where
//          columns have factors of their own, into factor and bias, so without an activation.
// Traffic  residual and out once; factors and biases once a tile, from the L2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/device/numeric/activations.cuh"
#include "backends/cuda/device/ptx/hopper.cuh"
#include "ops/gemm/sm90/gemm_warp_specialized.cuh"

namespace pestle::cuda::hopper {

enum class Float : int { kF32, kBf16, kF16 };

// A matrix of any of the three dtypes; strides in elements.
struct FloatMatrix {
  const char* data = nullptr;
  Float dtype = Float::kF32;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  int64_t batch_stride = 0;
  bool aligned = false;  // 8 neighbouring columns from a multiple of 8 on are one or two vectors

  __host__ __device__ int element_bytes() const { return dtype == Float::kF32 ? 4 : 2; }
};

// Factors of the sums of rows or columns; a step of 0: one for all.
struct Factors {
  const float* data = nullptr;
  int64_t step = 0;
#ifdef __CUDACC__
  __device__ float at(int64_t i) const { return __ldg(data + i * step); }
#endif
};

struct EpilogueArguments {
  CUtensorMap out_map;       // boxes of 64 rows x 64 columns, where by_boxes
  CUtensorMap residual_map;  // the same
  bool by_boxes = false;     // TMA takes out and residual
  const float* alpha = nullptr;
  Factors rows, columns;
  FloatMatrix bias;  // one row
  FloatMatrix residual;
  FloatMatrix out;
  int activation = 0;  // ops::Activation
  int m = 0, n = 0;    // of out
  const float* beta = nullptr;
  FloatMatrix gate;       // a row for each rows_per_gate rows of out, which no tile crosses
  int rows_per_gate = 1;  // counted over all matrices
  // Pairs: the columns of the GEMM where those for the activation begin, and their partners.
  bool pairs = false;
  int first_of_pairs = 0, last_of_pairs = 0;
};

#ifdef __CUDACC__

__device__ inline float half_of(uint32_t bits, Float dtype) {
  return dtype == Float::kBf16 ? __uint_as_float(bits << 16)
                               : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}
__device__ inline uint32_t pack(float low, float high, Float dtype) {
  if (dtype == Float::kF16) {
    const __half2 h = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&h);
  }
  const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}

// 8 neighbouring columns; those from `count` on are not touched.
__device__ inline void load_8(const FloatMatrix& t, int64_t offset, int count, float (&v)[8]) {
  const char* p = t.data + offset * t.element_bytes();
  if (t.aligned && count == 8) {
    if (t.dtype == Float::kF32) {
      const float4 a = reinterpret_cast<const float4*>(p)[0];
      const float4 b = reinterpret_cast<const float4*>(p)[1];
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z,
      v[7] = b.w;
    } else {
      const uint4 a = *reinterpret_cast<const uint4*>(p);
      const uint32_t words[4] = {a.x, a.y, a.z, a.w};
      for (int i = 0; i < 4; ++i) {
        v[2 * i] = half_of(words[i] & 0xFFFF, t.dtype);
        v[2 * i + 1] = half_of(words[i] >> 16, t.dtype);
      }
    }
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (i >= count) break;
    const char* element = p + i * t.column_stride * t.element_bytes();
    v[i] = t.dtype == Float::kF32 ? *reinterpret_cast<const float*>(element)
                                  : half_of(*reinterpret_cast<const uint16_t*>(element), t.dtype);
  }
}
__device__ inline void store_8(const FloatMatrix& t, int64_t offset, int count,
                               const float (&v)[8]) {
  char* p = const_cast<char*>(t.data) + offset * t.element_bytes();
  if (t.aligned && count == 8) {
    if (t.dtype == Float::kF32) {
      reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
      reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
      *reinterpret_cast<uint4*>(p) =
          make_uint4(pack(v[0], v[1], t.dtype), pack(v[2], v[3], t.dtype),
                     pack(v[4], v[5], t.dtype), pack(v[6], v[7], t.dtype));
    }
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (i >= count) break;
    char* element = p + i * t.column_stride * t.element_bytes();
    if (t.dtype == Float::kF32)
      *reinterpret_cast<float*>(element) = v[i];
    else
      *reinterpret_cast<uint16_t*>(element) = static_cast<uint16_t>(pack(v[i], 0, t.dtype));
  }
}

// v = activation(v); the same branch in all threads. 0.5 y (1 + tanh(z)) = y / (1 + e^-2z), and
// silu is the same of z = y / 2; where the exponential overflows, its reciprocal is 0.
template <int kCount>
__device__ inline void activate_all(int activation, float (&v)[kCount]) {
  if (activation == 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= normal_of(v[i]);
  } else if (activation == 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      constexpr float kLinear = -kLog2E * kTanhLinear, kCubic = -kLog2E * kTanhCubic;
      const float z = v[i] * fmaf(v[i] * v[i], kCubic, kLinear);
      v[i] *= quick_reciprocal(1.0f + quick_exp2(z));
    }
  } else if (activation == 3) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= quick_reciprocal(1.0f + quick_exp2(v[i] * -kLog2E));
  }
}

#endif  // __CUDACC__

#if PESTLE_HOPPER

// Place of 4 f32 in a consumer's 64 x 64 staging: rows of 256 bytes, 16-byte pieces permuted so
// that neither the fragments' stores nor the rows' loads meet in a bank.
__device__ inline int staging_offset(int row, int piece) {
  return row * 256 + (piece ^ ((row & 7) << 1)) * 16;
}

// The values of one tile that belong to a thread's two rows.
struct RowFactors {
  float low = 1, high = 1, alpha = 1, beta = 1;
};

template <bool kScaled, bool kPairs = false>
struct FusedEpilogue {
  const EpilogueArguments& a;

  // Asked for before the tile's sums are made.
  __device__ RowFactors row_factors(const Tile& tile, int consumer) const {
    RowFactors f;
    if (a.alpha) f.alpha = __ldg(a.alpha);
    if (!kPairs && a.beta) f.beta = __ldg(a.beta);
    if constexpr (kScaled) {
      const int64_t row =
          tile.m * kTileM + consumer * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
      if (row < a.m) f.low = a.rows.at(row);
      if (row + 8 < a.m) f.high = a.rows.at(row + 8);
    }
    return f;
  }

  __device__ static float value_at(const FloatMatrix& t, int64_t offset) {
    const char* p = t.data + offset * t.element_bytes();
    return t.dtype == Float::kF32 ? *reinterpret_cast<const float*>(p)
                                  : half_of(*reinterpret_cast<const uint16_t*>(p), t.dtype);
  }
  __device__ float bias_at(int column) const {
    return value_at(a.bias, column * a.bias.column_stride);
  }
  // Where the gate's row of a tile begins.
  __device__ int64_t gate_row(const Tile& tile) const {
    const int row = tile.batch * a.m + tile.m * kTileM;
    return row / a.rows_per_gate * a.gate.row_stride;
  }
  // Pairs: column `column` of a tile of kTileN columns of the GEMM, as a column of all of it.
  template <int kTileN>
  __device__ int gemm_column(const Tile& tile, int column) const {
    constexpr int kHalf = kTileN / 2;
    if constexpr (!kPairs) return tile.n * kTileN + column;
    return tile.n * kHalf +
           (column < kHalf ? a.first_of_pairs + column : a.last_of_pairs + column - kHalf);
  }
  // Columns of out of a tile.
  template <int kTileN>
  static constexpr int kOutColumns = kPairs ? kTileN / 2 : kTileN;

  // ---- the copy warps: one of the producer's warpgroup for each consumer ------------------------
  // Columns' values of a chunk, two a lane.
  struct Pair {
    float2 factor, bias;
  };
  template <int kTileN>
  __device__ Pair load_pair(const Tile& tile, int in_tile) const {
    Pair p{{1, 1}, {0, 0}};
    const int left = a.n - tile.n * kOutColumns<kTileN> - in_tile % kOutColumns<kTileN>;
    const bool one = left > 0, two = left > 1;
    const int column = gemm_column<kTileN>(tile, in_tile);
    if constexpr (kScaled) {
      if (one) p.factor.x = a.columns.at(column);
      if (two) p.factor.y = a.columns.at(column + 1);
    }
    if (a.bias.data) {
      if (one) p.bias.x = bias_at(column);
      if (two) p.bias.y = bias_at(column + 1);
    }
    if (!kPairs && a.gate.data) {
      const int64_t row = gate_row(tile);
      const float x = one ? value_at(a.gate, row + column * a.gate.column_stride) : 1.0f;
      const float y = two ? value_at(a.gate, row + (column + 1) * a.gate.column_stride) : 1.0f;
      p.factor = make_float2(p.factor.x * x, p.factor.y * y);
      if constexpr (kScaled) p.bias = make_float2(p.bias.x * x, p.bias.y * y);
    }
    return p;
  }

  // Are the sums scaled or moved? Else columns have no values.
  __device__ bool has_columns() const {
    return kScaled || kPairs || a.alpha || a.bias.data || a.gate.data;
  }
  // By a warp of its own: the factors and biases of each tile's columns.
  template <int kTileN, class Memory>
  __device__ void hand_columns(Memory& s, const GemmTiles& t) const {
    if (!a.by_boxes || !has_columns()) return;
    const int lane = threadIdx.x % 32;
    uint32_t parity = 1;
    for (int i = blockIdx.x; i < t.units; i += gridDim.x, parity ^= 1) {
      const Unit unit = unit_at(t, i);
      if (unit.helps) return;  // its CTA's last
      const Tile& tile = unit.tile;
      Pair pairs[kTileN / 64];
#pragma unroll
      for (int c = 0; c < kTileN / 64; ++c) pairs[c] = load_pair<kTileN>(tile, 2 * lane + c * 64);
      wait(&s.chunks.columns_done, parity);
      float* to = s.columns + 2 * lane;
#pragma unroll
      for (int c = 0; c < kTileN / 64; ++c) {
        *reinterpret_cast<float2*>(to + c * 64) = pairs[c].factor;
        *reinterpret_cast<float2*>(to + kTileN + c * 64) = pairs[c].bias;
      }
      arrive(&s.chunks.columns_ready);
    }
  }

  // Where chunk `chunk` of kChunks lies: in memory of its own, or in a's rows of one of the tile's
  // last stages; `next`: the stage after them.
  template <int kChunks, class Memory>
  __device__ static int chunk_stage(int chunk, int next) {
    const int stage = next - (kChunks - chunk);
    return stage < 0 ? stage + Memory::kRing : stage;
  }
  template <int kChunks, class Memory>
  __device__ static char* chunk_rows(Memory& s, int consumer, int chunk, int next) {
    if (chunk < kOwnChunks) return s.out[consumer].rows[chunk];
    return s.a[chunk_stage<kChunks, Memory>(chunk, next)] + consumer * kChunkBytes;
  }

  // Memory for a tile's chunks, with the residual in it where there is one.
  template <int kChunks, class Memory>
  __device__ void prepare_chunks(Memory& s, int consumer, int next, uint32_t parity, int column,
                                 int row, int batch) const {
    ChunkBarriers& b = s.chunks;
    if (!a.residual.data) {
      arrive(&b.ready[consumer][0]);
      return;
    }
    for (int c = kOwnChunks; c < kChunks; ++c)
      prefetch_box(&a.residual_map, column + c * 64, row, batch);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c >= kOwnChunks) wait(&b.freed[consumer][c - kOwnChunks], parity);
      arrive_expecting(&b.ready[consumer][c], kChunkBytes);
      load_box(chunk_rows<kChunks>(s, consumer, c, next), &a.residual_map, &b.ready[consumer][c],
               column + c * 64, row, batch);
    }
  }
  template <int kTileN, class Memory>
  __device__ void copy_chunks(Memory& s, const GemmTiles& t, int consumer) const {
    if (!a.by_boxes || threadIdx.x % 32 != 0) return;
    constexpr int kChunks = kOutColumns<kTileN> / 64;
    int next = 0;
    uint32_t parity = 0;
    for (int i = blockIdx.x; i < t.units; i += gridDim.x, parity ^= 1) {
      const Unit unit = unit_at(t, i);
      if (unit.helps) return;  // its CTA's last
      const Tile& tile = unit.tile;
      const int around = unit.steps % Memory::kRing;
      const int column = tile.n * kOutColumns<kTileN>, row = tile.m * kTileM + consumer * 64;
      next = next + around < Memory::kRing ? next + around : next + around - Memory::kRing;
      prepare_chunks<kChunks>(s, consumer, next, parity, column, row, tile.batch);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        wait(&s.chunks.filled[consumer][c], parity);
        store_box(&a.out_map, chunk_rows<kChunks>(s, consumer, c, next), column + c * 64, row,
                  tile.batch);
        commit_stores();
      }
      wait_stores_read<0>();
#pragma unroll
      for (int c = kOwnChunks; c < kChunks; ++c)
        arrive(&s.empty[chunk_stage<kChunks, Memory>(c, next)]);
    }
  }

  // The same where results are made between the next tile's multiplications: places serve in turns.
  template <class Memory>
  __device__ void prepare_overlapped(Memory& s, int consumer, int chunk, int column, int row,
                                     int batch) const {
    uint64_t* ready = &s.chunks.ready[consumer][chunk];
    if (!a.residual.data) {
      arrive(ready);
      return;
    }
    arrive_expecting(ready, kChunkBytes);
    load_box(s.out[consumer].rows[chunk % Memory::kOwn], &a.residual_map, ready,
             column + chunk * 64, row, batch);
  }
  template <int kTileN, class Memory>
  __device__ void copy_overlapped(Memory& s, const GemmTiles& t, int consumer) const {
    if (threadIdx.x % 32 != 0) return;
    constexpr int kChunks = kTileN / 64, kOwn = Memory::kOwn;
    uint32_t parity = 0;
    for (int i = blockIdx.x; i < t.total; i += gridDim.x, parity ^= 1) {
      const Tile tile = tile_at(t, i);
      const int column = tile.n * kTileN, row = tile.m * kTileM + consumer * 64;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) prepare_overlapped(s, consumer, c, column, row, tile.batch);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        wait(&s.chunks.filled[consumer][c], parity);
        store_box(&a.out_map, s.out[consumer].rows[c % kOwn], column + c * 64, row, tile.batch);
        commit_stores();
        if (c + kOwn >= kChunks) continue;
        wait_stores_read<0>();
        prepare_overlapped(s, consumer, c + kOwn, column, row, tile.batch);
      }
      wait_stores_read<0>();
    }
  }

  // ---- the consumer -----------------------------------------------------------------------------
  template <bool kBf16, bool kAdded>
  __device__ void put_values(const float (&v)[32], uint32_t to, float beta) const {
    constexpr Float kOut = kBf16 ? Float::kBf16 : Float::kF16;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // 16 columns
      const uint32_t at = to + ((2 * j + lane / 16) ^ (lane % 8)) * 16;
      uint32_t old[4] = {};
      if constexpr (kAdded) load_matrices(at, old);
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float low = v[8 * j + 2 * i], high = v[8 * j + 2 * i + 1];
        if constexpr (kAdded) {
          low = fmaf(half_of(old[i] & 0xFFFF, kOut), beta, low);
          high = fmaf(half_of(old[i] >> 16, kOut), beta, high);
        }
        words[i] = pack(low, high, kOut);
      }
      store_matrices(at, words[0], words[1], words[2], words[3]);
    }
  }
  // Where this thread's stores of a chunk begin.
  __device__ static uint32_t fragment_place(const char* rows) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + (lane / 8 & 1) * 8 + lane % 8;
    return shared_address(rows) + row * kRowBytes;
  }
  // A chunk's results, on the residual where there is one, and on to the copy warp.
  template <bool kAdded>
  __device__ void put_chunk(const float (&v)[32], const char* rows, float beta,
                            uint64_t* filled) const {
    const uint32_t to = fragment_place(rows);
    if (a.out.dtype == Float::kBf16)
      put_values<true, kAdded>(v, to, beta);
    else
      put_values<false, kAdded>(v, to, beta);
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(filled);
  }

  // y = acc * factor[row] * factor[column] * alpha + bias of 64 columns; kMoved: there is an alpha
  // or a bias.
  template <bool kMoved = true>
  __device__ void scale_chunk(const float* factors, const float* biases, const RowFactors& f,
                              float (&v)[32]) const {
    if constexpr (!kMoved && !kScaled) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // 8 columns
      const int column = 8 * j + 2 * (lane % 4);
      const float2 factor = *reinterpret_cast<const float2*>(&factors[column]);
      const float2 bias = *reinterpret_cast<const float2*>(&biases[column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& y = v[4 * j + i];
        if constexpr (kScaled) y = y * (i < 2 ? f.low : f.high) * (i % 2 ? factor.y : factor.x);
        if constexpr (kMoved) y = fmaf(y, f.alpha, i % 2 ? bias.y : bias.x);
      }
    }
  }
  // y *= gate of 64 columns, where factors are not the columns' own.
  __device__ void gate_chunk(const float* gates, float (&v)[32]) const {
    if constexpr (!kScaled) {
      if (!a.gate.data) return;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 gate = *reinterpret_cast<const float2*>(&gates[8 * j + 2 * (threadIdx.x % 4)]);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[4 * j + i] *= i % 2 ? gate.y : gate.x;
      }
    }
  }

  // A tile of the scaled sums alone, in straight code.
  template <bool kMoved, class Memory, class T, int kCount>
  __device__ void finish_plain(Memory& s, int next, int consumer, const RowFactors& f,
                               const T (&d)[kCount]) const {
    constexpr int kTileN = kCount * 2, kChunks = kTileN / 64;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float v[32];
#pragma unroll
      for (int j = 0; j < 32; ++j) v[j] = static_cast<float>(d[c * 32 + j]);
      const float* columns = s.columns + c * 64;
      scale_chunk<kMoved>(columns, columns + kTileN, f, v);
      put_chunk<false>(v, chunk_rows<kChunks>(s, consumer, c, next), 1,
                       &s.chunks.filled[consumer][c]);
    }
  }
  // A tile with an activation, a gate or a residual: one copy of the code for all chunks.
  template <class Memory, class T, int kCount>
  __device__ void finish_chunks(Memory& s, int next, uint32_t turn, int consumer,
                                const RowFactors& f, const T (&d)[kCount]) const {
    constexpr int kTileN = kCount * 2, kChunks = kTileN / 64;
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c) {
      float v[32];
      take_chunk(d, c, v);
      const float* columns = s.columns + c * 64;
      if (has_columns()) scale_chunk(columns, columns + kTileN, f, v);
      activate_all(a.activation, v);
      gate_chunk(columns, v);
      char* rows = chunk_rows<kChunks>(s, consumer, c, next);
      uint64_t* filled = &s.chunks.filled[consumer][c];
      if (a.residual.data) {
        wait(&s.chunks.ready[consumer][c], turn);
        put_chunk<true>(v, rows, f.beta, filled);
      } else {
        put_chunk<false>(v, rows, 1, filled);
      }
    }
  }
  // Chunk c for the activation, and its partner.
  template <class Memory, class T, int kCount>
  __device__ void finish_pairs(Memory& s, int next, int consumer, const RowFactors& f,
                               const T (&d)[kCount]) const {
    constexpr int kTileN = kCount * 2, kChunks = kTileN / 128;
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c) {
      float u[32], v[32];
      take_chunk(d, c, u);
      take_chunk(d, c + kChunks, v);
      const float* columns = s.columns + c * 64;
      scale_chunk(columns, columns + kTileN, f, u);
      activate_all(a.activation, u);
      scale_chunk(columns + kTileN / 2, columns + kTileN + kTileN / 2, f, v);
#pragma unroll
      for (int i = 0; i < 32; ++i) u[i] *= v[i];
      put_chunk<false>(u, chunk_rows<kChunks>(s, consumer, c, next), 1,
                       &s.chunks.filled[consumer][c]);
    }
  }

  // ---- overlapped with the next tile: pieces of 4 elements, straight code -----------------------
  template <class Memory>
  __device__ PendingTile pending_tile(Memory& s, int consumer) const {
    PendingTile tile;
    const int lane = threadIdx.x % 32;
    tile.place = fragment_place(s.out[consumer].rows[0]) + ((lane / 16) ^ (lane % 8)) * 16;
    if (a.alpha) tile.alpha = __ldg(a.alpha);
    if (a.beta) tile.beta = __ldg(a.beta);
    return tile;
  }
  // 32 sums from chunk `chunk` on, with alpha and bias where there are any.
  template <class Memory, class T, int kCount>
  __device__ void move_sums(Memory& s, const PendingTile& tile, const RowFactors& f, int chunk,
                            const T (&d)[kCount], bool moved, float* v) const {
    const float* factors = s.columns + chunk * 64 + 2 * (threadIdx.x % 4);
    const float* biases = factors + 2 * kCount;
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // 8 columns
      const float2 bias = moved ? *reinterpret_cast<const float2*>(biases + 8 * j) : float2{0, 0};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float y = static_cast<float>(d[chunk * 32 + 4 * j + i]);
        if constexpr (kScaled) {
          const float2 factor = *reinterpret_cast<const float2*>(factors + 8 * j);
          y = y * (i < 2 ? f.low : f.high) * (i % 2 ? factor.y : factor.x);
        }
        v[4 * j + i] = moved ? fmaf(y, tile.alpha, i % 2 ? bias.y : bias.x) : y;
      }
    }
  }
  template <class EpilogueMode, class Memory, class T, int kCount>
  __device__ void defer_sums(Memory& s, int consumer, const PendingTile& tile, const RowFactors& f,
                             bool moved, const T (&d)[kCount],
                             PendingSums<EpilogueMode, kCount>& pending) const {
    constexpr int kNow = PendingSums<EpilogueMode, kCount>::kNow;
#pragma unroll
    for (int c = kNow; c < kCount / 32; ++c)
      move_sums(s, tile, f, c, d, moved, pending.v + (c - kNow) * 32);
#pragma unroll
    for (int c = 0; c < kNow; ++c) {
      float v[32];
      uint32_t old[4] = {};
      move_sums(s, tile, f, c, d, moved, v);
#pragma unroll
      for (int p = 0; p < 8; ++p)
        finish_piece<EpilogueMode>(s, c * 8 + p, consumer, tile, v, p * 4, old);
    }
  }
  // The sums, out of the way of the next tile's.
  template <class EpilogueMode, class Memory, class T, int kCount>
  __device__ void defer(Memory& s, int consumer, const PendingTile& tile, const RowFactors& f,
                        const T (&d)[kCount], PendingSums<EpilogueMode, kCount>& pending) const {
    if (!has_columns()) {
      defer_sums<EpilogueMode>(s, consumer, tile, f, false, d, pending);
      return;
    }
    wait(&s.chunks.columns_ready, tile.turn);
    defer_sums<EpilogueMode>(s, consumer, tile, f, true, d, pending);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&s.chunks.columns_done);
  }
  template <class EpilogueMode, class Memory, int kCount>
  __device__ void finish_pending(Memory& s, int piece, int consumer, const PendingTile& tile,
                                 PendingSums<EpilogueMode, kCount>& pending,
                                 uint32_t (&old)[4]) const {
    using Sums = PendingSums<EpilogueMode, kCount>;
    finish_piece<EpilogueMode>(s, Sums::kFirstPiece + piece, consumer, tile, pending.v, piece * 4,
                               old);
  }

  // Where a group of 16 columns goes.
  template <class Memory>
  __device__ static uint32_t place_of(const PendingTile& tile, int piece) {
    return (tile.place ^ (piece / 2 % 4 * 32)) + piece / 8 % Memory::kOwn * kChunkBytes;
  }
  template <class Memory>
  __device__ static void end_chunk(Memory& s, int piece, int consumer) {
    if (piece % 8 != 7) return;
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&s.chunks.filled[consumer][piece / 8]);
  }
  // Two pieces make 16 columns; `first`: of the piece's sums in v; `old`: the residual's, from the
  // first piece to the second.
  template <class EpilogueMode, class Memory, int kCount>
  __device__ void finish_piece(Memory& s, int piece, int consumer, const PendingTile& tile,
                               float (&v)[kCount], int first, uint32_t (&old)[4]) const {
    constexpr Float kOut = EpilogueMode::kBf16 ? Float::kBf16 : Float::kF16;
    const int chunk = piece / 8;
    const uint32_t at = place_of<Memory>(tile, piece);
    if (piece % 8 == 0 && (EpilogueMode::kAdded || chunk == 0 || chunk >= Memory::kOwn))
      wait(&s.chunks.ready[consumer][chunk], tile.turn);
    if (EpilogueMode::kAdded && piece % 2 == 0) load_matrices(at, old);
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = v[first + i];
    activate_all(EpilogueMode::kActivation, y);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[first + i] = y[i];
    if (piece % 2 == 0) return;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float low = v[first - 4 + 2 * i], high = v[first - 3 + 2 * i];
      if constexpr (EpilogueMode::kAdded) {
        low = fmaf(half_of(old[i] & 0xFFFF, kOut), tile.beta, low);
        high = fmaf(half_of(old[i] >> 16, kOut), tile.beta, high);
      }
      words[i] = pack(low, high, kOut);
    }
    store_matrices(at, words[0], words[1], words[2], words[3]);
    end_chunk(s, piece, consumer);
  }

  __device__ static void stage(const float (&v)[32], char* staging) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // 8 columns
      const int piece = 2 * j + lane % 4 / 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        char* to = staging + staging_offset(row + 8 * half, piece) + lane % 2 * 8;
        *reinterpret_cast<float2*>(to) = make_float2(v[4 * j + 2 * half], v[4 * j + 2 * half + 1]);
      }
    }
  }

  // Two rows of a thread's eight columns from staging to their end in memory.
  __device__ void finish_row(const char* staging, int r, int64_t row, int column, int count,
                             int batch, const RowFactors& f, const float (&factor)[8],
                             const float (&bias)[8]) const {
    const int group = threadIdx.x % 8;
    const int flip = group / 4;  // half of the lanes read their second piece first: no conflict
    const float4 one =
        *reinterpret_cast<const float4*>(staging + staging_offset(r, 2 * group + flip));
    const float4 two =
        *reinterpret_cast<const float4*>(staging + staging_offset(r, 2 * group + 1 - flip));
    const float4 low = flip ? two : one;
    const float4 high = flip ? one : two;
    float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float residual[8] = {};
    const FloatMatrix& t = a.residual;
    if (t.data)
      load_8(t, batch * t.batch_stride + row * t.row_stride + column * t.column_stride, count,
             residual);
    const float of_row = kScaled ? a.rows.at(row) : 1.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if constexpr (kScaled) y[j] = y[j] * of_row * factor[j];
      y[j] = fmaf(y[j], f.alpha, bias[j]);
    }
    activate_all(a.activation, y);
    if constexpr (!kScaled) {
      if (a.gate.data) {
#pragma unroll
        for (int j = 0; j < 8; ++j) y[j] *= factor[j];
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = fmaf(residual[j], f.beta, y[j]);
    store_8(a.out,
            batch * a.out.batch_stride + row * a.out.row_stride + column * a.out.column_stride,
            count, y);
  }

  __device__ void finish_rows(const char* staging, const Tile& tile, int row0, int column0,
                              const RowFactors& f) const {
    const int thread = threadIdx.x % 128;
    const int column = column0 + thread % 8 * 8;
    const int count = min(8, a.n - column);
    if (count <= 0) return;
    float factor[8] = {};
    float bias[8] = {};
    if (a.bias.data) load_8(a.bias, column * a.bias.column_stride, count, bias);
    if constexpr (kScaled) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (j < count) factor[j] = a.columns.at(column + j);
    }
    if (a.gate.data) {
      float gate[8] = {};
      load_8(a.gate, gate_row(tile) + column * a.gate.column_stride, count, gate);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        factor[j] = kScaled ? factor[j] * gate[j] : gate[j];
        if constexpr (kScaled) bias[j] *= gate[j];
      }
    }
#pragma unroll 1
    for (int r = thread / 8; r < min(64, a.m - row0); r += 16)
      finish_row(staging, r, row0 + r, column, count, tile.batch, f, factor, bias);
  }

  // 64 columns of the accumulators. One copy of the code that takes them for all chunks: registers
  // have no computed numbers.
  template <class T, int kCount>
  __device__ static void take_chunk(const T (&d)[kCount], int c, float (&v)[32]) {
    T chunk[32];
#pragma unroll
    for (int i = 0; i < kCount / 32; ++i) {
      if (i != c) continue;
#pragma unroll
      for (int j = 0; j < 32; ++j) chunk[j] = d[i * 32 + j];
    }
#pragma unroll
    for (int j = 0; j < 32; ++j) v[j] = static_cast<float>(chunk[j]);
  }

  // Any out: 64 columns at a time through 16 KiB of f32.
  template <class T, int kCount>
  __device__ void finish_by_rows(char* staging, const Tile& tile, int consumer, const RowFactors& f,
                                 const T (&d)[kCount]) const {
    constexpr int kTileN = kCount * 2;
#pragma unroll 1
    for (int c = 0; c < kTileN / 64; ++c) {
      float v[32];
      take_chunk(d, c, v);
      sync_threads(1 + consumer, 128);
      stage(v, staging);
      sync_threads(1 + consumer, 128);
      finish_rows(staging, tile, tile.m * kTileM + consumer * 64, tile.n * kTileN + c * 64, f);
    }
  }

  // `next`: the stage after the tile's last; `turn`: the parity of the tile's barriers.
  template <class Memory, class T, int kCount>
  __device__ void finish_tile(Memory& s, int next, uint32_t turn, const Tile& tile, int consumer,
                              const RowFactors& f, const T (&d)[kCount]) const {
    if (!kPairs && !a.by_boxes) {
      finish_by_rows(s.out[consumer].rows[0], tile, consumer, f, d);
      return;
    }
    if (has_columns()) wait(&s.chunks.columns_ready, turn);
    if (!a.residual.data) wait(&s.chunks.ready[consumer][0], turn);
    if constexpr (kPairs)
      finish_pairs(s, next, consumer, f, d);
    else if (a.activation != 0 || a.gate.data || a.residual.data)
      finish_chunks(s, next, turn, consumer, f, d);
    else if (a.alpha || a.bias.data)
      finish_plain<true>(s, next, consumer, f, d);
    else
      finish_plain<false>(s, next, consumer, f, d);
    __syncwarp();
    if (has_columns() && threadIdx.x % 32 == 0) arrive(&s.chunks.columns_done);
  }
};

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
