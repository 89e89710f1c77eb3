// rms_rope_backward on CUDA.
// Map      fast  the units of ops/rope/rope.cuh: a thread takes one unit of one position in
//                kHeadGroup heads at a time and keeps d_weight of its columns in registers; thread
//                blocks, a fixed number, go through tasks that follow one another, two of which
//                are on their way to shared memory, and leave one row of d_weight each in the
//                workspace; a last kernel adds the rows up.
//          any   a thread block a head for d_x, then one a piece of the heads for d_weight.
// Traffic  d_out, x and d_x once; rotations once for a thread block's heads.
// Numerics f32; d_weight as sums of sums, in an order that depends on the shape alone.
// Measured [1,24,4608,128], [1,12,32760,128] bf16 on an H200: 34.0, 94.8 us; 71, 84 % of the copy.
#include <atomic>

#include "backends/cuda/host/early_launch.h"
#include "ops/rope/rms_rope_backward/rms_rope_backward_spec.h"
#include "ops/rope/rope.cuh"

namespace pestle::ops::rms_rope_backward {
namespace {

using namespace pestle::cuda;

constexpr int kDOut = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kDOut2 = arg_index(spec, "d_out2");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kWeight2 = arg_index(spec, "weight2");
constexpr int kDX = arg_index(spec, "d_x");
constexpr int kDWeight = arg_index(spec, "d_weight");
constexpr int kDX2 = arg_index(spec, "d_x2");
constexpr int kDWeight2 = arg_index(spec, "d_weight2");
constexpr int kEps = arg_index(spec, "eps");

// Heads of a task: 128 bytes of both tensors a thread.
template <class T, bool kSplit>
constexpr int kHeadGroup = 8 / (T::kBytes * (kSplit ? 2 : 1));
template <class T, bool kSplit>
constexpr int kAtOnce =
    !kSplit && kHeadGroup<T, kSplit> > 1 ? 2 : 1;  // of them worked on side by side
constexpr int kStages = 3;         // tasks in shared memory, the one worked on included
constexpr int kThreads = 256;      // and a unit of 8 columns in each of them: 8 or 16 KiB of sums
constexpr int kBlocks = 264;       // one wave; the same everywhere, since it orders additions
constexpr int kMostBlocks = 2048;  // rows of partial sums of one tensor; the workspace has 2 of it
constexpr const char* kWorkspace = "4*D*4096";

struct Job {
  RopeOperand operand;  // its `out` is d_x
  const char* d_out;
  int64_t d_out_stride[3];
  RopeTable table;
  DType weight_dtype;
  int units, rot_units, lanes, positions, d;
  float one_by_d;
  // Tasks of each thread block, one more for the first `more`; groups of heads and tiles of
  // positions.
  unsigned each, more, groups, tiles;
  bool turns_ahead;  // rotations are copied to shared memory a tile ahead
  float eps;
  float* sums;  // a row of D for each thread block
};

// What a thread keeps: its unit's weights, and its part of d_weight.
template <bool kSplit>
struct Columns {
  float w[RopeUnit<kSplit>::kChunks][kUnit];
  float d_w[RopeUnit<kSplit>::kChunks][kUnit];
};

// kAtOnce heads, so that their shuffles overlap: g is d_out, x the input; leaves d_x in g.
template <bool kSplit, int kAtOnce>
__device__ void some_heads(const Job& job, const RopePlace& place,
                           const float (&f)[4 * RopeUnit<kSplit>::kPairs],
                           RopeUnit<kSplit> (&g)[kAtOnce], RopeUnit<kSplit> (&x)[kAtOnce],
                           Columns<kSplit>& columns) {
  constexpr int kChunks = RopeUnit<kSplit>::kChunks;
  float root[kAtOnce];
  float mean[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    root[i] = unit_squares(x[i]);
    if (place.rotates && job.table.shared_by_heads) g[i].rotate(f);
  }
  for (int step = job.lanes / 2; step > 0; step /= 2) {
#pragma unroll
    for (float& sum : root) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    root[i] = inverse_root(__fmaf_rn(root[i], job.one_by_d, job.eps));
    mean[i] = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      for (int j = 0; j < kUnit; ++j) {
        x[i].v[c][j] *= root[i];
        columns.d_w[c][j] = __fmaf_rn(g[i].v[c][j], x[i].v[c][j], columns.d_w[c][j]);
        g[i].v[c][j] *= columns.w[c][j];
        mean[i] = __fmaf_rn(g[i].v[c][j], x[i].v[c][j], mean[i]);
      }
    }
  }
  for (int step = job.lanes / 2; step > 0; step /= 2) {
#pragma unroll
    for (float& sum : mean) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const float by = mean[i] * job.one_by_d;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      for (int j = 0; j < kUnit; ++j) {
        g[i].v[c][j] = root[i] * __fmaf_rn(-by, x[i].v[c][j], g[i].v[c][j]);
      }
    }
  }
}

