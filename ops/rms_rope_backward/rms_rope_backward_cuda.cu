// rms_rope_backward on CUDA.
// Map      fast  the units of ops/common/rope.cuh: a thread takes one unit of one position in
//                kHeadGroup heads at a time and keeps d_weight of its columns in registers; thread
//                blocks, a fixed number, go through tiles of positions and groups of heads, and
//                leave one row of d_weight each in the workspace; a last kernel adds the rows up.
//          any   a thread block a head for d_x, then one a piece of the heads for d_weight.
// Traffic  d_out, x and d_x once; rotations once for a thread block's heads.
// Numerics f32; d_weight as sums of sums, in an order that depends on the shape alone.
// Measured [1,24,4608,128], [1,12,32760,128] bf16 on an H200: 47.1, 120.0 us; 54, 72 % of the copy.
#include "ops/common/rope.cuh"
#include "ops/rms_rope_backward/rms_rope_backward_spec.h"

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

constexpr int kHeadGroup = 4;      // heads of a task, in flight in a thread, two tensors each
constexpr int kAtOnce = 2;         // of them worked on side by side
constexpr int kThreads = 256;      // and a unit of 8 columns in each of them: 8 or 16 KiB of sums
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
  int64_t tasks;
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
template <bool kSplit>
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
  extern __shared__ float rows[];
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

template <class T, bool kSplit>
__global__ void __launch_bounds__(kThreads, kSplit || T::kBytes == 4 ? 1 : 2)
    backward_units(Job job) {
  using Unit = RopeUnit<kSplit>;
  constexpr int kChunks = Unit::kChunks;
  const RopeOperand& t = job.operand;
  const int unit = threadIdx.x % job.lanes;
  const int slot = threadIdx.x / job.lanes;
  const bool has_unit = unit < job.units;
  const RopePlace place = rope_place<kSplit>(has_unit ? unit : 0, job.rot_units, job.table.rot);
  const int column[2] = {place.first, place.second};
  Columns<kSplit> columns{};
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    load_values(t.weight + column[c] * (job.weight_dtype == DType::kF32 ? 4 : 2), job.weight_dtype,
                columns.w[c]);
  }
  const auto groups = static_cast<unsigned>((t.shape[1] + kHeadGroup - 1) / kHeadGroup);
  const auto tiles = static_cast<unsigned>((t.shape[2] + job.positions - 1) / job.positions);
  for (int64_t task = blockIdx.x; task < job.tasks; task += gridDim.x) {
    const int64_t h0 = task % groups * kHeadGroup;
    const int64_t s = task / groups % tiles * job.positions + slot;
    const int64_t b = task / groups / tiles;
    const bool active = has_unit && slot < job.positions && s < t.shape[2];
    const int count = static_cast<int>(min(t.shape[1] - h0, int64_t{kHeadGroup}));
    const char* x = t.x + rope_offset(t.x_stride, b, h0, s);
    const char* d_out = job.d_out + rope_offset(job.d_out_stride, b, h0, s);
    char* d_x = t.out + rope_offset(t.out_stride, b, h0, s);
    float f[4 * Unit::kPairs] = {};
    if (active && place.rotates && job.table.shared_by_heads) {
      load_turns<Unit::kPairs>(job.table, b, 0, s, unit * Unit::kPairs, f);
    }
    typename T::Raw raw_x[kHeadGroup][kChunks];
    typename T::Raw raw_g[kHeadGroup][kChunks];
#pragma unroll
    for (int i = 0; i < kHeadGroup; ++i) {
      const bool there = active && i < count;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        raw_x[i][c] = there ? T::load(x + column[c] * T::kBytes) : T::zero();
        raw_g[i][c] = there ? T::load(d_out + column[c] * T::kBytes) : T::zero();
      }
      x += t.x_stride[1];
      d_out += job.d_out_stride[1];
    }
#pragma unroll
    for (int h = 0; h < kHeadGroup; h += kAtOnce) {
      Unit g[kAtOnce];
      Unit n[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          T::to_f32(raw_g[h + i][c], g[i].v[c]);
          T::to_f32(raw_x[h + i][c], n[i].v[c]);
        }
        if (!job.table.shared_by_heads && active && place.rotates && h + i < count) {
          load_turns<Unit::kPairs>(job.table, b, h0 + h + i, s, unit * Unit::kPairs, f);
          g[i].rotate(f);
        }
      }
      some_heads<kSplit>(job, place, f, g, n, columns);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          if (active && h + i < count) T::store(d_x + column[c] * T::kBytes, g[i].v[c]);
        }
        d_x += t.out_stride[1];
      }
    }
  }
  add_slots<kSplit>(job, place, slot, has_unit, columns);
}

// 32 columns a thread block, 32 threads a column.
__global__ void __launch_bounds__(1024)
    add_rows(const float* sums, int64_t rows, int d, AnyTensor d_weight) {
  __shared__ float parts[32][33];
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const int column = blockIdx.x * 32 + lane;
  float sum = 0;
  if (column < d) {
    for (int64_t row = part; row < rows; row += 32) sum += sums[row * d + column];
  }
  parts[part][lane] = sum;
  __syncthreads();
  if (part != 0 || column >= d) return;
  float all = 0;
  for (int i = 0; i < 32; ++i) all += parts[i][lane];
  d_weight.store(d_weight.data + column * d_weight.strides[0], all);
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

template <class T>
Status start(const Call& call, const Job& job, int64_t blocks) {
  const Grid grid{blocks, kThreads, static_cast<size_t>(job.positions) * job.d * sizeof(float)};
  if (job.table.split) return launch(call, "rms_rope_backward", grid, backward_units<T, true>, job);
  return launch(call, "rms_rope_backward", grid, backward_units<T, false>, job);
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
  job.tasks =
      o.x.shape[0] * ceil_div(o.x.shape[1], kHeadGroup) * ceil_div(o.x.shape[2], job.positions);
  rows = std::min<int64_t>(job.tasks, kMostBlocks);
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
  return launch(call, "rms_rope_backward", {ceil_div(d, 32), 1024}, add_rows, sums, rows,
                static_cast<int>(d), AnyTensor(d_weight));
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
