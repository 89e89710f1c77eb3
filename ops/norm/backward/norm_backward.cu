// Gradients of rms_norm, layer_norm, adaln and rms_adaln on CUDA.
// Map      rows: norm_backward_rows.cuh; a second kernel adds up the runs' sums in a fixed order.
//          rows that no cluster holds: norm_backward_cooperative.cuh; with a residual, a gate or
//          several groups norm_backward_long.cuh.
//          any: d_x of rows that begin anywhere by norm_backward_units.cuh, else a block a row; then
//          a block 32 columns of a run of rows (of a group) for the sums, and the sums of runs are
//          added up in order; small tensors: a cluster does both.
// Traffic  x and d_out (and residuals) once, d_x once; 4 bytes of sums a column, array and run.
// Numerics f32; statistics from x again. docs: norm_backward.h
// Measured H200, share of the copy: norm_backward.md
#include <atomic>

#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/row/block_sums.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "core/machine.h"
#include "ops/norm/backward/norm_backward_cooperative.cuh"
#include "ops/norm/backward/norm_backward_long.cuh"
#include "ops/norm/backward/norm_backward_rows.cuh"
#include "ops/norm/backward/norm_backward_sums.cuh"
#include "ops/norm/backward/norm_backward_units.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;
using namespace norm_gradients;

// ---- any ----

struct AnyGradients {
  AnyTensor x, residual, gate, weight, scale, d_out, d_residual_out, d_x, d_residual;
  AnyTensor d_weight, d_bias, d_gate, d_scale, d_shift;
  float4* statistics;  // of rows
  float* run_sums;     // of runs of rows, three arrays of columns each
  int64_t rows, columns, rows_of_group;
  float eps;
  bool subtract_mean;

  __device__ static float at(const AnyTensor& t, int64_t row, int64_t j) {
    return t.load(t.at(row, j));
  }
  __device__ float w(int64_t j) const { return weight.data == nullptr ? 1.0f : at(weight, 0, j); }
};

constexpr int kAnyRowThreads = 256;
constexpr int kAnyRowEach = 4;  // elements that a thread asks for at a time

// kN numbers of each operand: what is normalised (s), the gradient of what is normalised before
// the weight (g1), weights (w). Where they lie is the caller's: load(tensor, numbers).
template <int kN>
struct AnyTerms {
  float s[kN], g1[kN], w[kN];

  template <class Load>
  __device__ void load_s(const AnyGradients& p, Load&& load) {
    load(p.x, s);
    float other[kN];
    if (p.gate.data != nullptr) {
      load(p.gate, other);
      for (int i = 0; i < kN; ++i) s[i] *= other[i];
    }
    if (p.residual.data != nullptr) {
      load(p.residual, other);
      for (int i = 0; i < kN; ++i) s[i] += other[i];
    }
  }
  template <class Load>
  __device__ void load_g1(const AnyGradients& p, Load&& load) {
    load(p.d_out, g1);
    if (p.scale.data == nullptr) return;
    float other[kN];
    load(p.scale, other);
    for (int i = 0; i < kN; ++i) g1[i] *= 1.0f + other[i];
  }
  template <class Load>
  __device__ void load_w(const AnyGradients& p, Load&& load) {
    for (int i = 0; i < kN; ++i) w[i] = 1.0f;
    if (p.weight.data != nullptr) load(p.weight, w);
  }
  __device__ float y(int i, const float4& of) const { return (s[i] - of.x) * of.y; }
  // Without what residual_out's gradient adds.
  __device__ float d_s(int i, const float4& of) const {
    return of.y * (__fmaf_rn(-y(i, of), of.w, g1[i] * w[i]) - of.z);
  }
};

