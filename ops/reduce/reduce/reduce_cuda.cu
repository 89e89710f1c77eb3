// reduce on CUDA.
// Map      rows (reduced elements are neighbours): 1 to 32 threads or a block a row; columns: a
//          thread has 8 columns, the threads of a block stand 32 side by side and 8 deep. Four
//          units of 8 elements are loaded before they are used. Where results are too few to fill
//          the device, a result's parts go to several blocks and a second kernel combines them in
//          order. _any: every stride, dtype and offset, 1 to 256 threads a result, side by side
//          along what lies closer together, results or elements; 8 elements loaded at a time.
// Traffic  x once; parts in the workspace, at most 12 MiB.
// Numerics f32. Sums, squares and exponentials: trees of 32 elements (columns: 4), from there on
//          with what each addition lost beside the sum, so that the error does not grow with the
//          number of elements; the others 8 values a thread that are combined as a tree. _any:
//          trees of 8. One rounding. The order depends on the shape alone.
// Measured H200, 256 MiB, share of a copy that writes as little: rows of 1k to 256k 96-99 % (bf16
//          1k 89 %), one result 92 %, columns 89-91 %, logsumexp 88 %
#include <cfloat>
#include <type_traits>

#include "ops/reduce/reduce/reduce_spec.h"
#include "ops/reduce/reduce_layout.cuh"

namespace pestle::ops::reduce {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOp = arg_index(spec, "op");
constexpr int kDims = arg_index(spec, "dims");
constexpr int kKeepdim = arg_index(spec, "keepdim");

// exp(x) within 2 ulp for x <= 0 or infinite.
__device__ inline float exp_of(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.44269504f));
  return r;
}

// A sum as f32 additions make it, and what they lost.
struct LongSum {
  float sum, lost;

  __device__ void add(float v) {
    const float all = __fadd_rn(sum, v);
    const float taken = __fsub_rn(all, sum);
    lost += __fadd_rn(__fsub_rn(sum, __fsub_rn(all, taken)), __fsub_rn(v, taken));
    sum = all;
  }
  // An infinite sum has lost no number.
  __device__ float total() const {
    const float all = sum + lost;
    return all == all ? all : sum;
  }
};

// Of some turns of a column: what is added up before it goes into a LongSum.
template <class Terms>
struct ShortSums {
  using Value = float;
  __device__ static Value none() { return 0; }
  __device__ static float missing() { return 0; }
  __device__ static void add(Value& value, const float (&v)[kBatch]) {
    value += Terms::two(v[0], v[1]) + Terms::two(v[2], v[3]);
  }
};

