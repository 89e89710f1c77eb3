// rms_norm, layer_norm, adaln and rms_adaln on CUDA: which kernel takes a call, and two of them.
// Order    norm_rows_cuda() asks norm_long.cu where no cluster holds a row (no sum before the norm,
//          no quantised output), norm_short.cu, norm_registers.cu, norm_warps.cu,
//          norm_persistent.cu, norm_staged.cu; the kernels below take what is left.
// Map      A row lies in the registers of 4 to 32 lanes, a block, or a cluster of up to 16 blocks
//          (thread_group.cuh), 32 elements a thread. row: a row a thread group, straight to
//          registers. walk: with codes a thread group takes several rows, the next ones on their
//          way to shared memory (row_ring.cuh). One kernel for each dtype of x and kind of output,
//          with and without a sum before the norm; other options are uniform branches. Rows that
//          begin anywhere: norm_units.cuh. any: a block a row, in pieces of 1024 elements in shared
//          memory, read again for each pass; any strides and offsets.
// Traffic  x (and residual) once, out (or codes) once; weight, bias, scale, shift out of the L1 or
//          L2.
// Numerics f32; mean first, then squared differences from it, both by fixed trees of additions.
//          Codes: ops/quant/output/quantized_output.h.
// Measured H200, share of the copy: bf16 4608 x 3072 80 to 85 %, adaln with gate and residual 94.
//          norm_rows.md
#include "backends/cuda/device/row/row_ring.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "ops/norm/forward/norm_job.cuh"
#include "ops/norm/forward/norm_long.h"
#include "ops/norm/forward/norm_persistent.h"
#include "ops/norm/forward/norm_registers.h"
#include "ops/norm/forward/norm_rows.h"
#include "ops/norm/forward/norm_short.h"
#include "ops/norm/forward/norm_staged.h"
#include "ops/norm/forward/norm_units.cuh"
#include "ops/norm/forward/norm_warps.h"
#include "ops/quant/output/quantized_any.cuh"
#include "ops/quant/output/quantized_output.cuh"
#include "ops/quant/rowwise/quantize_rows.cuh"
#include "ops/quant/rowwise/quantize_staged.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;
using namespace row_quantizer;
using namespace norm_device;

constexpr int64_t kMostRows = int64_t{1} << 31;
constexpr int64_t kLeastStaged = 64 << 20;  // bytes of x
constexpr int64_t kLeastRow = 1024;         // bytes, of rows in shared memory
constexpr int64_t kLongestInBlock = 16384;

// f(first, values) for each chunk of the thread's elements of an operand's row; `first` of its 32.
// Chunks past the row's end are others' values.
template <class E, class Map, class F>
__device__ inline void for_chunks_of(const char* row, const RowElements<Map>& at, F& f) {
  constexpr int kBatch = E::kBytes == 4 || Map::kPieces > 1 ? 2 : 4;
#pragma unroll
  for (int c = 0; c < Map::kChunks; c += kBatch) {
    OperandChunk<E, Map::kChunk> chunks[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) chunks[i].load(at_element<E::kBytes>(row, at.near(c + i)));
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float w[Map::kChunk];
      chunks[i].values(w);
      f((c + i) * Map::kChunk, w);
    }
  }
}
template <class Map, class F>
__device__ inline void for_chunks(const Operand& o, int row, const RowElements<Map>& at, F f) {
  if (o.data == nullptr) return;
  const char* from = row_at(o.data, o.row_bytes, row);
  if (o.dtype == DType::kF32) {
    for_chunks_of<F32>(from, at, f);
  } else if (o.dtype == DType::kBF16) {
    for_chunks_of<Bf16>(from, at, f);
  } else {
    for_chunks_of<F16>(from, at, f);
  }
}
// The same of two operands of one dtype.
template <class E, class Map, class F>
__device__ inline void for_pairs_of(const char* row, const char* other, const RowElements<Map>& at,
                                    F& f) {
  constexpr int kBatch = E::kBytes == 4 ? 1 : 2;
#pragma unroll
  for (int c = 0; c < Map::kChunks; c += kBatch) {
    OperandChunk<E, Map::kChunk> chunks[2][kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      chunks[0][i].load(at_element<E::kBytes>(row, at.near(c + i)));
      chunks[1][i].load(at_element<E::kBytes>(other, at.near(c + i)));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float w[Map::kChunk], b[Map::kChunk];
      chunks[0][i].values(w);
      chunks[1][i].values(b);
      f((c + i) * Map::kChunk, w, b);
    }
  }
}