// d_x of a row, and its statistics. By all threads of a block.
__device__ void any_row(const AnyGradients& p, int64_t row) {
  constexpr int kN = kAnyRowEach;
  const auto count = static_cast<float>(p.columns);
  const int64_t group = AnyTensor::quotient(row, p.rows_of_group);
  float4 of = make_float4(0, 0, 0, 0);
  // body(first of the thread's elements, how many, load)
  const auto over_row = [&](auto&& body) {
    for (int64_t j = threadIdx.x; j < p.columns; j += kN * kAnyRowThreads) {
      const int64_t left = (p.columns - j + kAnyRowThreads - 1) / kAnyRowThreads;
      const int have = static_cast<int>(min(left, int64_t{kN}));
      body(j, have, [&](const AnyTensor& t, float(&v)[kN]) {
        const bool of_group = &t == &p.gate || &t == &p.scale;
        AnyRow(t, &t == &p.weight ? 0
                  : of_group      ? group
                                  : row)
            .load_each(j, kAnyRowThreads, have, v);
      });
    }
  };
  const auto sum = [&](auto&& term) {
    float own = 0;
    over_row([&](int64_t, int have, auto&& load) {
      AnyTerms<kN> t;
      term(t, load, [&](auto&& one) {
        for (int i = 0; i < kN; ++i) own += i < have ? one(i) : 0.0f;
      });
    });
    return block_sum<kAnyRowThreads>(own);
  };
  if (p.subtract_mean) {
    of.x = sum([&](auto& t, auto&& load, auto&& add) {
             t.load_s(p, load);
             add([&](int i) { return t.s[i]; });
           }) /
           count;
    of.z = sum([&](auto& t, auto&& load, auto&& add) {
             t.load_g1(p, load);
             t.load_w(p, load);
             add([&](int i) { return t.g1[i] * t.w[i]; });
           }) /
           count;
  }
  const float squares = sum([&](auto& t, auto&& load, auto&& add) {
    t.load_s(p, load);
    add([&](int i) { return (t.s[i] - of.x) * (t.s[i] - of.x); });
  });
  of.y = __frsqrt_rn(squares / count + p.eps);
  of.w = sum([&](auto& t, auto&& load, auto&& add) {
           t.load_s(p, load);
           t.load_g1(p, load);
           t.load_w(p, load);
           add([&](int i) { return t.g1[i] * t.w[i] * t.y(i, of); });
         }) /
         count;
  if (threadIdx.x == 0) p.statistics[row] = of;
  const AnyRow d_x(p.d_x, row), d_residual(p.d_residual, row);
  over_row([&](int64_t j, int have, auto&& load) {
    AnyTerms<kN> t;
    t.load_s(p, load);
    t.load_g1(p, load);
    t.load_w(p, load);
    float more[kN] = {}, gate[kN];
    if (p.d_residual_out.data != nullptr) load(p.d_residual_out, more);
    if (p.gate.data != nullptr) load(p.gate, gate);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (i >= have) continue;
      float d = t.d_s(i, of);
      if (p.d_residual_out.data != nullptr) d += more[i];
      const int64_t column = j + i * kAnyRowThreads;
      if (d_residual.present()) d_residual.store(column, d);
      if (p.gate.data != nullptr) d *= gate[i];
      d_x.store(column, d);
    }
  });
}

// Column j's sums, of all rows of a group.
__device__ void put_sums(const AnyGradients& p, bool of_groups, int64_t group, int64_t j,
                         const float (&sums)[3]) {
  const auto put = [&](const AnyTensor& t, float v) {
    if (t.data != nullptr) t.store(t.at(group, j), v);
  };
  put(of_groups ? p.d_scale : p.d_weight, sums[0]);
  put(of_groups ? p.d_shift : p.d_bias, sums[1]);
  if (of_groups) put(p.d_gate, sums[2]);
}