// Each: the value without elements, what stands for an element that is not there, and two values
// as one.
template <class Terms>
struct LongSums {
  using Value = LongSum;
  static constexpr bool kOneValue = true;  // of a row's elements in a thread
  __device__ static Value none() { return {0, 0}; }
  __device__ static float missing() { return 0; }
  __device__ static Value combine(Value a, Value b) {
    a.add(b.sum);
    a.lost += b.lost;
    return a;
  }
  using Run = ShortSums<Terms>;  // of a column
  __device__ static void add_run(Value& value, float run) { value.add(run); }
  template <class T>
  __device__ static void add_units(Value& value, const typename T::Raw (&raw)[kBatch], int valid) {
    float sums[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      sums[i] = 0;
      if (i >= valid) continue;
      float v[kUnit];
      T::to_f32(raw[i], v);
      sums[i] = (Terms::two(v[0], v[1]) + Terms::two(v[2], v[3])) +
                (Terms::two(v[4], v[5]) + Terms::two(v[6], v[7]));
    }
    value.add((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  __device__ static float finish(Value value, int64_t count, int op) {
    return Terms::finish(value.total(), count, op);
  }
};

struct Plain {
  __device__ static float two(float a, float b) { return a + b; }
  __device__ static float finish(float sum, int64_t count, int op) {
    return op == kMean ? __fdiv_rn(sum, static_cast<float>(count)) : sum;
  }
};
using Sum = LongSums<Plain>;

struct Squared {
  __device__ static float two(float a, float b) { return __fmaf_rn(a, a, b * b); }
  __device__ static float finish(float sum, int64_t, int) { return __fsqrt_rn(sum); }
};
using Squares = LongSums<Squared>;

struct Product {
  using Value = float;
  static constexpr bool kOneValue = false;
  __device__ static Value none() { return 1; }
  __device__ static float missing() { return 1; }
  __device__ static Value combine(Value a, Value b) { return a * b; }
  __device__ static void add(Value& value, const float (&v)[kBatch]) {
    value *= (v[0] * v[1]) * (v[2] * v[3]);
  }
  __device__ static float finish(Value value, int64_t, int) { return value; }
};

// kSign -1: the smallest, as the largest of the negated ones.
template <int kSign>
struct Largest {
  using Value = float;
  static constexpr bool kOneValue = false;
  __device__ static Value none() { return __int_as_float(0xFF800000); }
  __device__ static float missing() { return kSign * none(); }
  __device__ static Value combine(Value a, Value b) { return max_nan(a, b); }
  __device__ static void add(Value& value, const float (&v)[kBatch]) {
    value = max_nan(
        value, max_nan(max_nan(kSign * v[0], kSign * v[1]), max_nan(kSign * v[2], kSign * v[3])));
  }
  __device__ static float finish(Value value, int64_t, int) { return kSign * value; }
};

// Of a unit; NaN is skipped where there are numbers.
template <class T>
__device__ inline float largest_of(const typename T::Raw& raw) {
  if constexpr (T::kBytes == 4) {
    float v[kUnit];
    T::to_f32(raw, v);
    return fmaxf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])),
                 fmaxf(fmaxf(v[4], v[5]), fmaxf(v[6], v[7])));
  } else {
    const uint32_t w[4] = {raw.v.x, raw.v.y, raw.v.z, raw.v.w};
    if constexpr (std::is_same_v<T, Bf16>) {
      const auto pair = [&](int i) { return *reinterpret_cast<const __nv_bfloat162*>(&w[i]); };
      const __nv_bfloat162 top = __hmax2(__hmax2(pair(0), pair(1)), __hmax2(pair(2), pair(3)));
      return fmaxf(__low2float(top), __high2float(top));
    } else {
      const auto pair = [&](int i) { return *reinterpret_cast<const __half2*>(&w[i]); };
      const __half2 top = __hmax2(__hmax2(pair(0), pair(1)), __hmax2(pair(2), pair(3)));
      return fmaxf(__low2float(top), __high2float(top));
    }
  }
}

// base + log(sum of exp(x - base)). The base is kept within the finite numbers, so that infinities
// need no cases of their own: exp(inf - FLT_MAX) is inf, log(0) is -inf; NaN lands in the sum.
struct ShortLogSum {
  struct Value {
    float base, sum;
  };
  __device__ static Value none() { return {-FLT_MAX, 0}; }
  __device__ static float missing() { return __int_as_float(0xFF800000); }
  __device__ static float finite(float v) { return fminf(fmaxf(v, -FLT_MAX), FLT_MAX); }
  __device__ static void add(Value& value, const float (&v)[kBatch]) {
    const float top = finite(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])));
    const float base = fmaxf(value.base, top);
    const float scaled = value.sum * exp_of(value.base - base);
    value.sum = scaled + ((exp_of(v[0] - base) + exp_of(v[1] - base)) +
                          (exp_of(v[2] - base) + exp_of(v[3] - base)));
    value.base = base;
  }
};

// The same with a LongSum.
struct LogSum {
  struct Value {
    float base;
    LongSum sum;

