// Gradients of rms_norm, layer_norm, adaln and rms_adaln on CUDA.
// Map      runs: a team of threads (row_team.cuh) goes through a run of rows, one row at a time in
//          registers, the next one's loads in flight, and keeps its columns' sums over rows in
//          registers; a second kernel adds up the runs' sums in a fixed order. any: a block a row
//          for d_x, then a block 32 columns of all rows (of a group) for the sums.
// Traffic  x and d_out (and residuals) once, d_x once; 4 bytes of sums a column, array and run.
// Numerics f32; statistics from x again, in the forward's order. docs: norm_backward.h
// Measured H200: rms 32768 x 4096: bf16 2.79 TB/s (71 % of the copy), f32 3.75 (95 %); bf16 2048 x
//          65536 1.07 (27 %); with bias, scale or gate 15-46 %. norm_rows.md
#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/device/row_team.cuh"
#include "backends/cuda/device/tiles.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tensor_amax.h"
#include "ops/common/norm_backward.h"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;

enum Array { kWeightSum, kBiasSum, kGateSum, kScaleSum, kArrays };  // d_shift shares kBiasSum

struct Side {
  char* data = nullptr;
  int64_t row_bytes = 0;
  DType dtype = DType::kNone;

  Side() = default;
  explicit Side(const TensorView& t) {
    if (t.data == nullptr) return;
    data = t.as<char>();
    row_bytes = t.rank == 1 ? 0 : row_distance(t);
    dtype = t.dtype;
  }
  __device__ char* row(int64_t r) const { return data + r * row_bytes; }
};

struct GradientJob {
  TeamShape shape;
  RowRuns runs;
  FastDivisor rows_of_group;
  Side x, d_out, residual, d_residual_out, d_x, d_residual;
  Side gate, weight, scale;       // of any dtype
  Side d_gate, d_scale, d_shift;  // written by runs that hold whole groups
  float* sums;                    // of runs: kArrays rows of K floats each
  int64_t columns;
  float eps, count;
  bool subtract_mean;
};

// A unit of a tensor whose dtype only the launch knows.
__device__ inline void load_unit(const Side& t, const char* row, int unit, float (&v)[kUnit]) {
  if (t.dtype == DType::kF32) {
    F32::to_f32(F32::load(row + unit * 32), v);
  } else if (t.dtype == DType::kBF16) {
    Bf16::to_f32(Bf16::load(row + unit * 16), v);
  } else {
    F16::to_f32(F16::load(row + unit * 16), v);
  }
}
__device__ inline void store_unit(const Side& t, char* row, int unit, const float (&v)[kUnit]) {
  if (t.dtype == DType::kF32) {
    F32::store(row + unit * 32, v);
  } else if (t.dtype == DType::kBF16) {
    Bf16::store(row + unit * 16, v);
  } else {
    F16::store(row + unit * 16, v);
  }
}

// kSums: arrays that are kept: weight; and bias; and (4) gate, scale, with residuals.
template <class T, int kUnits, int kSums>
struct Gradients {
  static constexpr bool kGeneral = kSums == 4;
  using Raw = typename T::Raw;

  const GradientJob& p;
  const Team& team;
  int64_t row = 0;
  int64_t group = 0;
  float sums[kSums][kUnits][kUnit] = {};
  Raw x[kUnits], g[kUnits];

  __device__ Gradients(const GradientJob& job, const Team& t) : p(job), team(t) {}