// 32 columns of one of the `runs` runs of a group's rows, which 8 lanes share. By all threads of a
// block.
__device__ void any_sums(const AnyGradients& p, bool of_groups, int64_t block, int runs) {
  constexpr int kLanes = 8;
  __shared__ float parts[kLanes][32][3];
  const int64_t tiles = (p.columns + 31) / 32;
  const int64_t run = block / tiles;
  const int64_t group = run / runs;
  const int column = threadIdx.x % 32;
  const int lane = threadIdx.x / 32;
  const int64_t j = block % tiles * 32 + column;
  const int64_t rows = of_groups ? p.rows_of_group : p.rows;
  const int64_t rows_of_run = (rows + runs - 1) / runs;
  const int64_t begin = run % runs * rows_of_run;
  const int64_t end = min(begin + rows_of_run, rows);
  float sums[3] = {0, 0, 0};
  constexpr int kN = 2 * kAnyRowEach;
  const float w = j < p.columns ? p.w(j) : 1.0f;
  for (int64_t i = begin + lane; i < end && j < p.columns; i += kN * kLanes) {
    const int64_t first = group * rows + i;
    const int have = static_cast<int>(min((end - i + kLanes - 1) / kLanes, int64_t{kN}));
    const auto load = [&](const AnyTensor& t, float(&v)[kN]) {
      const bool of_group = &t == &p.gate || &t == &p.scale;
      const char* at[kN];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const int64_t row = first + n * kLanes;
        const int64_t place = of_group ? AnyTensor::quotient(row, p.rows_of_group) : row;
        at[n] = n < have ? t.at(place, j) : t.data;
      }
      t.load_all(at, have, v);
    };
    float4 of[kN];
#pragma unroll
    for (int n = 0; n < kN; ++n) of[n] = n < have ? p.statistics[first + n * kLanes] : float4{};
    AnyTerms<kN> t;
    t.load_s(p, load);
    t.load_g1(p, load);
    if (!of_groups) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        sums[0] = n < have ? __fmaf_rn(t.g1[n], t.y(n, of[n]), sums[0]) : sums[0];
        sums[1] += t.g1[n];
      }
      continue;
    }
    float other[kN];
    load(p.d_out, other);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      t.w[n] = w;
      sums[0] = n < have ? __fmaf_rn(other[n], t.y(n, of[n]) * w, sums[0]) : sums[0];
      sums[1] += other[n];
    }
    if (p.d_gate.data == nullptr) continue;
    float more[kN] = {};
    load(p.x, other);
    if (p.d_residual_out.data != nullptr) load(p.d_residual_out, more);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float d = t.d_s(n, of[n]);
      if (p.d_residual_out.data != nullptr) d += more[n];
      sums[2] = n < have ? __fmaf_rn(d, other[n], sums[2]) : sums[2];
    }
  }
  __syncthreads();
  for (int n = 0; n < 3; ++n) parts[lane][column][n] = sums[n];
  __syncthreads();
  if (lane != 0 || j >= p.columns) return;
  for (int i = 1; i < kLanes; ++i) {
    for (int n = 0; n < 3; ++n) sums[n] += parts[i][column][n];
  }
  if (runs == 1) return put_sums(p, of_groups, group, j, sums);
  for (int n = 0; n < 3; ++n) p.run_sums[(run * 3 + n) * p.columns + j] = sums[n];
}

__global__ void __launch_bounds__(kAnyRowThreads)
    any_rows_kernel(const __grid_constant__ AnyGradients p) {
  wait_previous_kernel();
  any_row(p, blockIdx.x);
}
// Blocks of 32 columns, those of each run of each group above one another.
__global__ void __launch_bounds__(kAnyRowThreads)
    any_sums_kernel(const __grid_constant__ AnyGradients p, bool of_groups, int runs) {
  wait_previous_kernel();
  any_sums(p, of_groups, blockIdx.x, runs);
}
// A thread a column of a group.
__global__ void __launch_bounds__(kAnyRowThreads)
    any_runs_kernel(const __grid_constant__ AnyGradients p, bool of_groups, int64_t groups,
                    int runs) {
  wait_previous_kernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kAnyRowThreads + threadIdx.x;
  if (index >= groups * p.columns) return;
  const int64_t group = AnyTensor::quotient(index, p.columns);
  const int64_t j = index - group * p.columns;
  float sums[3] = {0, 0, 0};
  for (int64_t run = group * runs; run < (group + 1) * runs; ++run) {
    for (int n = 0; n < 3; ++n) sums[n] += p.run_sums[(run * 3 + n) * p.columns + j];
  }
  put_sums(p, of_groups, group, j, sums);
}
// All of it, by the one cluster that is the grid. sums, group_sums: blocks that these want.
__global__ void __launch_bounds__(kAnyRowThreads)
    any_small_kernel(const __grid_constant__ AnyGradients p, int sums, int group_sums) {
  wait_previous_kernel();
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) any_row(p, row);
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  for (int i = blockIdx.x; i < sums + group_sums; i += gridDim.x) {
    any_sums(p, i >= sums, i >= sums ? i - sums : i, 1);
  }
}

// ---- host ----