    __device__ void move_to(float to) {
      const float factor = exp_of(base - to);
      base = to;
      sum.sum *= factor;
      sum.lost *= factor;
    }
  };
  using Run = ShortLogSum;
  static constexpr bool kOneValue = true;
  __device__ static Value none() { return {-FLT_MAX, {0, 0}}; }
  __device__ static float missing() { return Run::missing(); }
  __device__ static Value combine(Value a, Value b) {
    const float base = fmaxf(a.base, b.base);
    a.move_to(base);
    b.move_to(base);
    a.sum.add(b.sum.sum);
    a.sum.lost += b.sum.lost;
    return a;
  }
  __device__ static void add_run(Value& value, Run::Value run) {
    value = combine(value, {run.base, {run.sum, 0}});
  }
  // Of a row's elements, which share a base: one exponential more for all of them. They stay packed
  // until their exponentials are due, so that a thread needs few registers.
  template <class T>
  __device__ static void add_units(Value& value, const typename T::Raw (&raw)[kBatch], int valid) {
    float tops[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) tops[i] = i < valid ? largest_of<T>(raw[i]) : missing();
    const float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
    const float base = fmaxf(value.base, Run::finite(top));
    float sums[kBatch] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= valid) continue;
      float v[kUnit];
      T::to_f32(raw[i], v);
      for (int j = 0; j < kUnit; ++j) sums[i] += exp_of(v[j] - base);
    }
    value.move_to(base);
    value.sum.add((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  __device__ static float finish(Value value, int64_t, int) {
    return value.base + logf(value.sum.total());
  }
};

__device__ inline float from_lane(float v, int distance) {
  return __shfl_xor_sync(0xFFFFFFFFu, v, distance);
}
__device__ inline LongSum from_lane(LongSum v, int distance) {
  return {from_lane(v.sum, distance), from_lane(v.lost, distance)};
}
__device__ inline LogSum::Value from_lane(LogSum::Value v, int distance) {
  return {from_lane(v.base, distance), from_lane(v.sum, distance)};
}

// Blocks a multiprocessor.
template <class Acc, class T>
inline constexpr int kRowBlocks = T::kBytes == 4 ? 3 : 4;
template <class Acc, class T>
inline constexpr int kColumnBlocks = (std::is_same_v<Acc, LogSum> ? 3 : 4) - (T::kBytes == 4);

// kBatch units `step` bytes apart, of which `valid` exist.
template <class Acc, class T>
__device__ inline void load_batch(const char* p, int64_t step, int valid,
                                  float (&v)[kBatch][kUnit]) {
  typename T::Raw raw[kBatch];
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (i < valid) raw[i] = T::load(p + i * step);
  }
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (i < valid) {
      T::to_f32(raw[i], v[i]);
    } else {
#pragma unroll
      for (int j = 0; j < kUnit; ++j) v[i][j] = Acc::missing();
    }
  }
}

template <class Acc, class T>
__device__ inline void take(typename Acc::Value (&values)[kUnit], const char* p, int64_t step,
                            int valid) {
  float v[kBatch][kUnit];
  load_batch<Acc, T>(p, step, valid, v);
#pragma unroll
  for (int j = 0; j < kUnit; ++j) {
    const float column[kBatch] = {v[0][j], v[1][j], v[2][j], v[3][j]};
    Acc::add(values[j], column);
  }
}

template <class Acc>
__device__ inline void keep(const Reduction& r, int64_t result, int64_t split,
                            typename Acc::Value value) {
  if (r.splits > 1) {
    static_cast<typename Acc::Value*>(r.partials)[split * r.outs + result] = value;
  } else {
    store_result(r.out + r.kept.out_offset(result), r.out_dtype,
                 Acc::finish(value, r.count, r.mode));
  }
}

// A row's units in a thread: 8 values that become one, or one for all.
template <class Acc, class T>
struct RowValues {
  using Value = typename Acc::Value;
  Value values[Acc::kOneValue ? 1 : kUnit];