// Every thread's columns to one row of sums, in the order of the slots.
template <bool kSplit>
__device__ void add_slots(const Job& job, const RopePlace& place, int slot, bool has_unit,
                          const Columns<kSplit>& columns) {
  extern __shared__ uint4 memory[];
  auto* rows = reinterpret_cast<float*>(memory);
  if (has_unit && slot < job.positions) {
#pragma unroll
    for (int c = 0; c < RopeUnit<kSplit>::kChunks; ++c) {
      for (int j = 0; j < kUnit; ++j) {
        rows[slot * job.d + (c == 0 ? place.first : place.second) + j] = columns.d_w[c][j];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < job.d; i += blockDim.x) {
    float sum = 0;
    for (int s = 0; s < job.positions; ++s) sum += rows[s * job.d + i];
    job.sums[static_cast<int64_t>(blockIdx.x) * job.d + i] = sum;
  }
}

// 16 bytes to shared memory, without a register, or zeros where `bytes` is 0; by the L1 where a
// thread takes halves of sectors.
template <bool kHalves>
__device__ inline void copy_ahead(uint32_t to, const void* from, int bytes) {
  if constexpr (kHalves)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

// A unit of weights as it lies in memory.
struct RawWeights {
  uint4 v[2];

  __device__ RawWeights(const char* p, DType dtype) {
    v[0] = load16(p);
    v[1] = dtype == DType::kF32 ? load16(p + 16) : v[0];
  }
  __device__ void to_f32(DType dtype, float (&w)[kUnit]) const {
    switch (dtype) {
      case DType::kBF16: return Bf16::to_f32({v[0]}, w);
      case DType::kF16: return F16::to_f32({v[0]}, w);
      default: return F32::to_f32({v[0], v[1]}, w);
    }
  }
};

// Results with canonical NaN. The hardware's NaN of 16 bits is the largest code of all as an
// integer with a sign.
template <class T>
__device__ inline void store_unit(char* p, const float (&v)[kUnit]) {
#if __CUDA_ARCH__ >= 900
  if constexpr (T::kBytes == 2) {
    const uint4 w = T::pack_numbers(v).v;
    const uint32_t nan = T::all_nan().v.x;
    return store16(p, make_uint4(__vmins2(w.x, nan), __vmins2(w.y, nan), __vmins2(w.z, nan),
                                 __vmins2(w.w, nan)));
  }
#endif
  T::store(p, v);
}

// Which heads and positions a thread works on: tasks follow one another, groups of heads first.
template <class T, bool kSplit>
struct Task {
  static constexpr int kHeads = kHeadGroup<T, kSplit>;
  const Job& job;
  int slot;
  bool has_unit;
  unsigned group, tile, b;

  __device__ Task(const Job& of, int slot_in_block, bool unit_exists, unsigned number)
      : job(of), slot(slot_in_block), has_unit(unit_exists) {
    const unsigned below = number / job.groups;
    group = number - below * job.groups;
    b = below / job.tiles;
    tile = below - b * job.tiles;
  }
  __device__ void advance() {
    if (++group < job.groups) return;
    group = 0;
    next_tile();
  }
  __device__ void next_tile() {
    if (++tile < job.tiles) return;
    tile = 0;
    ++b;
  }
  __device__ int64_t position() const { return int64_t{tile} * job.positions + slot; }
  __device__ bool active() const {
    return has_unit && slot < job.positions && position() < job.operand.shape[2];
  }
  __device__ int heads() const {
    const int64_t left = job.operand.shape[1] - int64_t{group} * kHeads;
    return active() ? static_cast<int>(min(left, int64_t{kHeads})) : 0;
  }
  __device__ int64_t offset(const int64_t (&stride)[3]) const {
    return rope_offset(stride, b, int64_t{group} * kHeads, position());
  }
};

template <class T, bool kSplit>
__global__ void __launch_bounds__(kThreads, 2) backward_units(const __grid_constant__ Job job) {
  using Unit = RopeUnit<kSplit>;
  constexpr int kHeads = kHeadGroup<T, kSplit>;
  constexpr int kChunks = Unit::kChunks;
  constexpr int kWords = kUnit * T::kBytes / 16;
  constexpr int kStageBytes = kThreads * kHeads * 2 * kChunks * kWords * 16;
  extern __shared__ uint4 memory[];
  const RopeOperand& t = job.operand;
  const int unit = threadIdx.x % job.lanes;
  const int slot = threadIdx.x / job.lanes;
  const bool has_unit = unit < job.units;
  const RopePlace place = rope_place<kSplit>(has_unit ? unit : 0, job.rot_units, job.table.rot);
  const int column[2] = {place.first, place.second};
  const auto first = static_cast<uint32_t>(__cvta_generic_to_shared(memory + threadIdx.x));
  // Where a piece of head `i` of x (0) or d_out (1) lies within a stage.
  const auto piece = [](int i, int which, int c, int k) {
    return (((i * 2 + which) * kChunks + c) * kWords + k) * kThreads * 16;
  };
  const unsigned begin = job.each * blockIdx.x + min(blockIdx.x, job.more);
  const unsigned end = begin + job.each + (blockIdx.x < job.more ? 1 : 0);
  unsigned loaded = begin;
  uint32_t load_stage = first;
  Task<T, kSplit> ahead(job, slot, has_unit, begin);
  const auto load_next = [&] {
    if (loaded < end) {
      const char* x = t.x + ahead.offset(t.x_stride);
      const char* d_out = job.d_out + ahead.offset(job.d_out_stride);
      const int heads = ahead.heads();
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        const int bytes = i < heads ? 16 : 0;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
          for (int k = 0; k < kWords; ++k) {
            const int from = column[c] * T::kBytes + k * 16;
            copy_ahead<kWords == 2>(load_stage + piece(i, 0, c, k), x + from, bytes);
            copy_ahead<kWords == 2>(load_stage + piece(i, 1, c, k), d_out + from, bytes);
          }
        }
        x += t.x_stride[1];
        d_out += job.d_out_stride[1];
      }
      ahead.advance();
      ++loaded;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    load_stage =
        load_stage == first + (kStages - 1) * kStageBytes ? first : load_stage + kStageBytes;
  };
  Task<T, kSplit> task(job, slot, has_unit, begin);
  // Rotations of a task's tile, on their way with the next commit.
  const uint32_t turns = first + kStages * kStageBytes;
  const auto start_turns = [&](const Task<T, kSplit>& of) {
    if (!place.rotates || of.b >= t.shape[0] || !of.active()) return;
    const char* from = job.table.freqs + rope_offset(job.table.stride, of.b, 0, of.position()) +
                       unit * (16 * Unit::kPairs);
#pragma unroll
    for (int k = 0; k < Unit::kPairs; ++k) {
      copy_ahead<true>(turns + k * (kThreads * 16), from + k * 16, 16);
    }
  };
  // Small loads first: behind the others they would wait for all of them.
  const auto weights_of = [&](int c) {
    return RawWeights(t.weight + column[c] * (job.weight_dtype == DType::kF32 ? 4 : 2),
                      job.weight_dtype);
  };
  const RawWeights weights[2] = {weights_of(0), weights_of(kChunks - 1)};
  if (job.turns_ahead) start_turns(task);
  for (int i = 0; i < kStages - 1; ++i) load_next();
  Columns<kSplit> columns{};
#pragma unroll
  for (int c = 0; c < kChunks; ++c) weights[c].to_f32(job.weight_dtype, columns.w[c]);
  uint32_t stage = first;
  float f[4 * Unit::kPairs] = {};
  for (unsigned number = begin; number < end; ++number, task.advance()) {
    load_next();
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
    const int heads = task.heads();
    const int64_t h0 = int64_t{task.group} * kHeads;
    const int64_t s = task.position();
    if (job.turns_ahead) {
      if (task.group == 0 || number == begin) {
        // Asked for with the last tile's, three commits ago, but near the beginning.
        if (number != begin && number - begin < kStages) {
          asm volatile("cp.async.wait_all;" ::: "memory");
        }
        if (heads > 0) {
#pragma unroll
          for (int k = 0; k < Unit::kPairs; ++k) {
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(f[4 * k]), "=f"(f[4 * k + 2]), "=f"(f[4 * k + 1]),
                           "=f"(f[4 * k + 3])
                         : "r"(turns + k * (kThreads * 16))
                         : "memory");
          }
        }
        Task<T, kSplit> next = task;
        next.next_tile();
        start_turns(next);
      }
    } else if ((task.group == 0 || number == begin) && heads > 0 && place.rotates &&
               job.table.shared_by_heads) {
      load_turns<Unit::kPairs>(job.table, task.b, 0, s, unit * Unit::kPairs, f);
    }
    char* d_x = t.out + task.offset(t.out_stride);
    const auto read = [&](int i, int which, int c, float(&v)[kUnit]) {
      uint4 raw[kWords];
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(raw[k].x), "=r"(raw[k].y), "=r"(raw[k].z), "=r"(raw[k].w)
                     : "r"(stage + piece(i, which, c, k))
                     : "memory");
      }
      if constexpr (kWords == 2)
        T::to_f32({raw[0], raw[1]}, v);
      else
        T::to_f32({raw[0]}, v);
    };
#pragma unroll
    for (int h = 0; h < kHeads; h += kAtOnce<T, kSplit>) {
      Unit g[kAtOnce<T, kSplit>];
      Unit n[kAtOnce<T, kSplit>];
#pragma unroll
      for (int i = 0; i < kAtOnce<T, kSplit>; ++i) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          read(h + i, 1, c, g[i].v[c]);
          read(h + i, 0, c, n[i].v[c]);
        }
        if (!job.table.shared_by_heads && place.rotates && h + i < heads) {
          load_turns<Unit::kPairs>(job.table, task.b, h0 + h + i, s, unit * Unit::kPairs, f);
          g[i].rotate(f);
        }
      }
      some_heads<kSplit>(job, place, f, g, n, columns);