int kind_of(const NormBackward& b) {
  const NormRows& n = b.forward;
  if (n.gate.data != nullptr && n.residual.data != nullptr && b.d_residual.data != nullptr)
    return kGated;
  if (n.gate.data != nullptr || n.residual.data != nullptr) return kResiduals;
  return n.scale.data != nullptr || n.subtract_mean || b.d_bias.data != nullptr ? kSums : kProducts;
}

// Shared memory that a block may have.
int64_t block_bytes(int compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87: return int64_t{163} * 1024;
    case 90:
    case 100:
    case 103: return int64_t{227} * 1024;
    default: return int64_t{99} * 1024;
  }
}
// Beside what the kernel declares itself.
int64_t left_of_parts(int64_t memory) { return memory - static_cast<int64_t>(sizeof(Parts)) - 64; }

// What a kernel has of a row; no lanes: it does not fit.
template <class T, int kKind>
ThreadPlan plan_of(const NormBackward& b, const Machine& machine) {
  using Limit = Limits<T, kKind>;
  constexpr int kUnits = Limit::kUnits;
  // Two subgroups a block if small clusters allow it: one works while the other waits for its sums.
  constexpr int kMostOfTwo = kKind == kProducts ? 8 : 2;
  ThreadPlan plan;
  const int64_t memory = left_of_parts(block_bytes(machine.compute_capability));
  const int most_blocks = largest_cluster(machine.compute_capability);
  plan.units = static_cast<int>(b.forward.columns() / Limit::kWide);
  for (int subgroups = 2; subgroups > 0; --subgroups) {
    for (plan.cluster = 1; plan.cluster <= most_blocks; plan.cluster *= 2) {
      const int64_t lanes = ceil_div(ceil_div(plan.units, int64_t{plan.cluster} * kUnits), 32) * 32;
      const int64_t ring = memory - lanes * Limit::kSharedBytes;
      const int64_t most =
          std::min(Limit::kThreads / lanes, ring / (3 * lanes * Limit::kThreadBytes));
      if (most < subgroups || (subgroups > 1 && plan.cluster > kMostOfTwo)) continue;
      plan.lanes = static_cast<int>(lanes);
      plan.subgroups = static_cast<int>(most);
      plan.stages = static_cast<int>(
          std::min<int64_t>(kMostStages, ring / (int64_t{plan.threads()} * Limit::kThreadBytes)));
      plan.whole = plan.units == plan.cluster * plan.lanes * kUnits;
      return plan;
    }
  }
  plan.lanes = 0;
  return plan;
}

// How a call is run.
struct Choice {
  int kind;
  ThreadPlan plan;
};
template <class T>
Choice choice_of(const NormBackward& b, const Machine& machine) {
  switch (kind_of(b)) {
    case kProducts: return {kProducts, plan_of<T, kProducts>(b, machine)};
    case kResiduals: return {kResiduals, plan_of<T, kResiduals>(b, machine)};
    case kGated: return {kGated, plan_of<T, kGated>(b, machine)};
    default: break;
  }
  const Choice own{kSums, plan_of<T, kSums>(b, machine)};
  if (T::kBytes == 4 || own.plan.lanes == 0 || own.plan.threads() > 320) return own;
  // 10 warps or fewer: is there place for 14 or more?
  const Choice shared{kSharedSums, plan_of<T, kSharedSums>(b, machine)};
  const bool more = shared.plan.lanes > 0 && shared.plan.threads() >= 448;
  return more && shared.plan.cluster == 1 ? shared : own;
}
Choice choice_of(const NormBackward& b, const Machine& machine) {
  return b.forward.x.dtype == DType::kF32 ? choice_of<F32>(b, machine)
                                          : choice_of<Bf16>(b, machine);
}

// Shared memory beyond 48 KB must be asked for, once a kernel and device.
template <class T, int kKind>
Status start_runs(const Call& call, const char* name, const GradientJob& job, int64_t memory) {
  const ThreadPlan& plan = job.plan;
  const auto kernel = gradients_kernel<T, kKind>;
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device_index(call) & 63);
  if ((done.load(std::memory_order_relaxed) & bit) == 0) {
    PESTLE_ON_DEVICE(device_index(call));
    PESTLE_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(memory)));
    done.fetch_or(bit, std::memory_order_relaxed);
  }
  using Limit = Limits<T, kKind>;
  const auto bytes = static_cast<size_t>(plan.stages * plan.threads() * Limit::kThreadBytes +
                                         plan.lanes * Limit::kSharedBytes);
  return launch_early(
      call, name, {job.runs.runs * plan.cluster, plan.threads(), bytes, plan.cluster}, kernel, job);
}