  __device__ void add(const char* p, int64_t step, int valid) {
    if constexpr (Acc::kOneValue) {
      typename T::Raw raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (i < valid) raw[i] = T::load(p + i * step);
      }
      Acc::template add_units<T>(values[0], raw, valid);
    } else {
      take<Acc, T>(values, p, step, valid);
    }
  }
  __device__ Value total() const {
    if constexpr (Acc::kOneValue) {
      return values[0];
    } else {
      return Acc::combine(
          Acc::combine(Acc::combine(values[0], values[1]), Acc::combine(values[2], values[3])),
          Acc::combine(Acc::combine(values[4], values[5]), Acc::combine(values[6], values[7])));
    }
  }
};

template <class Acc, class T>
__global__ void __launch_bounds__(kReduceThreads, kRowBlocks<Acc, T>)
    reduce_rows(const __grid_constant__ Reduction r) {
  using Value = typename Acc::Value;
  __shared__ Value warps[kReduceThreads / 32];
  const RowPlace place = row_place(r);
  RowValues<Acc, T> own;
#pragma unroll
  for (Value& value : own.values) value = Acc::none();
  if (place.row < r.outs) {
    const char* row = r.x + r.kept.x_offset(place.row);
    constexpr int kUnitBytes = kUnit * T::kBytes;
    const int64_t step = int64_t{r.lanes} * kUnitBytes;
    int64_t unit = place.begin + place.lane;
    for (; unit + (kBatch - 1) * r.lanes < place.end; unit += kBatch * r.lanes) {
      own.add(row + unit * kUnitBytes, step, kBatch);
    }
    if (unit < place.end) {
      const int valid = static_cast<int>((place.end - unit + r.lanes - 1) / r.lanes);
      own.add(row + unit * kUnitBytes, step, valid);
    }
  }
  start_next_kernel();
  Value value = own.total();
  for (int distance = min(r.lanes, 32) / 2; distance > 0; distance /= 2) {
    value = Acc::combine(value, from_lane(value, distance));
  }
  if (r.lanes == kReduceThreads) {
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < kReduceThreads / 32; ++i) value = Acc::combine(value, warps[i]);
  }
  if (place.lane == 0 && place.row < r.outs) keep<Acc>(r, place.row, place.split, value);
}

// A thread's columns: their values in registers; of sums those of the last turns, while the rest
// waits, with what it lost, in the thread's own places of shared memory.
template <class Acc, bool kHasRuns = requires { typename Acc::Run; }>
struct ColumnValues {
  using Value = typename Acc::Value;
  Value values[kUnit];

  __device__ explicit ColumnValues(Value (&)[kUnit][kReduceThreads]) {
#pragma unroll
    for (Value& value : values) value = Acc::none();
  }
  template <class T>
  __device__ void add(const char* p, int64_t step, int valid) {
    take<Acc, T>(values, p, step, valid);
  }
  __device__ void settle() {}
};
template <class Acc>
struct ColumnValues<Acc, true> {
  using Value = typename Acc::Value;
  static constexpr int kTurns = 8;  // of a run
  Value (&places)[kUnit][kReduceThreads];
  typename Acc::Run::Value runs[kUnit];
  int turns = 0;
  Value values[kUnit];

  __device__ explicit ColumnValues(Value (&shared)[kUnit][kReduceThreads]) : places(shared) {
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      places[j][threadIdx.x] = Acc::none();
      runs[j] = Acc::Run::none();
    }
  }
  template <class T>
  __device__ void add(const char* p, int64_t step, int valid) {
    take<typename Acc::Run, T>(runs, p, step, valid);
    if (++turns % kTurns == 0) close_run();
  }
  __device__ void close_run() {
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      Value value = places[j][threadIdx.x];
      Acc::add_run(value, runs[j]);
      places[j][threadIdx.x] = value;
      runs[j] = Acc::Run::none();
    }
  }
  __device__ void settle() {
    close_run();
#pragma unroll
    for (int j = 0; j < kUnit; ++j) values[j] = places[j][threadIdx.x];
  }
};