#pragma unroll
      for (int i = 0; i < kAtOnce<T, kSplit>; ++i) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          if (h + i < heads) store_unit<T>(d_x + column[c] * T::kBytes, g[i].v[c]);
        }
        d_x += t.out_stride[1];
      }
    }
    stage = stage == first + (kStages - 1) * kStageBytes ? first : stage + kStageBytes;
  }
  start_next_kernel();
  __syncthreads();  // the sums take the stages' memory
  add_slots<kSplit>(job, place, slot, has_unit, columns);
}

struct RowSums {
  const float* sums;
  int rows, d;
  AnyTensor d_weight;
};

// 32 columns a thread block, 32 threads a column. Begins while the kernel before it ends.
__global__ void __launch_bounds__(1024) add_rows(const __grid_constant__ RowSums p) {
  __shared__ float parts[32][33];
  constexpr int kAtOnce = 9;  // of kBlocks rows, all
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const int d = p.d;
  const int column = blockIdx.x * 32 + lane;
  wait_previous_kernel();
  float sum = 0;
  for (int row = part; column < d && row < p.rows; row += 32 * kAtOnce) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int one = row + 32 * i;
      v[i] = one < p.rows ? p.sums[int64_t{one} * d + column] : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum += v[i];
  }
  parts[part][lane] = sum;
  __syncthreads();
  if (part != 0 || column >= d) return;
  float all = 0;
  for (int i = 0; i < 32; ++i) all += parts[i][lane];
  p.d_weight.store(p.d_weight.data + column * p.d_weight.strides[0], all);
}

