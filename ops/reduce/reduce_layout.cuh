// How kernels that reduce find their elements: places of results, and how rows and columns are cut
// so that the device is full and every thread has some loads in flight.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/reduce/reduce_plan.h"

namespace pestle::ops {

inline constexpr int kReduceThreads = 256;
inline constexpr int kBatch = 4;  // units of 8 elements that a thread loads before it uses them
inline constexpr int64_t kMostSplits = 1024;
inline constexpr int64_t kMostPartials = int64_t{1} << 20;  // of a call, in its workspace

// A ReducePlan on the device.
struct ReduceDims {
  int rank = 0;
  int64_t size[kMaxRank];
  int64_t x_stride[kMaxRank];
  int64_t out_stride[kMaxRank];

  ReduceDims() = default;
  explicit ReduceDims(const ReducePlan::Dims& dims) : rank(dims.rank) {
    for (int d = 0; d < rank; ++d) {
      size[d] = dims.size[d];
      x_stride[d] = dims.x_stride[d];
      out_stride[d] = dims.out_stride[d];
    }
  }
#ifdef __CUDACC__
  __device__ int64_t x_offset(int64_t index) const { return offset(index, x_stride); }
  __device__ int64_t out_offset(int64_t index) const { return offset(index, out_stride); }

 private:
  __device__ int64_t offset(int64_t index, const int64_t (&strides)[kMaxRank]) const {
    int64_t place = 0;
    for (int d = rank - 1; d > 0; --d) {
      int64_t rest;
      if (((index | size[d]) >> 31) == 0) {
        rest = static_cast<uint32_t>(index) / static_cast<uint32_t>(size[d]);
      } else {
        rest = index / size[d];
      }
      place += (index - rest * size[d]) * strides[d];
      index = rest;
    }
    return rank > 0 ? place + index * strides[0] : place;
  }
#endif
};

// A reduction as kernels see it.
struct Reduction {
  const char* x;
  char* out;
  DType out_dtype;
  int64_t outs;
  int64_t count;
  ReduceDims kept, gone;
  // Rows: units of a row. Columns: units of columns; x's rows are gone.x_stride[0] apart.
  int64_t units;
  int lanes;       // rows: threads of a row. Columns: threads side by side.
  int64_t splits;  // parts of a result that different blocks make
  int64_t chunk;   // units (rows) or rows (columns) of a part
  void* partials;  // [splits][outs] if there are several
  int mode;        // the op's own
  int width = 1;   // of finish_width
  int each = 1;    // elements of a part's batch, of argmax and argmin