template <class Acc, class T>
__global__ void __launch_bounds__(kReduceThreads, kColumnBlocks<Acc, T>)
    reduce_columns(const __grid_constant__ Reduction r) {
  using Value = typename Acc::Value;
  __shared__ Value shared[kUnit][kReduceThreads];
  const ColumnPlace place = column_place(r);
  ColumnValues<Acc> own(shared);
  const int64_t first = place.outer * (r.units * kUnit) + place.unit * kUnit;  // result
  const int deep = kReduceThreads / r.lanes;
  if (place.unit < r.units) {
    const int64_t stride = r.gone.x_stride[0];
    const char* p = r.x + r.kept.x_offset(first);
    int64_t row = place.begin + place.y;
    for (; row + (kBatch - 1) * deep < place.end; row += kBatch * deep) {
      own.template add<T>(p + row * stride, deep * stride, kBatch);
    }
    if (row < place.end) {
      own.template add<T>(p + row * stride, deep * stride,
                          static_cast<int>((place.end - row + deep - 1) / deep));
    }
  }
  start_next_kernel();
  own.settle();
  Value(&values)[kUnit] = own.values;
  for (int half = deep / 2; half > 0; half /= 2) {
    if (place.y >= half && place.y < 2 * half) {
#pragma unroll
      for (int j = 0; j < kUnit; ++j) shared[j][threadIdx.x] = values[j];
    }
    __syncthreads();
    if (place.y < half) {
#pragma unroll
      for (int j = 0; j < kUnit; ++j) {
        values[j] = Acc::combine(values[j], shared[j][threadIdx.x + half * r.lanes]);
      }
    }
    __syncthreads();
  }
  if (place.y == 0 && place.unit < r.units) {
#pragma unroll
    for (int j = 0; j < kUnit; ++j) keep<Acc>(r, first + j, place.split, values[j]);
  }
}

// Parts of results, in a fixed order: a block takes some results, whose parts its threads share.
template <class Acc>
__global__ void __launch_bounds__(kReduceThreads)
    finish_parts(const __grid_constant__ Reduction r) {
  using Value = typename Acc::Value;
  __shared__ Value shared[kReduceThreads];
  wait_previous_kernel();
  const int width = r.width;
  const int x = threadIdx.x & (width - 1), y = threadIdx.x / width;
  const int deep = kReduceThreads / width;
  const int64_t result = static_cast<int64_t>(blockIdx.x) * width + x;
  const auto* parts = static_cast<const Value*>(r.partials);
  Value value = Acc::none();
  if (result < r.outs) {
#pragma unroll 8
    for (int64_t split = y; split < r.splits; split += deep) {
      value = Acc::combine(value, parts[split * r.outs + result]);
    }
  }
  for (int half = deep / 2; half > 0; half /= 2) {
    if (y >= half && y < 2 * half) shared[threadIdx.x] = value;
    __syncthreads();
    if (y < half) value = Acc::combine(value, shared[threadIdx.x + half * width]);
    __syncthreads();
  }
  if (result >= r.outs || y != 0) return;
  store_result(r.out + r.kept.out_offset(result), r.out_dtype, Acc::finish(value, r.count, r.mode));
}

// A batch of reduce_any; what is not there has Acc::missing().
template <class Acc>
__device__ inline void add_batch(typename Acc::Value& value, const float (&v)[kAnyBatch]) {
  const float low[kBatch] = {v[0], v[1], v[2], v[3]}, high[kBatch] = {v[4], v[5], v[6], v[7]};
  if constexpr (requires { typename Acc::Run; }) {
    auto run = Acc::Run::none();
    Acc::Run::add(run, low);
    Acc::Run::add(run, high);
    Acc::add_run(value, run);
  } else {
    Acc::add(value, low);
    Acc::add(value, high);
  }
}