// ---- any strides ----

struct AnyJob {
  AnyTensor d_out, x, weight, d_x;
  RopeTable table;
  float eps;
  float* sums;
  int64_t heads;

  // Elements of a place of a head, rotated back.
  __device__ float2 back(const HeadPlace& head, const PairPlace& at, int64_t i) const {
    const char* from = head.in(d_out);
    const float g0 = d_out.load(from + at.first * d_out.strides[3]);
    if (at.second < 0) return make_float2(g0, 0);
    const float g1 = d_out.load(from + at.second * d_out.strides[3]);
    float f[4];
    load_turn(table, head.b, head.h, head.s, i, f);
    return make_float2(rope_sum(f[0], g0, f[1], g1), rope_sum(f[2], g0, f[3], g1));
  }
  __device__ float weight_at(int64_t i) const {
    return weight.load(weight.data + i * weight.strides[0]);
  }
};

__global__ void __launch_bounds__(kRopeAnyThreads) any_d_x(AnyJob job) {
  const int64_t d = job.x.shape[3];
  const HeadPlace head(job.x, blockIdx.x);
  const char* x = head.in(job.x);
  char* d_x = head.in(job.d_x);
  const float r = any_root(job.x, x, job.eps);
  const auto normal = [&](int64_t i) { return job.x.load(x + i * job.x.strides[3]) * r; };
  float dot = 0;
  for (int64_t i = threadIdx.x; i < rope_places(job.table, d); i += kRopeAnyThreads) {
    const PairPlace at(job.table, i);
    const float2 u = job.back(head, at, i);
    dot += u.x * job.weight_at(at.first) * normal(at.first);
    if (at.second >= 0) dot += u.y * job.weight_at(at.second) * normal(at.second);
  }
  const float mean = any_sum(dot) / static_cast<float>(d);
  const auto store = [&](int64_t i, float u) {
    job.d_x.store(d_x + i * job.d_x.strides[3],
                  r * __fmaf_rn(-mean, normal(i), u * job.weight_at(i)));
  };
  for (int64_t i = threadIdx.x; i < rope_places(job.table, d); i += kRopeAnyThreads) {
    const PairPlace at(job.table, i);
    const float2 u = job.back(head, at, i);
    store(at.first, u.x);
    if (at.second >= 0) store(at.second, u.y);
  }
}