  explicit Reduction(const ReducePlan& plan)
      : x(plan.x),
        out(plan.out),
        out_dtype(plan.out_dtype),
        outs(plan.outs),
        count(plan.count),
        kept(plan.kept),
        gone(plan.gone),
        units(0),
        lanes(1),
        splits(1),
        chunk(0),
        partials(nullptr),
        mode(0) {}
};

// Enough blocks that the last ones to run do not show.
inline constexpr int64_t kWantedBlocks = 132 * 16;

// So many that all run at once and most of the device has as many as the rest.
inline constexpr std::pair<int64_t, int64_t> kOneWave = {250, 528};

inline int64_t splits_for(int64_t outs, int64_t blocks, int64_t parts) {
  const int64_t most = std::max<int64_t>(1, std::min(kMostSplits, kMostPartials / outs));
  return std::clamp<int64_t>(kWantedBlocks / std::max<int64_t>(1, blocks), 1,
                             std::max<int64_t>(1, std::min(most, parts)));
}

// Parts of each result so that `blocks` times as many nearly fill the device's `slots` once; if
// there is no such number, so many that the last ones to run do not show.
inline int64_t splits_of_wave(int64_t outs, int64_t blocks, int64_t parts, int64_t slots) {
  const int64_t most = std::max<int64_t>(1, std::min(kMostSplits, kMostPartials / outs));
  const int64_t even = std::min({slots / std::max<int64_t>(1, blocks), most, parts});
  if (even >= 1 && even * blocks * 8 >= slots * 7) return even;
  return splits_for(outs, blocks, parts);
}

// Of a row longer than 2,048 elements: a block, or a warp where there are rows enough to fill the
// device three times over and the block's last turn would leave many threads without a unit.
inline int row_lanes(const Reduction& r, int64_t slots) {
  const int64_t turn = int64_t{kReduceThreads} * kBatch;  // units
  const int64_t covered = cuda::ceil_div(r.units, turn) * turn;
  const bool idle = r.units * 8 < covered * 7;
  const bool many = r.outs >= 3 * slots * (kReduceThreads / 32);
  return r.units <= 2 * turn && many && idle ? 32 : kReduceThreads;
}

// `slots` blocks run at once. Returns the number of blocks.
inline int64_t cut_rows(Reduction& r, int64_t slots) {
  r.units = r.count / cuda::kUnit;
  r.lanes = 1;
  while (r.lanes < 32 && r.lanes * kBatch < r.units) r.lanes *= 2;
  if (r.units > 4 * 32 * kBatch) r.lanes = row_lanes(r, slots);
  const int64_t blocks = cuda::ceil_div(r.outs, kReduceThreads / r.lanes);
  const int64_t step = int64_t{r.lanes} * kBatch;  // units of a turn
  const int64_t turns = cuda::ceil_div(r.units, step);
  // A part is worth a block of its own from four turns on.
  const bool one_wave = blocks >= kOneWave.first && blocks <= kOneWave.second && turns < 256;
  r.splits = one_wave ? 1 : splits_of_wave(r.outs, blocks, std::max<int64_t>(1, turns / 4), slots);
  r.chunk = cuda::ceil_div(turns, r.splits) * step;
  r.splits = cuda::ceil_div(r.units, r.chunk);
  return blocks * r.splits;
}

// Results of a block that combines parts: side by side, so that a thread has four parts at most
// where there are few.
inline int finish_width(int64_t outs, int64_t splits) {
  int width = kReduceThreads;
  while (width > 8 && width * splits > 4 * kReduceThreads) width /= 2;
  while (width > 1 && width / 2 >= outs) width /= 2;
  return width;
}

// `batch` rows are a thread's turn, `slots` blocks run at once. Returns the number of blocks.
inline constexpr int kMostColumnLanes = 16;  // side by side: fewer parts of a result than with 32

inline int64_t cut_columns(Reduction& r, int batch, int64_t slots) {
  const int64_t width = r.kept.size[r.kept.rank - 1];
  r.units = width / cuda::kUnit;
  r.lanes = 1;
  while (r.lanes < kMostColumnLanes && r.lanes < r.units) r.lanes *= 2;
  const int64_t blocks = r.outs / width * cuda::ceil_div(r.units, r.lanes);
  const int64_t step = int64_t{kReduceThreads} / r.lanes * batch;  // rows of a turn
  const int64_t turns = cuda::ceil_div(r.count, step);
  r.splits = splits_of_wave(r.outs, blocks, std::max<int64_t>(1, turns / 4), slots);
  r.chunk = cuda::ceil_div(turns, r.splits) * step;
  r.splits = cuda::ceil_div(r.count, r.chunk);
  return blocks * r.splits;
}

// Any strides: lanes of a result take its elements in turn, kAnyBatch at a time. Where neighbouring
// results lie closer together than a result's elements, neighbouring threads have `width` of them;
// else width is 1 and the lanes of a result are neighbours. Returns the number of blocks.
inline constexpr int kAnyBatch = 8;
inline constexpr int kAnyBlocks = 4;  // of a multiprocessor

inline int64_t cut_any(Reduction& r, bool may_split) {
  const auto apart = [](const ReduceDims& dims) {
    return dims.rank == 0 ? INT64_MAX : std::abs(dims.x_stride[dims.rank - 1]);
  };
  const bool across = apart(r.kept) < apart(r.gone);
  const int most = across ? 8 : 32;  // lanes, if results or parts fill the device
  constexpr int64_t kDeviceThreads = 132 * 2048;
  r.lanes = 1;
  while (int64_t{r.lanes} * kAnyBatch < r.count) {
    if (r.lanes == kReduceThreads) break;
    const bool fills = r.outs * r.lanes >= kDeviceThreads || (across && may_split);
    if (r.lanes >= most && fills) break;
    r.lanes *= 2;
  }
  r.width = across ? kReduceThreads / r.lanes : 1;
  r.splits = 1;
  r.chunk = r.count;
  const int64_t blocks = cuda::ceil_div(r.outs, kReduceThreads / r.lanes);
  if (!may_split || r.outs == 0 || r.count == 0) return blocks;
  // A part is worth a block of its own from four turns on.
  const int64_t turn = int64_t{r.lanes} * kAnyBatch;
  r.splits = splits_for(r.outs, blocks, r.count / (4 * turn));
  r.chunk = cuda::ceil_div(cuda::ceil_div(r.count, r.splits), turn) * turn;
  r.splits = cuda::ceil_div(r.count, r.chunk);
  return blocks * r.splits;
}

// Why the fast kernels refuse, or empty.
inline std::string refuse_fast_reduction(const ReducePlan& plan) {
  if (plan.outs == 0 || plan.count == 0) return "x is empty";
  const bool rows = plan.is_rows();
  if (!rows && !plan.is_columns()) {
    return "neither the reduced elements nor the innermost kept ones are neighbours";
  }
  const int64_t dense = rows ? plan.count : plan.kept.size[plan.kept.rank - 1];
  if (dense % cuda::kUnit != 0) return "the dense dimension is no multiple of 8";
  bool aligned = reinterpret_cast<uintptr_t>(plan.x) % 16 == 0;
  const int free = rows ? -1 : plan.kept.rank - 1;  // of the kept ones
  for (int d = 0; d < plan.kept.rank; ++d) aligned &= d == free || plan.kept.x_stride[d] % 16 == 0;
  aligned &= rows || plan.gone.x_stride[0] % 16 == 0;
  if (!aligned) return "rows do not start at multiples of 16 bytes";
  const int out_bytes = dtype_bytes(plan.out_dtype);
  return reinterpret_cast<uintptr_t>(plan.out) % static_cast<unsigned>(out_bytes) == 0
             ? ""
             : "out is not aligned to its elements";
}

#ifdef __CUDACC__

// One rounding; aligned. NaN is canonical.
__device__ inline void store_result(char* p, DType dtype, float v) {
  switch (dtype) {
    case DType::kBF16: *reinterpret_cast<uint16_t*>(p) = formats::bf16_from_f32(v); break;
    case DType::kF16: *reinterpret_cast<uint16_t*>(p) = formats::f16_from_f32(v); break;
    default: *reinterpret_cast<uint32_t*>(p) = v != v ? formats::kF32Nan : __float_as_uint(v);
  }
}

// The larger one; NaN if either is.
__device__ inline float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// A quotient of numbers that are not negative: 64-bit divisions are long, and loads wait for them.
__device__ inline int64_t quotient(int64_t a, int64_t b) { return cuda::AnyTensor::quotient(a, b); }

// Where a thread of a kernel for any strides works (cut_any).
struct AnyPlace {
  int64_t result, split;
  int lane;
  int64_t begin, end;  // of the part's elements
};
__device__ inline AnyPlace any_place(const Reduction& r) {
  AnyPlace p;
  const int64_t group = r.splits == 1 ? blockIdx.x : quotient(blockIdx.x, r.splits);
  const int log = 31 - __clz(r.lanes);
  const int results = kReduceThreads >> log;  // of the block
  const int x = threadIdx.x;
  p.split = blockIdx.x - group * r.splits;
  p.lane = r.width > 1 ? x >> (31 - __clz(results)) : x & (r.lanes - 1);
  p.result = group * results + (r.width > 1 ? x & (results - 1) : x >> log);
  p.begin = p.split * r.chunk;
  p.end = min(r.count, p.begin + r.chunk);
  return p;
}

// `count` of a result's elements, `lanes` apart from `number` on; 0 behind them. Out of line, since
// divisions and bytes one by one are long code. Within the last dimension an element lies at a
// distance from the one before; else it is found by divisions.
struct AnyBatch {
  float v[kAnyBatch];
};
__device__ __noinline__ inline AnyBatch load_far(const Reduction& r, const cuda::AnyTensor& x,
                                                 const char* from, int64_t number, int count) {
  const int last = max(r.gone.rank - 1, 0);
  const int64_t size = r.gone.rank == 0 ? 1 : r.gone.size[last];
  const int64_t stride = r.gone.rank == 0 ? 0 : r.gone.x_stride[last];
  const char* p[kAnyBatch];
  const char* at = from;
  int64_t inner = size;
#pragma unroll 1
  for (int i = 0; i < kAnyBatch; ++i) {
    inner += r.lanes;
    at += r.lanes * stride;
    if (inner >= size && i < count) {
      const int64_t element = number + i * r.lanes;
      inner = element - quotient(element, size) * size;
      at = from + r.gone.x_offset(element);
    }
#pragma unroll
    for (int j = 0; j < kAnyBatch; ++j) p[j] = i == j ? at : p[j];
  }
  AnyBatch batch;
  x.load_all(p, count, batch.v);
  return batch;
}

// Elements lane, lane + lanes, ... of a thread's part of a result, a batch at a time.
struct AnyElements {
  const Reduction& r;
  const cuda::AnyTensor& x;
  const char* from;     // the result's first
  int64_t number, end;  // of the next element