  __device__ int offset(int i) const { return team.near_unit(i) * (kUnit * T::kBytes); }
  __device__ void load(int64_t r, Raw (&to_x)[kUnits], Raw (&to_g)[kUnits]) const {
    const char* x_row = p.x.row(r);
    const char* g_row = p.d_out.row(r);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      to_x[i] = T::load(x_row + offset(i));
      to_g[i] = T::load(g_row + offset(i));
    }
  }
  __device__ void sum_at(int i, float (&s)[kUnit]) const {
    T::to_f32(x[i], s);
    if constexpr (kGeneral) {
      float w[kUnit];
      if (p.gate.data != nullptr) {
        load_unit(p.gate, p.gate.row(group), team.near_unit(i), w);
        for (int j = 0; j < kUnit; ++j) s[j] *= w[j];
      }
      if (p.residual.data != nullptr) {
        T::to_f32(T::load(p.residual.row(row) + offset(i)), w);
        for (int j = 0; j < kUnit; ++j) s[j] += w[j];
      }
    }
  }
  // d_out * (1 + scale), and that times weight; `w` is weight.
  __device__ void gradients_at(int i, float (&g1)[kUnit], float (&g2)[kUnit],
                               float (&w)[kUnit]) const {
    T::to_f32(g[i], g1);
    if constexpr (kGeneral) {
      if (p.scale.data != nullptr) {
        load_unit(p.scale, p.scale.row(group), team.near_unit(i), w);
        for (int j = 0; j < kUnit; ++j) g1[j] *= 1.0f + w[j];
      }
    }
    if (p.weight.data != nullptr) {
      load_unit(p.weight, p.weight.data, team.near_unit(i), w);
      for (int j = 0; j < kUnit; ++j) g2[j] = g1[j] * w[j];
    } else {
      for (int j = 0; j < kUnit; ++j) {
        w[j] = 1;
        g2[j] = g1[j];
      }
    }
  }
  // add(s, g2) over the units that exist.
  template <class Add>
  __device__ void for_pairs(Add add) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float s[kUnit], g1[kUnit], g2[kUnit], w[kUnit];
      sum_at(i, s);
      gradients_at(i, g1, g2, w);
      if (!team.has(i)) continue;
      for (int j = 0; j < kUnit; ++j) add(s[j], g2[j]);
    }
  }

  // mean, rstd, mean(g2), mean(g2 * y).
  __device__ float4 statistics(TeamParts<8>& parts, int slot) const {
    float mean = 0, m1 = 0;
    if (p.subtract_mean) {
      float v[2] = {0, 0};
      for_pairs([&](float s, float g2) {
        v[0] += s;
        v[1] += g2;
      });
      team.sums(parts, slot, v);
      mean = v[0] / p.count;
      m1 = v[1] / p.count;
    }
    float v[2] = {0, 0};
    for_pairs([&](float s, float g2) {
      const float d = s - mean;
      v[0] = __fmaf_rn(d, d, v[0]);
      v[1] = __fmaf_rn(g2, d, v[1]);
    });
    team.sums(parts, slot + 2, v);
    const float rstd = __frsqrt_rn(v[0] / p.count + p.eps);
    return make_float4(mean, rstd, m1, v[1] * rstd / p.count);
  }

  __device__ void finish_row(const float4& of) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float y[kUnit], g1[kUnit], d[kUnit], w[kUnit];
      sum_at(i, y);
      gradients_at(i, g1, d, w);
      for (int j = 0; j < kUnit; ++j) {
        y[j] = (y[j] - of.x) * of.y;
        d[j] = of.y * (__fmaf_rn(-y[j], of.w, d[j]) - of.z);
        sums[kWeightSum][i][j] = __fmaf_rn(g1[j], y[j], sums[kWeightSum][i][j]);
      }
      if constexpr (kSums == 2) {
        for (int j = 0; j < kUnit; ++j) sums[kBiasSum][i][j] += g1[j];
      }
      if constexpr (kGeneral) add_general(i, y, g1, w, d);
      if (team.has(i)) T::store(p.d_x.row(row) + team.unit(i) * (kUnit * T::kBytes), d);
    }
  }
  // d: d_s without d_residual_out, becomes d_x.
  __device__ void add_general(int i, const float (&y)[kUnit], const float (&g1)[kUnit],
                              const float (&w)[kUnit], float (&d)[kUnit]) {
    float own[kUnit];
    if (p.scale.data != nullptr) {
      T::to_f32(g[i], own);
      for (int j = 0; j < kUnit; ++j) {
        sums[kScaleSum][i][j] = __fmaf_rn(own[j], y[j] * w[j], sums[kScaleSum][i][j]);
        sums[kBiasSum][i][j] += own[j];
      }
    } else {
      for (int j = 0; j < kUnit; ++j) sums[kBiasSum][i][j] += g1[j];
    }
    if (p.d_residual_out.data != nullptr) {
      T::to_f32(T::load(p.d_residual_out.row(row) + offset(i)), own);
      for (int j = 0; j < kUnit; ++j) d[j] += own[j];
    }
    if (p.d_residual.data != nullptr && team.has(i)) {
      T::store(p.d_residual.row(row) + team.unit(i) * (kUnit * T::kBytes), d);
    }
    if (p.gate.data == nullptr) return;
    T::to_f32(x[i], own);
    for (int j = 0; j < kUnit; ++j) {
      sums[kGateSum][i][j] = __fmaf_rn(d[j], own[j], sums[kGateSum][i][j]);
    }
    load_unit(p.gate, p.gate.row(group), team.near_unit(i), own);
    for (int j = 0; j < kUnit; ++j) d[j] *= own[j];
  }

  __device__ void end_group() {
    if constexpr (kGeneral) {
      flush(p.d_gate, kGateSum);
      flush(p.d_scale, kScaleSum);
      flush(p.d_shift, kBiasSum);
    }
  }
  __device__ void flush(const Side& to, int array) {
    if (to.data == nullptr) return;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      // `array` is a constant after inlining.
      if (team.has(i)) store_unit(to, to.row(group), team.unit(i), sums[array][i]);
      for (int j = 0; j < kUnit; ++j) sums[array][i][j] = 0;
    }
  }
  __device__ void end_run(int64_t run) const {
#pragma unroll
    for (int a = 0; a < kSums; ++a) {
      float* to = p.sums + (run * kArrays + a) * p.columns;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (!team.has(i)) continue;
        auto* at = reinterpret_cast<float4*>(to + team.unit(i) * kUnit);
        const auto& v = sums[a][i];
        at[0] = make_float4(v[0], v[1], v[2], v[3]);
        at[1] = make_float4(v[4], v[5], v[6], v[7]);
      }
    }
  }
};