// A thread block a piece of the heads; its row of sums must be zeros. Threads own columns.
__global__ void __launch_bounds__(kRopeAnyThreads) any_d_weight(AnyJob job) {
  const int64_t d = job.x.shape[3];
  float* sums = job.sums + blockIdx.x * d;
  const int64_t begin = job.heads * blockIdx.x / gridDim.x;
  const int64_t end = job.heads * (blockIdx.x + 1) / gridDim.x;
  for (int64_t row = begin; row < end; ++row) {
    const HeadPlace head(job.x, row);
    const char* x = head.in(job.x);
    const float r = any_root(job.x, x, job.eps);
    const auto normal = [&](int64_t i) { return job.x.load(x + i * job.x.strides[3]) * r; };
    for (int64_t i = threadIdx.x; i < rope_places(job.table, d); i += kRopeAnyThreads) {
      const PairPlace at(job.table, i);
      const float2 u = job.back(head, at, i);
      sums[at.first] += u.x * normal(at.first);
      if (at.second >= 0) sums[at.second] += u.y * normal(at.second);
    }
  }
}

// ---- host ----

struct Operands {
  const TensorView& d_out;
  const TensorView& x;
  const TensorView& weight;
  const TensorView& d_x;
};

Rotations rotations_back(const Call& call) {
  Rotations r = rotations_of<spec>(call);
  r.inverse = true;
  return r;
}

template <class T, bool kSplit>
Status start(const Call& call, Job& job, int64_t& rows) {
  constexpr int kTurns = kThreads * 64;
  constexpr int kMemory = kStages * kThreads * 128 + (kSplit ? 0 : kTurns);
  static_assert(kHeadGroup<T, kSplit> * 2 * (kSplit ? 2 : 1) * kUnit * T::kBytes == 128);
  const auto kernel = backward_units<T, kSplit>;
  const auto& shape = job.operand.shape;
  const int64_t groups = ceil_div(shape[1], kHeadGroup<T, kSplit>);
  const int64_t tiles = ceil_div(shape[2], job.positions), tasks = shape[0] * groups * tiles;
  rows = std::min<int64_t>(tasks, kBlocks);
  if (tasks > INT_MAX) return unsupported("rms_rope_backward: more than 2^31 tasks");
  if (tasks > 0) {
    job.each = static_cast<unsigned>(tasks / rows);
    job.more = static_cast<unsigned>(tasks % rows);
  }
  job.groups = static_cast<unsigned>(groups);
  job.tiles = static_cast<unsigned>(tiles);
  // What is asked for with a tile is there three tasks later.
  job.turns_ahead = !kSplit && !job.table.has_sin && job.table.bytes == 4 && job.table.inverse &&
                    job.table.shared_by_heads && groups >= kStages;
  // Shared memory beyond 48 KB must be asked for, once a kernel and device.
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device_index(call) & 63);
  if ((done.load(std::memory_order_relaxed) & bit) == 0) {
    PESTLE_ON_DEVICE(device_index(call));
    PESTLE_CUDA_TRY(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory));
    done.fetch_or(bit, std::memory_order_relaxed);
  }
  return launch(call, "rms_rope_backward", {rows, kThreads, kMemory}, kernel, job);
}
template <class T>
Status start(const Call& call, Job& job, int64_t& rows) {
  return job.table.split ? start<T, true>(call, job, rows) : start<T, false>(call, job, rows);
}