template <class T>
Status start_kind(const Call& call, const char* name, int kind, const GradientJob& job,
                  int64_t memory) {
  switch (kind) {
    case kProducts: return start_runs<T, kProducts>(call, name, job, memory);
    case kResiduals: return start_runs<T, kResiduals>(call, name, job, memory);
    case kGated: return start_runs<T, kGated>(call, name, job, memory);
    default: break;
  }
  if constexpr (T::kBytes == 2) {
    if (kind == kSharedSums) return start_runs<T, kSharedSums>(call, name, job, memory);
  }
  return start_runs<T, kSums>(call, name, job, memory);
}

// ---- rows that no cluster holds ----

// Runs of rows, each with sums of its own: what the workspace has place for.
int64_t most_runs(int64_t columns) {
  return std::max<int64_t>(8, std::min<int64_t>(2112, 2162688 / std::max<int64_t>(columns, 1)));
}
template <class T>
Status start_long(const Call& call, const char* name, const GradientJob& job, int64_t rows) {
  auto* facts =
      reinterpret_cast<RowFacts*>(job.sums + kArrays * job.columns * most_runs(job.columns));
  PESTLE_TRY(launch(call, name, {rows, kFactsThreads}, facts_kernel<T>, job, facts));
  const int64_t units = job.columns / (16 / T::kBytes);
  const auto stripes = static_cast<int>(ceil_div(units, kColumnsThreads));
  return launch(call, name, {job.runs.runs * stripes, kColumnsThreads}, columns_kernel<T>, job,
                facts, stripes);
}

// ---- groups of CTAs ----

// Blocks that an H200 runs at once. No more anywhere, since groups order the sums.
constexpr int64_t kMostCooperativeBlocks = 264;

// Shares the rows among groups of CTAs, or leaves `job` alone: false.
template <class T, int kKind>
Result<bool> start_cooperative(const Call& call, const char* name, GradientJob& job, int64_t rows,
                               bool keeps_sums, int64_t memory) {
  using Own = CooperativeGradients<T, kKind, kCooperativeRows>;
  static BlocksAtOnce at_once;
  const auto kernel = cooperative_kernel<T, kKind, kCooperativeRows>;
  CooperativeJob t;
  t.stages = 3;
  t.warps = kCooperativeWarps;
  const size_t bytes = static_cast<size_t>(t.stages) * Own::kStageBytes;
  if (static_cast<int64_t>(bytes + sizeof(CooperativeShared)) > memory) return false;
  const auto most = at_once.of(device_index(call), reinterpret_cast<const void*>(kernel),
                               kCooperativeThreads, bytes);
  PESTLE_TRY(most.status());
  t.units = static_cast<int>(job.columns / Own::kWide);
  t.rows = static_cast<int>(rows);
  t.blocks = static_cast<int>(ceil_div(t.units, int64_t{kCooperativeThreads}));
  const int64_t blocks = std::min<int64_t>(most.value(), kMostCooperativeBlocks);
  t.cta_groups =
      static_cast<int>(std::min(ceil_div(rows, int64_t{kCooperativeRows}), blocks / t.blocks));
  if (t.cta_groups < 2) return false;
  job.runs = RowRuns();
  job.runs.groups = 1;
  job.runs.group_rows = rows;
  job.runs.runs = job.runs.runs_of_group = t.cta_groups;
  t.job = job;
  t.keeps_sums = keeps_sums;
  t.words = reinterpret_cast<uint64_t*>(job.sums + kArrays * job.columns * most_runs(job.columns));
  PESTLE_TRY(clear(call, t.words, rows * t.blocks * Own::kWords * 8));
  const Grid grid{int64_t{t.blocks} * t.cta_groups, kCooperativeThreads, bytes, 1};
  PESTLE_TRY(launch_together(call, name, grid, kernel, t));
  return true;
}
template <class T>
Result<bool> start_cooperative(const Call& call, const char* name, const NormBackward& b,
                               GradientJob& job, int64_t memory) {
  const int64_t rows = b.forward.rows();
  const bool keeps_sums = b.d_bias.data != nullptr || b.d_shift.data != nullptr;
  return kind_of(b) == kProducts
             ? start_cooperative<T, kProducts>(call, name, job, rows, keeps_sums, memory)
             : start_cooperative<T, kSums>(call, name, job, rows, keeps_sums, memory);
}
// Rows that no cluster holds, of one group, without gate or residual.
bool is_cooperative(const NormBackward& b, const ThreadPlan& plan) {
  if (is_general(kind_of(b)) || b.groups() != 1 || b.forward.rows() >= int64_t{1} << 30)
    return false;
  return plan.lanes == 0;
}

