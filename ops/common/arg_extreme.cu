// argmax and argmin on CUDA.
// Map      as reduce (ops/common/reduce_layout.cuh): rows by 1 to 32 threads or a block, columns 8
// a
//          thread; parts of few results by several blocks, combined in order by a second kernel
// Traffic  x once; parts in the workspace, at most 16 MiB
// Numerics exact: the first largest element, NaN above all. A thread compares the largest of a unit
//          (rows) or of a batch of rows (columns) and looks for its place only if it wins.
// Measured H200, 256 MiB, share of a copy that writes as little: rows of 256k 94 %, bf16 rows of 1k
//          47 %, columns 36 %
#include "ops/common/arg_extreme.h"
#include "ops/common/reduce_layout.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;

struct Best {
  int64_t place;
  float value;  // times sign
};

constexpr int64_t kNone = INT64_MAX;

__device__ inline Best nothing() { return {kNone, __int_as_float(0xFF800000)}; }
__device__ inline bool is_nan(float v) { return v != v; }
// Would v, later than `best`, take its place?
__device__ inline bool beats(float v, float best) { return !(v <= best) && !is_nan(best); }

__device__ inline Best better(const Best& a, const Best& b) {
  if (is_nan(a.value) != is_nan(b.value)) return is_nan(a.value) ? a : b;
  if (a.value == b.value || is_nan(a.value)) return a.place <= b.place ? a : b;
  return a.value > b.value ? a : b;
}

__device__ inline Best from_lane(const Best& b, int distance) {
  return {__shfl_xor_sync(0xFFFFFFFFu, b.place, distance),
          __shfl_xor_sync(0xFFFFFFFFu, b.value, distance)};
}

__device__ inline float largest_of(const float (&v)[kUnit]) {
  return max_nan(max_nan(max_nan(v[0], v[1]), max_nan(v[2], v[3])),
                 max_nan(max_nan(v[4], v[5]), max_nan(v[6], v[7])));
}

template <class T>
__device__ inline void values_of(const typename T::Raw& raw, bool negate, float (&v)[kUnit]) {
  T::to_f32(raw, v);
  if (!negate) return;
#pragma unroll
  for (int j = 0; j < kUnit; ++j) v[j] = -v[j];
}

__device__ inline void keep(const Reduction& r, int64_t result, int64_t split, const Best& best) {
  if (r.splits > 1) {
    static_cast<Best*>(r.partials)[split * r.outs + result] = best;
  } else {
    *reinterpret_cast<int64_t*>(r.out + r.kept.out_offset(result)) = best.place;
  }
}

template <class T>
__global__ void __launch_bounds__(kReduceThreads) arg_rows(const __grid_constant__ Reduction r) {
  __shared__ Best warps[kReduceThreads / 32];
  const RowPlace place = row_place(r);
  const bool negate = r.mode < 0;
  Best best = nothing();
  if (place.row < r.outs) {
    const char* row = r.x + r.kept.x_offset(place.row);
    constexpr int kUnitBytes = kUnit * T::kBytes;
    if (place.begin + place.lane < place.end) best.place = (place.begin + place.lane) * kUnit;
    for (int64_t unit = place.begin + place.lane; unit < place.end; unit += kBatch * r.lanes) {
      typename T::Raw raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (unit + i * r.lanes < place.end) {
          raw[i] = T::load(row + (unit + i * r.lanes) * kUnitBytes);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (unit + i * r.lanes >= place.end) break;
        float v[kUnit];
        values_of<T>(raw[i], negate, v);
        const float top = largest_of(v);
        if (!beats(top, best.value)) continue;
        int j = kUnit - 1;
#pragma unroll
        for (int k = kUnit - 2; k >= 0; --k) {
          if (v[k] == top || (is_nan(top) && is_nan(v[k]))) j = k;
        }
        best = {(unit + i * r.lanes) * kUnit + j, top};
      }
    }
  }
  for (int distance = min(r.lanes, 32) / 2; distance > 0; distance /= 2) {
    best = better(best, from_lane(best, distance));
  }
  if (r.lanes == kReduceThreads) {
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < kReduceThreads / 32; ++i) best = better(best, warps[i]);
  }
  if (place.lane == 0 && place.row < r.outs) keep(r, place.row, place.split, best);
}

// A thread's 8 columns: the best value of each, and its row within the part.
struct Columns {
  float value[kUnit];
  uint32_t row[kUnit];

  // Rows `row`, `row` + step, ... of which `valid` exist.
  template <class T>
  __device__ void take(const char* p, int64_t stride, int valid, uint32_t at, uint32_t step,
                       bool negate) {
    typename T::Raw raw[kBatch];
    float v[kBatch][kUnit];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i < valid) raw[i] = T::load(p + i * stride);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i < valid) {
        values_of<T>(raw[i], negate, v[i]);
      } else {
#pragma unroll
        for (int j = 0; j < kUnit; ++j) v[i][j] = __int_as_float(0xFF800000);
      }
    }
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const float top = max_nan(max_nan(v[0][j], v[1][j]), max_nan(v[2][j], v[3][j]));
      if (!beats(top, value[j])) continue;
      uint32_t first = at;