using Values = RowValues;

// v: the row of x to residual + gate * x, which is stored. piece(g, q, w): values of the residual.
template <class Map, class Piece>
__device__ inline void add_residual(const NormJob& p, const ThreadGroup& thread_group, int group,
                                    const RowElements<Map>& at, Values& v, Piece piece) {
  for_chunks(p.gate, group, at, [&](int i, const float(&w)[Map::kChunk]) {
    for (int j = 0; j < Map::kChunk; ++j) v[i + j] *= w[j];
  });
  if (p.residual.data == nullptr) return;
#pragma unroll
  for (int g = 0; g < Map::kGranules; ++g) {
#pragma unroll
    for (int q = 0; q < Map::kPieces; ++q) {
      float w[Map::kPieceElements];
      piece(g, q, w);
      float* to = v + g * Map::kElements + q * Map::kPieceElements;
      for (int j = 0; j < Map::kPieceElements; ++j) to[j] += w[j];
    }
  }
  store_row<Map>(row_at(p.residual_out, p.residual_out_row_bytes, thread_group.row), at, v);
}

// v: sums to the normalised row.
template <class Map>
__device__ inline void normalize(const NormJob& p, const ThreadGroup& thread_group,
                                 const RowElements<Map>& at, ReductionSlots<6>& parts, int slot,
                                 Values& v) {
  clear_missing(at, v);
  if (p.subtract_mean) {
    const float sum =
        thread_group.sum(parts, slot, sum_of(v, [](float a, float s) { return s + a; }));
    const float mean = sum * p.share;
#pragma unroll
    for (int i = 0; i < kRowElements; ++i) v[i] -= mean;
    clear_missing(at, v);
  }
  const float own = sum_of(v, [](float a, float s) { return __fmaf_rn(a, a, s); });
  const float squares = thread_group.sum(parts, slot + 1, own);
  const float rstd = rsqrtf(__fmaf_rn(squares, p.share, p.eps));
#pragma unroll
  for (int i = 0; i < kRowElements; ++i) v[i] *= rstd;
}

// v * (a + w) + b, where present: a is 0 for a weight, 1 for a modulation.
template <class Map>
__device__ inline void scale_and_shift(const Operand& w, const Operand& b, int row, float a,
                                       const RowElements<Map>& at, Values& v) {
  constexpr int kChunk = Map::kChunk;
  if (w.data == nullptr && b.data == nullptr) return;
  if (w.data == nullptr || b.data == nullptr || w.dtype != b.dtype) {
    for_chunks(w, row, at, [&](int i, const float(&x)[kChunk]) {
      for (int j = 0; j < kChunk; ++j) v[i + j] *= a + x[j];
    });
    for_chunks(b, row, at, [&](int i, const float(&x)[kChunk]) {
      for (int j = 0; j < kChunk; ++j) v[i + j] += x[j];
    });
    return;
  }
  const auto both = [&](int i, const float(&x)[kChunk], const float(&y)[kChunk]) {
    for (int j = 0; j < kChunk; ++j) v[i + j] = __fmaf_rn(v[i + j], a + x[j], y[j]);
  };
  const char* x = row_at(w.data, w.row_bytes, row);
  const char* y = row_at(b.data, b.row_bytes, row);
  if (w.dtype == DType::kF32) {
    for_pairs_of<F32>(x, y, at, both);
  } else if (w.dtype == DType::kBF16) {
    for_pairs_of<Bf16>(x, y, at, both);
  } else {
    for_pairs_of<F16>(x, y, at, both);
  }
}