template <class Acc>
__global__ void __launch_bounds__(kReduceThreads, kAnyBlocks)
    reduce_any(const __grid_constant__ Reduction r, const __grid_constant__ AnyTensor x,
               const __grid_constant__ AnyTensor out) {
  using Value = typename Acc::Value;
  __shared__ Value shared[kReduceThreads];
  const AnyPlace place = any_place(r);
  Value value = Acc::none();
  for_batches(r, x, place, [&](float(&v)[kAnyBatch], int count) {
#pragma unroll
    for (int i = 0; i < kAnyBatch; ++i) v[i] = i < count ? v[i] : Acc::missing();
    add_batch<Acc>(value, v);
  });
  start_next_kernel();
  value = join_any(r, place, value, shared,
                   [](const Value& a, const Value& b) { return Acc::combine(a, b); });
  if (place.lane != 0 || place.result >= r.outs) return;
  if (r.splits > 1) {
    static_cast<Value*>(r.partials)[place.split * r.outs + place.result] = value;
  } else {
    out.store(r.out + r.kept.out_offset(place.result), Acc::finish(value, r.count, r.mode));
  }
}

// ---- host ----

template <class Acc>
Status finish(const Call& call, const char* name, Reduction r) {
  r.width = finish_width(r.outs, r.splits);
  return launch_early(call, name, {ceil_div(r.outs, r.width), kReduceThreads}, finish_parts<Acc>,
                      r);
}

template <class Acc, class T>
Status start(const Call& call, const ReducePlan& plan) {
  Reduction r(plan);
  r.mode = static_cast<int>(call.integer(kOp));
  r.partials = call.workspace;
  const bool rows = plan.is_rows();
  const int64_t blocks = rows ? cut_rows(r, 132 * kRowBlocks<Acc, T>)
                              : cut_columns(r, kBatch, 132 * kColumnBlocks<Acc, T>);
  PESTLE_TRY(launch(call, "reduce", {blocks, kReduceThreads},
                    rows ? reduce_rows<Acc, T> : reduce_columns<Acc, T>, r));
  return r.splits == 1 ? Status() : finish<Acc>(call, "reduce", r);
}

// body(accumulator) for the op.
template <class Body>
Status with_op(int64_t op, Body&& body) {
  switch (op) {
    case kAmax:
    case kMax: return body(Largest<1>());
    case kAmin:
    case kMin: return body(Largest<-1>());
    case kProd: return body(Product());
    case kNorm: return body(Squares());
    case kLogsumexp: return body(LogSum());
    default: return body(Sum());
  }
}

ReducePlan plan_of(const Call& call) {
  return {call.tensor(kX), call.tensor(kOut), call.integer(kDims), call.integer(kKeepdim) != 0};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_fast_reduction(plan_of(call));
}

Status run(const Call& call) {
  const ReducePlan plan = plan_of(call);
  return with_op(call.integer(kOp), [&]<class Acc>(Acc) {
    switch (plan.x_dtype) {
      case DType::kBF16: return start<Acc, Bf16>(call, plan);
      case DType::kF16: return start<Acc, F16>(call, plan);
      default: return start<Acc, F32>(call, plan);
    }
  });
}

Status run_any(const Call& call) {
  const ReducePlan plan = plan_of(call);
  Reduction r(plan);
  r.mode = static_cast<int>(call.integer(kOp));
  r.partials = call.workspace;
  const AnyTensor x(call.tensor(kX)), out(call.tensor(kOut));
  const int64_t blocks = cut_any(r, out.is_aligned);
  return with_op(call.integer(kOp), [&]<class Acc>(Acc) -> Status {
    PESTLE_TRY(launch(call, "reduce_any", {blocks, kReduceThreads}, reduce_any<Acc>, r, x, out));
    return r.splits == 1 ? Status() : finish<Acc>(call, "reduce_any", r);
  });
}

constexpr Impl kImpls[] = {
    {.id = "cuda/reduce",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run,
     .workspace = "12 * min(1048576, numel(out) * 1024)"},
    {.id = "cuda/reduce_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "12 * min(1048576, numel(out) * 1024)"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::reduce