// Writes d_x and one row of sums for each thread block; counts them.
Status run_units(const Call& call, const Operands& o, float* sums, int64_t& rows) {
  RopeJob shape{};
  rope_shape(shape, rotations_back(call), o.x.shape[3], true);
  Job job{};
  job.operand = rope_operand(o.x, o.d_x, &o.weight);
  job.d_out = o.d_out.as<char>();
  for (int d = 0; d < 3; ++d) job.d_out_stride[d] = o.d_out.strides[d] * dtype_bytes(o.x.dtype);
  job.table = shape.table;
  job.weight_dtype = o.weight.dtype;
  job.units = shape.units;
  job.rot_units = shape.rot_units;
  job.lanes = shape.lanes;
  job.d = static_cast<int>(o.x.shape[3]);
  job.one_by_d = shape.one_by_d;
  job.positions = kThreads / job.lanes;
  job.eps = call.number(kEps);
  job.sums = sums;
  switch (o.x.dtype) {
    case DType::kBF16: return start<Bf16>(call, job, rows);
    case DType::kF16: return start<F16>(call, job, rows);
    default: return start<F32>(call, job, rows);
  }
}

Status run_any_heads(const Call& call, const Operands& o, float* sums, int64_t& rows) {
  const int64_t heads = numel(o.x) == 0 ? 0 : row_count(o.x);
  const AnyJob job{AnyTensor(o.d_out),
                   AnyTensor(o.x),
                   AnyTensor(o.weight),
                   AnyTensor(o.d_x),
                   rope_table(rotations_back(call)),
                   call.number(kEps),
                   sums,
                   heads};
  rows = std::min<int64_t>(heads, kMostBlocks);
  PESTLE_TRY(clear(call, sums, rows * o.x.shape[3] * 4));
  PESTLE_TRY(launch(call, "rms_rope_backward_any", {heads, kRopeAnyThreads}, any_d_x, job));
  return launch(call, "rms_rope_backward_any", {rows, kRopeAnyThreads}, any_d_weight, job);
}

using RunOne = Status (*)(const Call&, const Operands&, float*, int64_t&);

Status add_up(const Call& call, const float* sums, int64_t rows, const TensorView& d_weight) {
  const int64_t d = d_weight.shape[0];
  const RowSums job{sums, static_cast<int>(rows), static_cast<int>(d), AnyTensor(d_weight)};
  return launch_early(call, "rms_rope_backward", {ceil_div(d, 32), 1024}, add_rows, job);
}

Status run_both(const Call& call, RunOne run_one) {
  auto* sums = static_cast<float*>(call.workspace);
  const bool own = call.has(kWeight2);
  int64_t rows = 0;
  PESTLE_TRY(run_one(call,
                     {call.tensor(kDOut), call.tensor(kX), call.tensor(kWeight), call.tensor(kDX)},
                     sums, rows));
  if (own) PESTLE_TRY(add_up(call, sums, rows, call.tensor(kDWeight)));
  int64_t more = 0;
  // Of one weight all rows lie together; of two, those of the first are still being read.
  float* sums2 = sums + rows * call.tensor(kWeight).shape[0];
  if (call.has(kX2)) {
    PESTLE_TRY(run_one(call,
                       {call.tensor(kDOut2), call.tensor(kX2),
                        call.tensor(own ? kWeight2 : kWeight), call.tensor(kDX2)},
                       sums2, more));
  }
  if (own) return add_up(call, sums2, more, call.tensor(kDWeight2));
  return add_up(call, sums, rows + more, call.tensor(kDWeight));
}

Status run(const Call& call) { return run_both(call, run_units); }
Status run_any(const Call& call) { return run_both(call, run_any_heads); }

std::string refuses(const Call& call, const Machine&) {
  const TensorView& x = call.tensor(kX);
  if (std::string why = refuse_rope(rotations_back(call), x.shape[3], 32); !why.empty()) {
    return why;
  }
  for (int index : {kDOut, kX, kDX, kDOut2, kX2, kDX2, kWeight, kWeight2}) {
    if (!call.has(index)) continue;
    std::string why = refuse_rope_strides(call.spec->args[static_cast<size_t>(index)].name,
                                          call.tensor(index), 1);
    if (!why.empty()) return why;
  }
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cuda/rms_rope_backward",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run,
     .workspace = kWorkspace},
    {.id = "cuda/rms_rope_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = kWorkspace},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::rms_rope_backward