template <class T, class Kind, class Map>
__device__ inline void put_row(const NormJob& p, const ThreadGroup& thread_group,
                               const RowElements<Map>& at, ReductionSlots<6>& parts, int slot,
                               char* shared, const Nvfp4Scale& global, const Values& v) {
  char* out = row_at(p.out, p.out_row_bytes, thread_group.row);
  if constexpr (!Kind::kQuantizes) {
#pragma unroll
    for (int i = 0; i < kRowElements; i += Map::kPieceElements) {
      if (!at.stores(i / Map::kChunk)) continue;
      const int element = at.places[i / Map::kElements] + i % Map::kElements;
      store_plain(at_element<T::kBytes>(out, element), rounded_piece<T, false>(v + i));
    }
  } else {
    typename T::Raw raw[kCodeUnits];
#pragma unroll
    for (int i = 0; i < kCodeUnits; ++i) {
      float w[kUnit];
      for (int j = 0; j < kUnit; ++j) w[j] = v[i * kUnit + j];
      raw[i] = round_loosely<T>(w);  // codes do not tell NaN from NaN
      if (p.out != nullptr && at.stores(i)) {
        T::put(at_element<T::kBytes>(out, at.element(i)), round_unit<T>(w));
      }
    }
    put_codes<T, Kind>(p.codes, thread_group, at, parts, slot + 2, shared, global, raw);
  }
}

// Rows of up to 8192 elements lie in blocks of up to 256 threads, several on a multiprocessor;
// longer ones, without codes, in blocks of up to 512.
constexpr int kSmallBlock = 256;
constexpr int kLargeBlock = 512;
// Registers of a thread: what a multiprocessor has, shared by as many threads as get along.
template <class T, class Kind, int kThreads, bool kSum>
constexpr int kRegisters = kThreads == kLargeBlock ? (kSum || T::kBytes == 4 ? 128 : 64)
                                                   : (kSum || T::kBytes == 4 ? 80
                                                      : Kind::kQuantizes     ? 72
                                                                             : 64);

template <class T, class Kind>
using MapOf = RowMap<T, Kind::kQuantizes ? kRun : kPieceBytes / T::kBytes>;

// From sums to what is stored.
template <class T, class Kind, class Map>
__device__ inline void finish_row(const NormJob& p, const ThreadGroup& thread_group,
                                  const RowElements<Map>& at, ReductionSlots<6>& parts, int slot,
                                  char* shared, const Nvfp4Scale& global, int group, Values& v) {
  normalize(p, thread_group, at, parts, slot, v);
  scale_and_shift(p.weight, p.bias, 0, 0.0f, at, v);
  scale_and_shift(p.scale, p.shift, group, 1.0f, at, v);
  put_row<T, Kind>(p, thread_group, at, parts, slot, shared, global, v);
}

// kSum: a residual or a gate comes before the norm.
template <class T, class Kind, int kThreads, bool kSum>
__global__ void __launch_bounds__(kThreads) __maxnreg__((kRegisters<T, Kind, kThreads, kSum>))
    walk_kernel(const __grid_constant__ NormJob p) {
  using Map = MapOf<T, Kind>;
  extern __shared__ uint4 shared[];
  __shared__ ReductionSlots<6>
      parts;  // three of rows in turn: one is read while the next is written
  ThreadGroup thread_group(p.shape);
  RowElements<Map> at(thread_group, p.columns);
  const int tensor = blockDim.x * (Map::kStageBytes * p.stages);
  const bool has_residual = kSum && p.residual.data != nullptr;
  char* after = reinterpret_cast<char*>(shared) + (has_residual ? 2 : 1) * tensor;
  const RowRing<Map> ring(thread_group, p.columns, shared, p.stages);
  const auto fetch = [&](int k, int stage) {
    if (thread_group.walks_on(k)) {
      const int row = thread_group.row_after(k);
      ring.fetch(row_at(p.x, p.x_row_bytes, row), stage);
      if (has_residual) {
        ring.fetch(row_at(p.residual.data, p.residual.row_bytes, row), stage + tensor);
      }
    }
    commit_copies();
  };
  Nvfp4Scale global{};
  if constexpr (std::is_same_v<Kind, Nvfp4Output>)
    global = Nvfp4Scale::from<T>(p.codes.global_scale);
  for (int k = 0; k < p.stages; ++k) fetch(k, k * ring.kStride);
  thread_group.begin(parts);
  int stage = 0, slot = 0;
  for (; thread_group.walks_on(0); thread_group.go_on(), slot = 3 - slot) {
    at.begin_row(thread_group);
    const int group = p.rows_of_group.divide(static_cast<uint32_t>(thread_group.row));
    if (p.stages == 2)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    if (Map::kPieces > 1) __syncwarp();  // pieces that other lanes asked for
    Values v;
    read_row(ring, stage, v);
    if constexpr (kSum) {
      add_residual(p, thread_group, group, at, v,
                   [&](int g, int q, float* w) { ring.read(stage + tensor, g, q, w); });
    }
    if (Map::kPieces > 1) __syncwarp();
    fetch(p.stages, stage);
    stage = p.stages == 2 ? ring.kStride - stage : 0;
    finish_row<T, Kind>(p, thread_group, at, parts, slot, after, global, group, v);
  }
}