  __device__ AnyElements(const Reduction& reduction, const cuda::AnyTensor& tensor,
                         const AnyPlace& place)
      : r(reduction),
        x(tensor),
        from(r.x + r.kept.x_offset(place.result)),
        number(place.begin + place.lane),
        end(place.end) {}
  __device__ bool has_more() const { return number < end; }
  // Returns how many there were; v is 0 behind them.
  __device__ int load(float (&v)[kAnyBatch]) {
    const int most = kAnyBatch * r.lanes;
    const int left = static_cast<int>(min(end - number, int64_t{most}));
    const int count = (left + r.lanes - 1) >> (31 - __clz(r.lanes));
    if (r.gone.rank == 1 && x.is_aligned) {
      const int64_t stride = r.gone.x_stride[0];
      x.load_each(from + number * stride, r.lanes * stride, count, v);
    } else {
      const AnyBatch batch = load_far(r, x, from, number, count);
#pragma unroll
      for (int i = 0; i < kAnyBatch; ++i) v[i] = batch.v[i];
    }
    number += most;
    return count;
  }
};

// f(batch, how many of it there are) for a thread's elements of its result, if it has one.
template <class F>
__device__ __forceinline__ void for_batches(const Reduction& r, const cuda::AnyTensor& x,
                                            const AnyPlace& place, F&& f) {
  if (place.result < r.outs) {
    AnyElements elements(r, x, place);
    while (elements.has_more()) {
      float v[kAnyBatch];
      const int count = elements.load(v);
      f(v, count);
    }
  }
}

// All lanes' values as one, in a fixed order: in those of lane 0. By all threads of a block.
template <class Value, class Join>
__device__ Value join_any(const Reduction& r, const AnyPlace& place, const Value& value,
                          Value (&shared)[kReduceThreads], Join&& join) {
  const int next = r.width > 1 ? kReduceThreads / r.lanes : 1;
  shared[threadIdx.x] = value;
  for (int half = r.lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (place.lane >= half) continue;
    shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half * next]);
  }
  return shared[threadIdx.x];
}