template <class T>
Status start(const Call& call, const char* name, const NormBackward& b, const Choice& choice,
             GradientJob& job, int64_t memory) {
  const int64_t rows = b.forward.rows();
  if (is_cooperative(b, choice.plan)) {
    const auto done = start_cooperative<T>(call, name, b, job, memory);
    PESTLE_TRY(done.status());
    if (done.value()) return {};
  }
  if (choice.plan.lanes == 0) return start_long<T>(call, name, job, rows);
  return start_kind<T>(call, name, choice.kind, job, left_of_parts(memory));
}

// The second kernel as the first one's multiprocessors are set up: all memory shared, no L1.
Status keep_carveout(const Call& call) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device_index(call) & 63);
  if ((done.load(std::memory_order_relaxed) & bit) != 0) return {};
  PESTLE_ON_DEVICE(device_index(call));
  PESTLE_CUDA_TRY(cudaFuncSetAttribute(sum_runs_kernel,
                                       cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared));
  done.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

Status add_up_runs(const Call& call, const char* name, const NormBackward& b,
                   const GradientJob& from) {
  SumJobs jobs;
  jobs.columns = from.columns;
  const int64_t runs =
      from.runs.splits_groups() ? from.runs.runs_of_group : from.runs.runs;  // at least
  while (jobs.lanes < 32 && 4 * jobs.lanes < runs) jobs.lanes *= 2;
  jobs.tiles = static_cast<uint32_t>(ceil_div(from.columns, int64_t{kSumThreads} / jobs.lanes * 4));
  const auto add = [&](const TensorView& to, Array array, bool of_groups) {
    if (to.data == nullptr || (of_groups && !from.runs.splits_groups())) return;
    SumJob& job = jobs.job[jobs.count++];
    job.from = from.sums + array * from.columns;
    job.to = AnyTensor(to);
    job.first_block = jobs.blocks;
    job.runs = static_cast<int32_t>(of_groups ? from.runs.runs_of_group : from.runs.runs);
    job.run_step = kArrays * from.columns;
    jobs.blocks += jobs.tiles * static_cast<uint32_t>(of_groups ? from.runs.groups : 1);
  };
  add(b.d_weight, kWeightSum, false);
  add(b.d_bias, kBiasSum, false);
  add(b.d_gate, kGateSum, true);
  add(b.d_scale, kScaleSum, true);
  add(b.d_shift, kBiasSum, true);
  PESTLE_TRY(keep_carveout(call));
  return launch_early(call, name, {jobs.blocks, kSumThreads}, sum_runs_kernel, jobs);
}

// Runs of one wave on an H200, 132 multiprocessors in groups of 14 to 18; the same everywhere,
// since it orders the additions. One cluster more than fits at once would double the time.
int64_t runs_of_wave(int cluster) {
  switch (cluster) {
    case 1: return 132;
    case 2: return 66;
    case 4: return 30;
    case 8: return 15;
    default: return 7;
  }
}

// How many runs _any's sums of a group's rows are made of: what its workspace has place for.
int any_runs(int64_t groups, int64_t rows, int64_t columns) {
  constexpr int64_t kLeastRows = 256;
  if (columns > kAnyLongest) return 1;
  const int64_t most = kAnyRuns / std::max<int64_t>(groups, 1);
  return static_cast<int>(std::max<int64_t>(1, std::min(most, rows / kLeastRows)));
}
Status add_up_any(const Call& call, const char* name, const AnyGradients& job, bool of_groups,
                  int64_t groups) {
  const int64_t tiles = ceil_div(job.columns, 32);
  const int runs = any_runs(groups, of_groups ? job.rows_of_group : job.rows, job.columns);
  PESTLE_TRY(launch_early(call, name, {tiles * groups * runs, kAnyRowThreads}, any_sums_kernel, job,
                          of_groups, runs));
  if (runs == 1) return {};
  return launch_early(call, name, {ceil_div(groups * job.columns, kAnyRowThreads), kAnyRowThreads},
                      any_runs_kernel, job, of_groups, groups, runs);
}