// A row a thread group, straight to registers: faster than a walk where no codes are made.
template <class T, int kThreads, bool kSum>
__global__ void __launch_bounds__(kThreads)
    __maxnreg__(kThreads == kLargeBlock ? (kRegisters<T, PlainOutput, kThreads, kSum>) : 80)
        row_kernel(const __grid_constant__ NormJob p) {
  wait_previous_kernel();
  using Map = MapOf<T, PlainOutput>;
  __shared__ ReductionSlots<6> parts;
  ThreadGroup thread_group(p.shape);
  RowElements<Map> at(thread_group, p.columns);
  at.begin_row(thread_group);
  const int group = p.rows_of_group.divide(static_cast<uint32_t>(thread_group.row));
  Values v;
  uint4 own[Map::kGranules];
  load_pieces(row_at(p.x, p.x_row_bytes, thread_group.row), at, own);
#pragma unroll
  for (int g = 0; g < Map::kGranules; ++g) unpack_piece<T>(own[g], v + g * Map::kElements);
  if constexpr (kSum) {
    uint4 pieces[Map::kGranules] = {};
    if (p.residual.data != nullptr) {
      load_pieces(row_at(p.residual.data, p.residual.row_bytes, thread_group.row), at, pieces);
    }
    add_residual(p, thread_group, group, at, v,
                 [&](int g, int, float* w) { unpack_piece<T>(pieces[g], w); });
  }
  thread_group.begin(parts);
  finish_row<T, PlainOutput>(p, thread_group, at, parts, 0, nullptr, {}, group, v);
}

// ---- any ----

struct AnyNorm {
  AnyTensor x, residual, gate, weight, bias, scale, shift, out, residual_out;
  AnyQuantized codes;
  int64_t columns, rows_of_group;
  float eps;
  bool subtract_mean;
};

constexpr int kPiece = kAnyColumns;