template <class T, int kUnits, int kSums>
__global__ void __launch_bounds__(kTeamThreads, 1)
    runs_kernel(const __grid_constant__ GradientJob p) {
  __shared__ TeamParts<8> parts;
  const Team team(p.shape);
  Gradients<T, kUnits, kSums> own(p, team);
  const int64_t run = blockIdx.x / p.shape.cluster;
  const int64_t end = p.runs.end(run);
  const bool whole_groups = !p.runs.splits_groups();
  own.row = p.runs.begin(run);
  typename T::Raw next_x[kUnits], next_g[kUnits];
  own.load(own.row, next_x, next_g);
  team.begin_joins();
  for (int slot = 0; own.row < end; ++own.row, slot ^= 4) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      own.x[i] = next_x[i];
      own.g[i] = next_g[i];
    }
    if (own.row + 1 < end) own.load(own.row + 1, next_x, next_g);
    own.group = p.rows_of_group.divide(static_cast<uint32_t>(own.row));
    own.finish_row(own.statistics(parts, slot));
    const uint32_t next = p.rows_of_group.divide(static_cast<uint32_t>(own.row + 1));
    if (whole_groups && next != own.group) own.end_group();
  }
  own.end_run(run);
}

// One array's sums: of all runs, or of each group's.
struct SumJob {
  const float* from = nullptr;  // of run 0
  AnyTensor to;
  int64_t first_block = 0;
  int64_t groups = 1;
  int64_t runs = 0;      // of a group
  int64_t run_step = 0;  // floats from one run to the next
};
struct SumJobs {
  SumJob job[kArrays];
  int count = 0;
  int64_t columns = 0;
  int64_t blocks = 0;
};

constexpr int kSumColumns = 32;
constexpr int kSumLanes = 32;

__global__ void __launch_bounds__(kSumColumns* kSumLanes)
    sum_runs_kernel(const __grid_constant__ SumJobs jobs) {
  __shared__ float parts[kSumLanes][kSumColumns + 1];
  int which = 0;
  while (which + 1 < jobs.count && blockIdx.x >= jobs.job[which + 1].first_block) ++which;
  const SumJob& job = jobs.job[which];
  const int64_t tiles = (jobs.columns + kSumColumns - 1) / kSumColumns;
  const int64_t block = blockIdx.x - job.first_block;
  const int64_t group = block / tiles;
  const int column = threadIdx.x % kSumColumns;
  const int lane = threadIdx.x / kSumColumns;
  const int64_t j = block % tiles * kSumColumns + column;
  float sum = 0;
  if (j < jobs.columns) {
    const float* from = job.from + group * job.runs * job.run_step + j;
    for (int64_t run = lane; run < job.runs; run += kSumLanes) sum += from[run * job.run_step];
  }
  parts[lane][column] = sum;
  __syncthreads();
  if (lane != 0 || j >= jobs.columns) return;
  for (int i = 1; i < kSumLanes; ++i) sum += parts[i][column];
  job.to.store(job.to.at(group, j), sum);
}