// Of x, for _any: launches would take longer than the work of a few blocks.
constexpr int64_t kSmallElements = 16384;

}  // namespace

Status norm_backward_cuda(const Call& call, const char* name, const NormBackward& b) {
  const NormRows& n = b.forward;
  const Machine machine = machine_for({DeviceType::kCuda, device_index(call)});
  GradientJob job;
  const Choice choice = choice_of(b, machine);
  job.plan = choice.plan;
  const bool is_long = job.plan.lanes == 0;
  job.runs = is_long ? RowRuns::over(n.rows(), b.groups(), most_runs(n.columns()), 4)
                     : RowRuns::over(n.rows(), b.groups(), runs_of_wave(job.plan.cluster),
                                     job.plan.subgroups);
  // The rows of a single group are dealt out in turns, so that what runs together reads neighbours.
  job.row_step = job.plan.subgroups * (job.runs.groups == 1 ? job.runs.runs : 1);
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
  job.columns = n.columns();
  job.eps = n.eps;
  job.one_by_count = 1.0f / static_cast<float>(n.columns());
  job.subtract_mean = n.subtract_mean;
  job.keeps_weight = b.d_weight.data != nullptr;
  const int64_t memory = block_bytes(machine.compute_capability);
  switch (n.x.dtype) {
    case DType::kBF16: PESTLE_TRY(start<Bf16>(call, name, b, choice, job, memory)); break;
    case DType::kF16: PESTLE_TRY(start<F16>(call, name, b, choice, job, memory)); break;
    default: PESTLE_TRY(start<F32>(call, name, b, choice, job, memory)); break;
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
                         reinterpret_cast<float*>(static_cast<float4*>(call.workspace) + n.rows()),
                         n.rows(),
                         n.columns(),
                         std::max<int64_t>(1, groups == 0 ? 1 : n.rows() / groups),
                         n.eps,
                         n.subtract_mean};
  const int64_t tiles = ceil_div(n.columns(), 32);
  const bool sums = b.d_weight.data != nullptr || b.d_bias.data != nullptr;
  const bool group_sums = b.d_gate.data != nullptr || b.d_scale.data != nullptr;
  const int64_t elements = n.rows() * n.columns();
  if ((sums || group_sums) && elements > 0 && elements <= kSmallElements) {
    const Machine machine = machine_for({DeviceType::kCuda, device_index(call)});
    const int blocks = std::min(8, largest_cluster(machine.compute_capability));
    return launch_early(call, name, {blocks, kAnyRowThreads, 0, blocks}, any_small_kernel, job,
                        static_cast<int>(sums ? tiles : 0),
                        static_cast<int>(group_sums ? tiles * groups : 0));
  }
  bool taken = false;
  PESTLE_TRY(start_units(call, name, b, job.rows_of_group, job.statistics, taken));
  if (!taken)
    PESTLE_TRY(launch_early(call, name, {n.rows(), kAnyRowThreads}, any_rows_kernel, job));
  if (sums) PESTLE_TRY(add_up_any(call, name, job, false, 1));
  if (!group_sums) return {};
  AnyGradients of_groups = job;
  of_groups.rows_of_group = groups == 0 ? 1 : n.rows() / groups;
  if (n.rows() == 0) of_groups.rows_of_group = 0;
  return add_up_any(call, name, of_groups, true, groups);
}

std::string refuse_norm_backward_cuda(const NormBackward& b) {
  const NormRows& n = b.forward;
  if (n.rows() == 0 || n.columns() == 0) return "the tensor is empty";
  if (n.columns() % kUnit != 0) return "K is no multiple of 8";
  if (n.rows() >= int64_t{1} << 31) return "2^31 rows or more";
  if (n.scale.data != nullptr && b.d_bias.data != nullptr) return "scale and bias together";
  if (n.columns() >= int64_t{1} << 31) return "rows of 2^31 elements or more";
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