__device__ float any_block_sum(float v) {
  __shared__ float warps[32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

struct AnyRows {
  const AnyNorm& p;
  int64_t row;
  int64_t group;
  float mean = 0, rstd = 0;

  __device__ AnyRows(const AnyNorm& job, int64_t r)
      : p(job), row(r), group(AnyTensor::quotient(r, job.rows_of_group)) {}

  // What is normalised: the thread's elements from j on, of which there are `count`.
  __device__ void sums_at(int64_t j, int count, float (&v)[kAnyEach]) const {
    AnyRow(p.x, row).load_each(j, kAnyThreads, count, v);
    combine(p.gate, group, j, count, v, [](float a, float g) { return a * g; });
    combine(p.residual, row, j, count, v, [](float a, float r) { return a + r; });
  }
  __device__ void outputs(int64_t j, int count, float (&v)[kAnyEach]) const {
#pragma unroll
    for (float& one : v) one = (one - mean) * rstd;
    combine(p.weight, 0, j, count, v, [](float a, float w) { return a * w; });
    combine(p.bias, 0, j, count, v, [](float a, float b) { return a + b; });
    combine(p.scale, group, j, count, v, [](float a, float s) { return a * (1.0f + s); });
    combine(p.shift, group, j, count, v, [](float a, float s) { return a + s; });
  }
  // One rounding to x's dtype.
  __device__ float rounded(float v) const {
    if (p.x.dtype == DType::kBF16) return formats::f32_from_bf16(formats::bf16_from_f32(v));
    if (p.x.dtype == DType::kF16) return formats::f32_from_f16(formats::f16_from_f32(v));
    return v;
  }
  __device__ void find_statistics() {
    const auto count = static_cast<float>(p.columns);
    if (p.subtract_mean) mean = sum_of_row([](float s, float sum) { return sum + s; }) / count;
    const float squares =
        sum_of_row([&](float s, float sum) { return __fmaf_rn(s - mean, s - mean, sum); });
    rstd = __frsqrt_rn(squares / count + p.eps);
  }
  // Outputs of a piece as codes are made of them, in shared memory; kStore: and where they belong.
  template <bool kStore>
  __device__ int piece(int64_t first, float* v) const {
    const int count = static_cast<int>(min(static_cast<int64_t>(kPiece), p.columns - first));
    __syncthreads();
    const int have = any_count(count);
    const int64_t j = first + threadIdx.x;
    float s[kAnyEach], y[kAnyEach];
    sums_at(j, have, s);
#pragma unroll
    for (int k = 0; k < kAnyEach; ++k) y[k] = s[k];
    outputs(j, have, y);
    const AnyRow out(p.out, row), residual_out(p.residual_out, row);
#pragma unroll
    for (int k = 0; k < kAnyEach; ++k) {
      if (k >= have) continue;
      const int i = threadIdx.x + k * kAnyThreads;
      v[i] = rounded(y[k]);
      if (kStore && residual_out.present()) residual_out.store(first + i, s[k]);
      if (kStore && out.present()) out.store(first + i, y[k]);
    }
    if (p.codes.hadamard > 0) rotate_shared(v, count, p.codes.hadamard);
    __syncthreads();
    return count;
  }

 private:
  template <class F>
  __device__ static void combine(const AnyTensor& with, int64_t of_row, int64_t j, int count,
                                 float (&v)[kAnyEach], F f) {
    if (with.data == nullptr) return;
    float w[kAnyEach];
    AnyRow(with, of_row).load_each(j, kAnyThreads, count, w);
#pragma unroll
    for (int k = 0; k < kAnyEach; ++k) v[k] = f(v[k], w[k]);
  }
  // add(what is normalised, sum) is the next sum.
  template <class F>
  __device__ float sum_of_row(F add) const {
    float own = 0;
    for (int64_t j = threadIdx.x; j < p.columns; j += kPiece) {
      const int have = any_count(p.columns - j + threadIdx.x);
      float v[kAnyEach];
      sums_at(j, have, v);
#pragma unroll
      for (int k = 0; k < kAnyEach; ++k) own = k < have ? add(v[k], own) : own;
    }
    return any_block_sum(own);
  }
};

__global__ void __launch_bounds__(kAnyThreads, 4) any_kernel(const __grid_constant__ AnyNorm p) {
  wait_previous_kernel();
  __shared__ float v[kPiece];
  AnyRows rows(p, blockIdx.x);
  rows.find_statistics();
  const float scale = any_row_scale(p.codes, rows.row, v,
                                    [&](int64_t first) { return rows.piece<false>(first, v); });
  for (int64_t first = 0; first < p.columns; first += kPiece) {
    const int count = rows.piece<true>(first, v);
    put_any_codes(p.codes, rows.row, first, count, v, scale);
  }
  clear_any_padding(p.codes, rows.row);
}

// ---- host ----

template <class T, class Kind, int kThreads, bool kSum>
Status start_walk(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  ThreadGroupShape& s = job.shape;
  const int rings = n.residual.data != nullptr ? 2 : 1;
  job.stages = rings == 1 && T::kBytes == 2 ? 2 : 1;
  int bytes = ring_bytes<MapOf<T, Kind>>(s.threads, rings, job.stages);
  if (std::is_same_v<Kind, RotatedOutput>) bytes += rotation_bytes(s.threads);
  s.choose_walk(resident_blocks(device_index(call), s.threads,
                                65536 / kRegisters<T, Kind, kThreads, kSum>, bytes));
  const auto kernel = walk_kernel<T, Kind, kThreads, kSum>;
  PESTLE_TRY(allow_shared(call, kernel, bytes));
  return launch(call, name, {s.blocks(), s.threads, static_cast<size_t>(bytes), s.cluster}, kernel,
                job);
}

template <class T, class Kind, int kThreads, bool kSum>
Status start_sums(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  ThreadGroupShape& s = job.shape;
  s = group_over<MapOf<T, Kind>>(n.rows(), n.columns(), kMostGroupBlocks, kThreads);
  if constexpr (Kind::kQuantizes) {
    return start_walk<T, Kind, kThreads, kSum>(call, name, job, n);
  } else {
    return launch_early(call, name, {s.blocks(), s.threads, 0, s.cluster},
                        row_kernel<T, kThreads, kSum>, job);
  }
}

// Does anything come before the norm?
bool has_sum(const NormRows& n) { return n.residual.data != nullptr || n.gate.data != nullptr; }

// Where codes are made or rows are long, kernels without a sum are those of norm_staged.cu.
template <class T, class Kind>
Status start(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  if constexpr (!Kind::kQuantizes) {
    if (n.columns() > kSmallBlock * kRowElements) {
      return start_sums<T, Kind, kLargeBlock, true>(call, name, job, n);
    }
    if (!has_sum(n)) return start_sums<T, Kind, kSmallBlock, false>(call, name, job, n);
  }
  return start_sums<T, Kind, kSmallBlock, true>(call, name, job, n);
}

// Where a block that holds its row in registers is faster (norm_rows.md): f32, small tensors.
bool suits_one_block(const NormRows& n) {
  if (n.quant.format != OutFormat::kNone || n.columns() > kSmallBlock * kRowElements) return false;
  return n.x.dtype == DType::kF32 || n.rows() * n.columns() * 2 < kLeastStaged;
}

// Where a persistent kernel is faster: codes, rows that a cluster shares, and where rows in shared
// memory would be walked over once more for their mean, unless weight and bias are narrow. Few rows
// are refused there.
bool suits_persistent(const NormRows& n) {
  const int64_t bytes = n.columns() * dtype_bytes(n.x.dtype);
  if (n.quant.format != OutFormat::kNone) return bytes >= kLeastRow;
  if (n.rows() * bytes < kLeastStaged) return false;
  if (n.columns() > kLongestInBlock) return true;
  return n.subtract_mean && n.x.dtype != DType::kF32 &&
         (n.shift.data != nullptr || (n.bias.data != nullptr && n.bias.dtype == DType::kF32));
}

// What rows in shared memory need: granules of 16 bytes, of a unit's bytes or of a block of codes;
// too few of them leave lanes without work.
bool is_staged(const NormRows& n) {
  const int bytes = dtype_bytes(n.x.dtype);
  const bool runs = n.quant.block_scales() || n.quant.hadamard > 0;
  if (has_sum(n) || suits_one_block(n) || n.columns() % (runs ? kRun : kUnit) != 0) return false;
  return n.columns() * bytes >= kLeastRow;
}

// Rows that neither a block nor the largest cluster holds.
constexpr int64_t kLongestOfAll = int64_t{1} << 30;
bool is_long(const NormRows& n, int largest_cluster) {
  if (n.quant.format != OutFormat::kNone || has_sum(n)) return false;
  return n.columns() > StagedShape::longest(largest_cluster, dtype_bytes(n.x.dtype), 0);
}

template <class T>
Status start_kind(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  if (n.quant.format == OutFormat::kNone) return start<T, PlainOutput>(call, name, job, n);
  return with_quantized(n.quant,
                        [&](auto kind) { return start<T, decltype(kind)>(call, name, job, n); });
}

int64_t groups_of(const NormRows& n) {
  for (const TensorView* t : {&n.gate, &n.scale, &n.shift}) {
    if (t->data != nullptr) return row_count(*t);
  }
  return 1;
}

// Rows of no elements, or none: what is left to write is padding and scales of nothing.
bool is_empty(const NormRows& n) { return n.rows() == 0 || n.columns() == 0; }

}  // namespace

Status norm_rows_cuda(const Call& call, const char* name, const NormRows& n) {
  if (is_long(n, blocks_of_cluster(call))) return start_long_norm(call, name, n);
  bool taken = false;
  PESTLE_TRY(norm_device::start_short_norm(call, name, n, taken));
  if (taken) return {};
  PESTLE_TRY(norm_device::start_register_norm(call, name, n, taken));
  if (taken) return {};
  PESTLE_TRY(norm_device::start_warps_norm(call, name, n, taken));
  if (taken) return {};
  if (suits_persistent(n)) {
    PESTLE_TRY(norm_device::start_persistent_norm(call, name, n, taken));
    if (taken) return {};
  }
  NormJob job;
  job.x = n.x.as<const char>();
  job.x_row_bytes = row_distance(n.x);
  job.out = n.out.as<char>();
  job.out_row_bytes = n.out.data ? row_distance(n.out) : 0;
  job.residual_out = n.residual_out.as<char>();
  job.residual_out_row_bytes = n.residual_out.data ? row_distance(n.residual_out) : 0;
  job.residual = Operand(n.residual);
  job.gate = Operand(n.gate);
  job.weight = Operand(n.weight);
  job.bias = Operand(n.bias);
  job.scale = Operand(n.scale);
  job.shift = Operand(n.shift);
  job.rows_of_group = FastDivisor(static_cast<uint32_t>(n.rows() / groups_of(n)));
  job.eps = n.eps;
  job.columns = static_cast<int>(n.columns());
  job.share = 1.0f / static_cast<float>(n.columns());
  job.subtract_mean = n.subtract_mean;
  job.codes = RowQuantizer(n.quant);
  if (is_staged(n)) return start_staged_norm(call, name, job, n);
  switch (n.x.dtype) {
    case DType::kBF16: return start_kind<Bf16>(call, name, job, n);
    case DType::kF16: return start_kind<F16>(call, name, job, n);
    default: return start_kind<F32>(call, name, job, n);
  }
}

Status norm_rows_cuda_any(const Call& call, const char* name, const NormRows& n) {
  if (n.rows() == 0) return {};
  bool taken = false;
  PESTLE_TRY(
      norm_device::start_units_norm(call, name, n, groups_of(n), blocks_of_cluster(call), taken));
  if (taken) return {};
  const AnyNorm job{AnyTensor(n.x),
                    AnyTensor(n.residual),
                    AnyTensor(n.gate),
                    AnyTensor(n.weight),
                    AnyTensor(n.bias),
                    AnyTensor(n.scale),
                    AnyTensor(n.shift),
                    AnyTensor(n.out),
                    AnyTensor(n.residual_out),
                    AnyQuantized(n.quant, n.rows(), n.columns()),
                    n.columns(),
                    n.rows() / groups_of(n),
                    n.eps,
                    n.subtract_mean};
  return launch_early(call, name, {n.rows(), kAnyThreads}, any_kernel, job);
}

std::string refuse_norm_rows_cuda(const NormRows& n, const Machine& machine) {
  if (is_empty(n)) return "the tensor is empty";
  if (n.columns() % kUnit != 0) return "K is no multiple of 8";
  if (n.rows() >= kMostRows) return "2^31 rows or more";
  const int blocks = machine.compute_capability >= 90 ? kMostGroupBlocks : 1;
  int64_t longest = int64_t{n.quant.format == OutFormat::kNone ? kLargeBlock : kSmallBlock} *
                    kRowElements * blocks;
  if (is_staged(n)) {
    longest = StagedShape::longest(largest_cluster(machine.compute_capability),
                                   dtype_bytes(n.x.dtype), n.quant.hadamard > 0 ? 4 : 0);
  }
  if (is_long(n, largest_cluster(machine.compute_capability))) longest = kLongestOfAll;
  if (n.columns() > longest) return "rows of more than " + std::to_string(longest) + " elements";
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", n.x},           {"residual", n.residual}, {"gate", n.gate},
             {"weight", n.weight}, {"bias", n.bias},         {"scale", n.scale},
             {"shift", n.shift},   {"out", n.out},           {"residual_out", n.residual_out}};
  for (const auto& [name, tensor] : all) {
    if (tensor.data == nullptr) continue;
    if (std::string why = refuse_unaligned(name, tensor); !why.empty()) return why;
  }
  return refuse_row_quantizer(n.quant);
}

}  // namespace pestle::ops