// ---- any ----

struct AnyGradients {
  AnyTensor x, residual, gate, weight, scale, d_out, d_residual_out, d_x, d_residual;
  AnyTensor d_weight, d_bias, d_gate, d_scale, d_shift;
  float4* statistics;  // of rows
  int64_t rows, columns, rows_of_group;
  float eps;
  bool subtract_mean;

  __device__ static float at(const AnyTensor& t, int64_t row, int64_t j) {
    return t.load(t.at(row, j));
  }
  __device__ float s(int64_t row, int64_t j) const {
    float v = at(x, row, j);
    if (gate.data != nullptr) v *= at(gate, row / rows_of_group, j);
    if (residual.data != nullptr) v += at(residual, row, j);
    return v;
  }
  __device__ float g1(int64_t row, int64_t j) const {
    const float g = at(d_out, row, j);
    return scale.data == nullptr ? g : g * (1.0f + at(scale, row / rows_of_group, j));
  }
  __device__ float w(int64_t j) const { return weight.data == nullptr ? 1.0f : at(weight, 0, j); }
  __device__ float y(int64_t row, int64_t j, const float4& of) const {
    return (s(row, j) - of.x) * of.y;
  }
  __device__ float d_s(int64_t row, int64_t j, const float4& of) const {
    const float d = of.y * (__fmaf_rn(-y(row, j, of), of.w, g1(row, j) * w(j)) - of.z);
    return d_residual_out.data == nullptr ? d : d + at(d_residual_out, row, j);
  }
};

constexpr int kAnyRowThreads = 256;