// 0, unknown to the compiler.
__device__ inline unsigned hidden_zero() {
  unsigned zero = 0;
  asm volatile("" : "+r"(zero));
  return zero;
}

// Where a block of a row kernel works: a row of the block's for each group of `lanes` threads.
struct RowPlace {
  int64_t row;
  int64_t split;
  int lane;
  int64_t begin, end;  // units
};
__device__ inline RowPlace row_place(const Reduction& r) {
  RowPlace p;
  const int64_t group = r.splits == 1 ? blockIdx.x : quotient(blockIdx.x, r.splits);
  const int log = 31 - __clz(r.lanes);
  p.split = blockIdx.x - group * r.splits;
  p.lane = threadIdx.x & (r.lanes - 1);
  p.row = group * (kReduceThreads >> log) + (threadIdx.x >> log);
  p.begin = p.split * r.chunk;
  p.end = min(r.units, p.begin + r.chunk);
  return p;
}

struct ColumnPlace {
  int64_t outer;  // of the kept dimensions but the last
  int64_t unit;   // of columns
  int64_t split;
  int x, y;            // of the thread
  int64_t begin, end;  // rows
};
// Asked for anew with a number that the compiler can't see through (`zero`), it takes no registers
// in between.
__device__ inline ColumnPlace column_place(const Reduction& r, unsigned zero = 0) {
  const unsigned block = blockIdx.x + zero, thread = threadIdx.x + zero;
  ColumnPlace p;
  // Groups of columns run fastest: blocks that run together read whole rows.
  const int log = 31 - __clz(r.lanes);
  const int64_t across = (r.units + r.lanes - 1) >> log;
  const int64_t groups = quotient(gridDim.x, r.splits);
  p.split = quotient(block, groups);
  const int64_t group = block - p.split * groups;
  p.outer = quotient(group, across);
  p.x = thread & (r.lanes - 1);
  p.y = thread >> log;
  p.unit = (group - p.outer * across) * r.lanes + p.x;
  p.begin = p.split * r.chunk;
  p.end = min(r.count, p.begin + r.chunk);
  return p;
}

#endif  // __CUDACC__

}  // namespace pestle::ops