#pragma unroll
      for (int i = kBatch - 1; i >= 0; --i) {
        if (v[i][j] == top || (is_nan(top) && is_nan(v[i][j]))) first = at + i * step;
      }
      value[j] = top;
      row[j] = first;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kReduceThreads) arg_columns(const __grid_constant__ Reduction r) {
  __shared__ Best shared[kReduceThreads];
  const ColumnPlace place = column_place(r);
  const int deep = kReduceThreads / r.lanes;
  const int64_t first = place.outer * (r.units * kUnit) + place.unit * kUnit;  // result
  const bool exists = place.unit < r.units && place.begin + place.y < place.end;
  Columns columns;
#pragma unroll
  for (int j = 0; j < kUnit; ++j) {
    columns.value[j] = __int_as_float(0xFF800000);
    columns.row[j] = place.y;
  }
  if (exists) {
    const int64_t stride = r.gone.x_stride[0];
    const char* p = r.x + r.kept.x_offset(first) + place.begin * stride;
    const auto rows = static_cast<uint32_t>(place.end - place.begin);
    for (uint32_t row = place.y; row < rows; row += kBatch * deep) {
      const int valid = static_cast<int>(min((rows - row + deep - 1) / deep, kBatch + 0u));
      columns.take<T>(p + row * stride, deep * stride, valid, row, deep, r.mode < 0);
    }
  }
  for (int j = 0; j < kUnit; ++j) {
    Best best = nothing();
#pragma unroll
    for (int k = 0; k < kUnit; ++k) {
      if (j == k && exists) best = {place.begin + columns.row[k], columns.value[k]};
    }
    for (int half = deep / 2; half > 0; half /= 2) {
      if (place.y >= half && place.y < 2 * half) shared[threadIdx.x] = best;
      __syncthreads();
      if (place.y < half) best = better(best, shared[threadIdx.x + half * r.lanes]);
      __syncthreads();
    }
    if (place.y == 0 && place.unit < r.units) keep(r, first + j, place.split, best);
  }
}

__global__ void __launch_bounds__(kReduceThreads) arg_finish(const __grid_constant__ Reduction r) {
  const int64_t result = (static_cast<int64_t>(blockIdx.x) * kReduceThreads + threadIdx.x) / 32;
  const auto* parts = static_cast<const Best*>(r.partials);
  Best best = nothing();
  if (result < r.outs) {
    for (int64_t split = threadIdx.x % 32; split < r.splits; split += 32) {
      best = better(best, parts[split * r.outs + result]);
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    best = better(best, from_lane(best, distance));
  }
  if (result >= r.outs || threadIdx.x % 32 != 0) return;
  *reinterpret_cast<int64_t*>(r.out + r.kept.out_offset(result)) = best.place;
}

// Any strides: the block's threads, or one thread, take a result's elements in turn.
__global__ void __launch_bounds__(kReduceThreads)
    arg_any(const __grid_constant__ Reduction r, AnyTensor x) {
  __shared__ Best shared[kReduceThreads];
  const int64_t result =
      r.lanes == 1 ? static_cast<int64_t>(blockIdx.x) * kReduceThreads + threadIdx.x : blockIdx.x;
  Best best = nothing();
  if (result < r.outs) {
    const char* from = r.x + r.kept.x_offset(result);
    for (int64_t i = r.lanes == 1 ? 0 : threadIdx.x; i < r.count; i += r.lanes) {
      best = better(best, {i, r.mode * x.load(from + r.gone.x_offset(i))});
    }
  }
  if (r.lanes > 1) {
    shared[threadIdx.x] = best;
    for (int half = kReduceThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x >= half) continue;
      shared[threadIdx.x] = better(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    if (threadIdx.x > 0) return;
    best = shared[0];
  }
  if (result >= r.outs) return;
  const int64_t place = best.place == kNone ? -1 : best.place;
  char* to = r.out + r.kept.out_offset(result);
  for (int i = 0; i < 8; ++i) to[i] = static_cast<char>(place >> (8 * i));
}

// ---- host ----

ReducePlan plan_of(const Call& call) {
  return {call.tensor(0), call.tensor(1), call.integer(2), call.integer(3) != 0};
}

template <class T>
Status start(const Call& call, const char* name, const ReducePlan& plan, int sign) {
  Reduction r(plan);
  r.mode = sign;
  r.partials = call.workspace;
  const bool rows = plan.is_rows();
  const int64_t blocks = rows ? cut_rows(r) : cut_columns(r);
  PESTLE_TRY(launch(call, name, {blocks, kReduceThreads}, rows ? arg_rows<T> : arg_columns<T>, r));
  if (r.splits == 1) return {};
  return launch(call, name, {ceil_div(r.outs * 32, kReduceThreads), kReduceThreads}, arg_finish, r);
}

}  // namespace

std::string refuse_cuda_arg_extreme(const Call& call, const Machine&) {
  return refuse_fast_reduction(plan_of(call));
}

Status cuda_arg_extreme(const Call& call, const char* name, int sign) {
  const ReducePlan plan = plan_of(call);
  switch (plan.x_dtype) {
    case DType::kBF16: return start<Bf16>(call, name, plan, sign);
    case DType::kF16: return start<F16>(call, name, plan, sign);
    default: return start<F32>(call, name, plan, sign);
  }
}

Status cuda_arg_extreme_any(const Call& call, const char* name, int sign) {
  const ReducePlan plan = plan_of(call);
  Reduction r(plan);
  r.mode = sign;
  r.lanes = r.count >= 64 ? kReduceThreads : 1;
  const int64_t blocks = r.lanes == 1 ? ceil_div(r.outs, kReduceThreads) : r.outs;
  return launch(call, name, {blocks, kReduceThreads}, arg_any, r, AnyTensor(call.tensor(0)));
}

}  // namespace pestle::ops