__device__ float any_sum(float v) {
  __shared__ float warps[32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

__global__ void __launch_bounds__(kAnyRowThreads)
    any_rows_kernel(const __grid_constant__ AnyGradients p) {
  const int64_t row = blockIdx.x;
  const auto count = static_cast<float>(p.columns);
  float4 of = make_float4(0, 0, 0, 0);
  const auto sum = [&](auto term) {
    float own = 0;
    for (int64_t j = threadIdx.x; j < p.columns; j += kAnyRowThreads) own += term(j);
    return any_sum(own);
  };
  if (p.subtract_mean) {
    of.x = sum([&](int64_t j) { return p.s(row, j); }) / count;
    of.z = sum([&](int64_t j) { return p.g1(row, j) * p.w(j); }) / count;
  }
  const float squares = sum([&](int64_t j) {
    const float d = p.s(row, j) - of.x;
    return d * d;
  });
  of.y = __frsqrt_rn(squares / count + p.eps);
  of.w = sum([&](int64_t j) { return p.g1(row, j) * p.w(j) * p.y(row, j, of); }) / count;
  if (threadIdx.x == 0) p.statistics[row] = of;
  for (int64_t j = threadIdx.x; j < p.columns; j += kAnyRowThreads) {
    float d = p.d_s(row, j, of);
    if (p.d_residual.data != nullptr) p.d_residual.store(p.d_residual.at(row, j), d);
    if (p.gate.data != nullptr) d *= AnyGradients::at(p.gate, row / p.rows_of_group, j);
    p.d_x.store(p.d_x.at(row, j), d);
  }
}

// Blocks of 32 columns: `groups` of them above one another, rows of a group shared by 8 lanes.
__global__ void __launch_bounds__(256)
    any_sums_kernel(const __grid_constant__ AnyGradients p, bool of_groups) {
  constexpr int kLanes = 8;
  __shared__ float parts[kLanes][32][3];
  const int64_t tiles = (p.columns + 31) / 32;
  const int64_t group = blockIdx.x / tiles;
  const int column = threadIdx.x % 32;
  const int lane = threadIdx.x / 32;
  const int64_t j = blockIdx.x % tiles * 32 + column;
  const int64_t rows = of_groups ? p.rows_of_group : p.rows;
  float sums[3] = {0, 0, 0};
  for (int64_t i = lane; i < rows && j < p.columns; i += kLanes) {
    const int64_t row = group * rows + i;
    const float4 of = p.statistics[row];
    const float y = p.y(row, j, of);
    if (of_groups) {
      const float g = AnyGradients::at(p.d_out, row, j);
      sums[0] = __fmaf_rn(g, y * p.w(j), sums[0]);
      sums[1] += g;
      sums[2] = __fmaf_rn(p.d_s(row, j, of), AnyGradients::at(p.x, row, j), sums[2]);
    } else {
      const float g = p.g1(row, j);
      sums[0] = __fmaf_rn(g, y, sums[0]);
      sums[1] += g;
    }
  }
  for (int n = 0; n < 3; ++n) parts[lane][column][n] = sums[n];
  __syncthreads();
  if (lane != 0 || j >= p.columns) return;
  for (int i = 1; i < kLanes; ++i) {
    for (int n = 0; n < 3; ++n) sums[n] += parts[i][column][n];
  }
  const auto put = [&](const AnyTensor& t, float v) {
    if (t.data != nullptr) t.store(t.at(group, j), v);
  };
  put(of_groups ? p.d_scale : p.d_weight, sums[0]);
  put(of_groups ? p.d_shift : p.d_bias, sums[1]);
  if (of_groups) put(p.d_gate, sums[2]);
}

// ---- host ----

bool is_general(const NormBackward& b) {
  const NormRows& n = b.forward;
  return n.gate.data != nullptr || n.residual.data != nullptr || n.scale.data != nullptr;
}

// Units a thread holds: what registers have room for.
int units_of_thread(const NormBackward& b) {
  const bool sums = b.d_bias.data != nullptr || is_general(b);
  return b.forward.x.dtype == DType::kF32 || sums ? 2 : 4;
}

template <class T, int kUnits, int kSums>
Status start_runs(const Call& call, const char* name, const GradientJob& job) {
  const TeamShape& s = job.shape;
  return launch(call, name, {job.runs.runs * s.cluster, s.threads, 0, s.cluster},
                runs_kernel<T, kUnits, kSums>, job);
}

template <class T>
Status start_any_sums(const Call& call, const char* name, const NormBackward& b,
                      const GradientJob& job) {
  if (is_general(b)) return start_runs<T, 2, 4>(call, name, job);
  if (b.d_bias.data != nullptr) return start_runs<T, 2, 2>(call, name, job);
  if constexpr (T::kBytes == 4) return start_runs<T, 2, 1>(call, name, job);
  return start_runs < T, T::kBytes == 4 ? 2 : 4, 1 > (call, name, job);
}

Status add_up_runs(const Call& call, const char* name, const NormBackward& b,
                   const GradientJob& from) {
  SumJobs jobs;
  jobs.columns = from.columns;
  const int64_t tiles = ceil_div(from.columns, kSumColumns);
  const auto add = [&](const TensorView& to, Array array, bool of_groups) {
    if (to.data == nullptr || (of_groups && !from.runs.splits_groups())) return;
    SumJob& job = jobs.job[jobs.count++];
    job.from = from.sums + array * from.columns;
    job.to = AnyTensor(to);
    job.first_block = jobs.blocks;
    job.groups = of_groups ? from.runs.groups : 1;
    job.runs = of_groups ? from.runs.runs_of_group : from.runs.runs;
    job.run_step = kArrays * from.columns;
    jobs.blocks += tiles * job.groups;
  };
  add(b.d_weight, kWeightSum, false);
  add(b.d_bias, kBiasSum, false);
  add(b.d_gate, kGateSum, true);
  add(b.d_scale, kScaleSum, true);
  add(b.d_shift, kBiasSum, true);
  return launch(call, name, {jobs.blocks, kSumColumns * kSumLanes}, sum_runs_kernel, jobs);
}

}  // namespace

Status norm_backward_cuda(const Call& call, const char* name, const NormBackward& b) {
  const NormRows& n = b.forward;
  const int units = units_of_thread(b);
  const int64_t k = n.columns();
  GradientJob job;
  job.shape = TeamShape::looping(k / kUnit, kMostBlocksOfTeam, units);
  // One wave of teams on 132 multiprocessors; the same everywhere, since it orders the additions.
  const int64_t wave = std::max<int64_t>(8, std::min<int64_t>(2112, int64_t{2162688} / k));
  job.runs =
      RowRuns::over(n.rows(), b.groups(), units == 4 ? wave : std::max<int64_t>(8, wave / 2), 8);
  job.rows_of_group = FastDivisor(static_cast<uint32_t>(job.runs.group_rows));
  job.x = Side(n.x);
  job.d_out = Side(b.d_out);
  job.residual = Side(n.residual);
  job.d_residual_out = Side(b.d_residual_out);
  job.d_x = Side(b.d_x);
  job.d_residual = Side(b.d_residual);
  job.gate = Side(n.gate);
  job.weight = Side(n.weight);
  job.scale = Side(n.scale);
  job.d_gate = Side(b.d_gate);
  job.d_scale = Side(b.d_scale);
  job.d_shift = Side(b.d_shift);
  job.sums = static_cast<float*>(call.workspace);
  job.columns = k;
  job.eps = n.eps;
  job.count = static_cast<float>(k);
  job.subtract_mean = n.subtract_mean;
  switch (n.x.dtype) {
    case DType::kBF16: PESTLE_TRY(start_any_sums<Bf16>(call, name, b, job)); break;
    case DType::kF16: PESTLE_TRY(start_any_sums<F16>(call, name, b, job)); break;
    default: PESTLE_TRY(start_any_sums<F32>(call, name, b, job)); break;
  }
  return add_up_runs(call, name, b, job);
}

Status norm_backward_cuda_any(const Call& call, const char* name, const NormBackward& b) {
  const NormRows& n = b.forward;
  const int64_t groups = b.groups();
  const AnyGradients job{AnyTensor(n.x),
                         AnyTensor(n.residual),
                         AnyTensor(n.gate),
                         AnyTensor(n.weight),
                         AnyTensor(n.scale),
                         AnyTensor(b.d_out),
                         AnyTensor(b.d_residual_out),
                         AnyTensor(b.d_x),
                         AnyTensor(b.d_residual),
                         AnyTensor(b.d_weight),
                         AnyTensor(b.d_bias),
                         AnyTensor(b.d_gate),
                         AnyTensor(b.d_scale),
                         AnyTensor(b.d_shift),
                         static_cast<float4*>(call.workspace),
                         n.rows(),
                         n.columns(),
                         std::max<int64_t>(1, groups == 0 ? 1 : n.rows() / groups),
                         n.eps,
                         n.subtract_mean};
  PESTLE_TRY(launch(call, name, {n.rows(), kAnyRowThreads}, any_rows_kernel, job));
  const int64_t tiles = ceil_div(n.columns(), 32);
  if (b.d_weight.data != nullptr || b.d_bias.data != nullptr) {
    PESTLE_TRY(launch(call, name, {tiles, 256}, any_sums_kernel, job, false));
  }
  if (b.d_gate.data == nullptr && b.d_scale.data == nullptr) return {};
  AnyGradients of_groups = job;
  of_groups.rows_of_group = groups == 0 ? 1 : n.rows() / groups;
  if (n.rows() == 0) of_groups.rows_of_group = 0;
  return launch(call, name, {tiles * groups, 256}, any_sums_kernel, of_groups, true);
}

std::string refuse_norm_backward_cuda(const NormBackward& b, const Machine& machine) {
  const NormRows& n = b.forward;
  if (n.rows() == 0 || n.columns() == 0) return "the tensor is empty";
  if (n.columns() % kUnit != 0) return "K is no multiple of 8";
  if (n.rows() >= int64_t{1} << 31) return "2^31 rows or more";
  const bool clusters = machine.compute_capability >= 90;
  const int64_t longest =
      int64_t{units_of_thread(b)} * kTeamThreads * kUnit * (clusters ? kMostBlocksOfTeam : 1);
  if (n.columns() > longest) return "rows of more than " + std::to_string(longest) + " elements";
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", n.x},
             {"residual", n.residual},
             {"gate", n.gate},
             {"weight", n.weight},
             {"scale", n.scale},
             {"d_out", b.d_out},
             {"d_residual_out", b.d_residual_out},
             {"d_x", b.d_x},
             {"d_residual", b.d_residual},
             {"d_gate", b.d_gate},
             {"d_scale", b.d_scale},
             {"d_shift", b.d_shift}};
  for (const auto& [name, tensor] : all) {
    if (tensor.data == nullptr) continue;
    if (std::string why = refuse_unaligned(name, tensor); !why.empty()) return why;
  }
  return {};
}

}  // namespace pestle::ops
