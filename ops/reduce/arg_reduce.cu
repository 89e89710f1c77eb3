// argmax and argmin on CUDA.
// Map      as reduce (ops/reduce/reduce_layout.cuh): rows by 1 to 32 threads, which take two rows
//          of 16-bit elements at a time, or a block; columns 8 a thread, 32 threads side by side;
//          parts of few results by several blocks, combined by a second kernel, or, where x is
//          small, by the cluster that they are. _any: as reduce_any
// Traffic  x once; parts in the workspace, at most 8 MiB
// Numerics exact: the first largest element, NaN above all, without a branch in the loops. Short
//          rows: the row's largest value, then the first place of those who have it. Else a thread
//          knows the largest value of a batch (a unit of a row, or 4 or 8 rows of a column) and the
//          number of the first batch that had it; results are joined as 64-bit keys, and one thread
//          searches the batch that won.
// Measured H200, 256 MiB, share of a copy that writes as little: rows of 256k 96 %,
//          bf16 rows of 1k 92 %, columns 89 %
#include "ops/reduce/arg_reduce.h"

#include "backends/cuda/device/ptx/cluster.cuh"
#include "core/machine.h"
#include "ops/reduce/reduce_layout.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;

// The value above, as a number of the same order, and the complement of its batch's number below:
// the largest key is the first batch with the largest value. 0: nothing.
using Key = unsigned long long;

__device__ inline bool is_nan(float v) { return v != v; }
__device__ inline float lowest() { return __int_as_float(0xFF800000); }

constexpr int kClusterParts = 8;

// NaN above all, zeros of both signs equal.
__device__ inline uint32_t sortable(float v) {
  const uint32_t bits = __float_as_uint(v + 0.0f);
  if (is_nan(v)) return 0xFFFFFFFFu;
  return bits ^ (static_cast<int32_t>(bits) < 0 ? 0xFFFFFFFFu : 0x80000000u);
}
__device__ inline float value_of(Key key) {
  const auto bits = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(bits ^ (static_cast<int32_t>(bits) < 0 ? 0x80000000u : 0xFFFFFFFFu));
}
__device__ inline Key key_of(float v, uint32_t batch) {
  return static_cast<Key>(sortable(v)) << 32 | ~batch;
}
__device__ inline uint32_t batch_of(Key key) { return ~static_cast<uint32_t>(key); }

// The largest of some batches, which come in their order.
struct Candidate {
  float value = lowest();
  uint32_t batch;

  __device__ void offer(float top, uint32_t its_batch, bool exists) {
    const bool wins = exists && !(top <= value) && !is_nan(value);
    value = wins ? top : value;
    batch = wins ? its_batch : batch;
  }
};

// Words of raw elements: their signs (flipped for the smallest), larger ones of two words, and the
// f32 of what a word holds.
template <class T>
struct Words;
template <>
struct Words<Bf16> {
  static constexpr uint32_t kSigns = 0x80008000u, kLowest = 0xFF80FF80u;
  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  __device__ static uint32_t smaller(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  __device__ static float value(uint32_t w, int i) {
    return __uint_as_float(i == 0 ? w << 16 : w & 0xFFFF0000u);
  }
};
template <>
struct Words<F16> {
  static constexpr uint32_t kSigns = 0x80008000u, kLowest = 0xFC00FC00u;
  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  __device__ static uint32_t smaller(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  __device__ static float value(uint32_t w, int i) {
    const float2 two = F16::pair(w);
    return i == 0 ? two.x : two.y;
  }
};
template <>
struct Words<F32> {
  static constexpr uint32_t kSigns = 0x80000000u, kLowest = 0xFF800000u;
  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    return __float_as_uint(max_nan(__uint_as_float(a), __uint_as_float(b)));
  }
  __device__ static uint32_t smaller(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("min.NaN.f32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  __device__ static float value(uint32_t w, int) { return __uint_as_float(w); }
};

template <class T>
inline constexpr int kWords = 2 * T::kBytes;  // of a unit
template <class T>
inline constexpr int kOfWord = 4 / T::kBytes;

template <class T>
struct Unit {
  uint32_t w[kWords<T>];

  __device__ static Unit load(const char* p, uint32_t flip) {
    Unit u;
#pragma unroll
    for (int i = 0; i < kWords<T>; i += 4) {
      const uint4 v = load16(p + 4 * i);
      u.w[i] = v.x ^ flip;
      u.w[i + 1] = v.y ^ flip;
      u.w[i + 2] = v.z ^ flip;
      u.w[i + 3] = v.w ^ flip;
    }
    return u;
  }
  __device__ static Unit none() {
    Unit u;
#pragma unroll
    for (uint32_t& word : u.w) word = Words<T>::kLowest;
    return u;
  }
  __device__ float largest() const {
    uint32_t top = w[0];
#pragma unroll
    for (int i = 1; i < kWords<T>; ++i) top = Words<T>::larger(top, w[i]);
    float v = Words<T>::value(top, 0);
    if constexpr (kOfWord<T> == 2) v = max_nan(v, Words<T>::value(top, 1));
    return v;
  }
};

__device__ inline uint32_t flip_of(const Reduction& r, uint32_t signs) {
  return r.mode < 0 ? signs : 0;
}

// The place of the first element of the key's batch, of `each` elements, with the key's value.
template <class T>
__device__ __noinline__ int64_t place_of(const Reduction& r, int64_t result, Key key, int each) {
  const float value = value_of(key);
  const int64_t stride = r.gone.x_stride[0];
  const int64_t first = static_cast<int64_t>(batch_of(key)) * each;
  const char* p = r.x + r.kept.x_offset(result) + first * stride;
  const uint32_t flip = flip_of(r, Words<T>::kSigns);
  const int last = static_cast<int>(min(r.count - first, static_cast<int64_t>(each))) - 1;
  // All loads before the first is waited for; the last element stands for those behind it.
  uint32_t words[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const char* at = p + min(i, last) * stride;
    if constexpr (T::kBytes == 2)
      words[i] = *reinterpret_cast<const uint16_t*>(at);
    else
      words[i] = *reinterpret_cast<const uint32_t*>(at);
  }
  int place = 0;
#pragma unroll
  for (int i = kUnit - 1; i >= 0; --i) {
    const float v = Words<T>::value(words[i] ^ flip, 0);
    if (v == value || (is_nan(v) && is_nan(value))) place = i;
  }
  return first + place;
}

// Are the parts of a result the blocks of a cluster?
__device__ inline bool in_cluster(const Reduction& r) { return r.partials == nullptr; }

template <class T>
__device__ inline void keep(const Reduction& r, int64_t result, int64_t split, Key key, int each) {
  if (r.splits > 1 && !in_cluster(r)) {
    static_cast<Key*>(r.partials)[split * r.outs + result] = key;
  } else {
    *reinterpret_cast<int64_t*>(r.out + r.kept.out_offset(result)) =
        place_of<T>(r, result, key, each);
  }
}

__device__ inline Key largest_of_lanes(Key key, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    key = max(key, __shfl_xor_sync(0xFFFFFFFFu, key, distance));
  }
  return key;
}

// By all threads of a cluster, whose first threads have the keys of a row's parts; the answer is in
// the first block's first thread.
__device__ Key largest_of_cluster(Key key, int64_t rank, int64_t blocks) {
  __shared__ float4 keys[kClusterParts];
  if (threadIdx.x == 0) {
    store_to_block(keys + rank, 0,
                   make_float4(__uint_as_float(static_cast<uint32_t>(key)),
                               __uint_as_float(static_cast<uint32_t>(key >> 32)), 0, 0));
  }
  cluster_arrive();
  cluster_wait();
  if (rank != 0 || threadIdx.x != 0) return 0;
  for (int64_t i = 1; i < blocks; ++i) {
    key = max(key, static_cast<Key>(__float_as_uint(keys[i].y)) << 32 | __float_as_uint(keys[i].x));
  }
  return key;
}

// Parts of long rows, by a block.
template <class T>
__global__ void __launch_bounds__(kReduceThreads, 4) arg_rows(const __grid_constant__ Reduction r) {
  __shared__ Key warps[kReduceThreads / 32];
  const RowPlace place = row_place(r);
  if (in_cluster(r)) cluster_arrive();  // a block may store to another one only when that has begun
  const uint32_t flip = flip_of(r, Words<T>::kSigns);
  constexpr int kUnitBytes = kUnit * T::kBytes;
  const auto end = static_cast<uint32_t>(place.end);
  uint32_t unit = static_cast<uint32_t>(place.begin) + place.lane;
  const bool has_any = unit < end;
  Candidate best;
  best.batch = unit;
  const char* row = r.x + r.kept.x_offset(place.row);
  for (; unit < end; unit += kBatch * kReduceThreads) {
    Unit<T> units[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t at = unit + i * kReduceThreads;
      units[i] = at < end ? Unit<T>::load(row + static_cast<int64_t>(at) * kUnitBytes, flip)
                          : Unit<T>::none();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t at = unit + i * kReduceThreads;
      best.offer(units[i].largest(), at, at < end);
    }
  }
  start_next_kernel();
  Key key = largest_of_lanes(has_any ? key_of(best.value, best.batch) : 0, 32);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = key;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kReduceThreads / 32; ++i) key = max(key, warps[i]);
  }
  if (in_cluster(r)) {
    cluster_wait();
    key = largest_of_cluster(key, place.split, r.splits);
    if (place.split != 0) return;
  }
  if (threadIdx.x == 0) keep<T>(r, place.row, place.split, key, kUnit);
}

// The largest number of `lanes` neighbouring threads.
__device__ inline uint32_t largest_number(uint32_t v, int lanes) {
  if (lanes == 32) return __reduce_max_sync(0xFFFFFFFFu, v);
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    v = max(v, __shfl_xor_sync(0xFFFFFFFFu, v, distance));
  }
  return v;
}

// The units of a turn of a thread of a short row.
template <class T>
struct Turn {
  Unit<T> units[kBatch];

  __device__ void load(const char* row, uint32_t unit, uint32_t end, int lanes, uint32_t flip) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t at = unit + i * lanes;
      units[i] = at < end ? Unit<T>::load(row + at * (kUnit * T::kBytes), flip) : Unit<T>::none();
    }
  }
  __device__ float largest() const {
    Unit<T> top = units[0];
#pragma unroll
    for (int w = 0; w < kWords<T>; ++w) {
#pragma unroll
      for (int i = 1; i < kBatch; ++i) top.w[w] = Words<T>::larger(top.w[w], units[i].w[w]);
    }
    return top.largest();
  }
  // The first place of the value.
  __device__ uint32_t place(float value, uint32_t unit, int lanes) const {
    uint32_t first = 0;
#pragma unroll
    for (int i = kBatch - 1; i >= 0; --i) {
#pragma unroll
      for (int w = kWords<T> - 1; w >= 0; --w) {
#pragma unroll
        for (int j = kOfWord<T> - 1; j >= 0; --j) {
          const float v = Words<T>::value(units[i].w[w], j);
          if (v == value || (is_nan(v) && is_nan(value))) {
            first = (unit + i * lanes) * kUnit + w * kOfWord<T> + j;
          }
        }
      }
    }
    return first;
  }
};

// Rows that some lanes of a warp take, kRows at a time: the row's largest value first, then its
// first place, by the threads that have it.
template <class T, int kRows>
__global__ void __launch_bounds__(kReduceThreads, 4)
    arg_short_rows(const __grid_constant__ Reduction r) {
  const RowPlace place = row_place(r);
  const uint32_t flip = flip_of(r, Words<T>::kSigns);
  const auto end = static_cast<uint32_t>(r.units);
  const uint32_t step = kBatch * r.lanes;
  const uint32_t turns = (end + step - 1) / step;
  Turn<T> own[kRows];
  Candidate best[kRows];  // its batch is the turn's first unit
  const char* rows[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    best[k].batch = place.lane;
    rows[k] = r.x + r.kept.x_offset(min(place.row * kRows + k, r.outs - 1));
  }
  for (uint32_t unit = place.lane, turn = 0; turn < turns; ++turn, unit += step) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) own[k].load(rows[k], unit, end, r.lanes, flip);
#pragma unroll
    for (int k = 0; k < kRows; ++k) best[k].offer(own[k].largest(), unit, unit < end);
  }
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const uint32_t mine = place.lane < end ? sortable(best[k].value) : 0;
    const uint32_t top = largest_number(mine, r.lanes);
    uint32_t behind = 0;  // the complement of the place
    if (mine == top) {
      if (turns > 1) own[k].load(rows[k], best[k].batch, end, r.lanes, flip);
      behind = ~own[k].place(best[k].value, best[k].batch, r.lanes);
    }
    behind = largest_number(behind, r.lanes);
    const int64_t row = place.row * kRows + k;
    if (place.lane == 0 && row < r.outs) {
      *reinterpret_cast<int64_t*>(r.out + r.kept.out_offset(row)) = ~behind;
    }
  }
}

// Rows of x that a thread looks at together, in a batch of its columns.
template <class T>
inline constexpr int kDeep = T::kBytes == 2 ? 8 : 4;

// The largest (kSign 1) or smallest (-1) of each of a thread's 8 columns.
template <class T, int kSign>
struct Columns {
  Candidate best[kUnit];

  __device__ static uint32_t better(uint32_t a, uint32_t b) {
    return kSign > 0 ? Words<T>::larger(a, b) : Words<T>::smaller(a, b);
  }
  __device__ void offer(const Unit<T>& top, uint32_t batch) {
#pragma unroll
    for (int w = 0; w < kWords<T>; ++w) {
#pragma unroll
      for (int i = 0; i < kOfWord<T>; ++i) {
        best[w * kOfWord<T> + i].offer(kSign * Words<T>::value(top.w[w], i), batch, true);
      }
    }
  }
  // Rows `batch` * kDeep and on.
  __device__ void take(const char* p, int64_t stride, uint32_t batch) {
    Unit<T> units[kDeep<T>];
#pragma unroll
    for (int i = 0; i < kDeep<T>; ++i) units[i] = Unit<T>::load(p + i * stride, 0);
#pragma unroll
    for (int i = 1; i < kDeep<T>; ++i) {
#pragma unroll
      for (int w = 0; w < kWords<T>; ++w) units[0].w[w] = better(units[0].w[w], units[i].w[w]);
    }
    offer(units[0], batch);
  }
  // The same of fewer rows, at least one.
  __device__ void take_some(const char* p, int64_t stride, int rows, uint32_t batch) {
    Unit<T> top = Unit<T>::load(p, 0);
    for (int i = 1; i < rows; ++i) {
      const Unit<T> unit = Unit<T>::load(p + i * stride, 0);
#pragma unroll
      for (int w = 0; w < kWords<T>; ++w) top.w[w] = better(top.w[w], unit.w[w]);
    }
    offer(top, batch);
  }
};

// A multiprocessor's.
template <class T>
inline constexpr int kArgColumnBlocks = T::kBytes == 2 ? 4 : 3;

// What the thread's rows and columns hold; false: there are none.
template <class T, int kSign>
__device__ inline bool take_columns(const Reduction& r, Columns<T, kSign>& columns) {
  const ColumnPlace place = column_place(r);
  const int deep = kReduceThreads / r.lanes;
  const int64_t begin = place.begin + place.y * kDeep<T>;
  auto batch = static_cast<uint32_t>(begin / kDeep<T>);
#pragma unroll
  for (Candidate& best : columns.best) best.batch = batch;
  if (place.unit >= r.units || begin >= place.end) return false;
  const int64_t first = place.outer * (r.units * kUnit) + place.unit * kUnit;  // result
  // Few numbers live beside the loads, or they are not all under way at once.
  const int64_t stride = r.gone.x_stride[0];
  const int64_t step = int64_t{deep} * kDeep<T>;
  const int64_t rows = place.end - begin;
  const auto whole =
      rows < kDeep<T> ? 0u : static_cast<uint32_t>(quotient(rows - kDeep<T>, step)) + 1;
  const char* p = r.x + r.kept.x_offset(first) + begin * stride;
  const int64_t distance = step * stride;
#pragma unroll 1
  for (uint32_t turn = 0; turn < whole; ++turn, batch += deep, p += distance) {
    columns.take(p, stride, batch);
  }
  const int64_t rest = rows - whole * step;
  if (rest > 0) columns.take_some(p, stride, static_cast<int>(rest), batch);
  return true;
}

// Joins the block's keys, 8 a thread, and keeps them: 32 / lanes threads a column, 8 keys each.
// Chunk c of 16 bytes of a thread's keys lies at c ^ (x / 2) % 4 of its 64, so that no bank is met
// twice.
template <class T>
__device__ inline void join_columns(const Reduction& r, const ColumnPlace& place,
                                    const Key (&keys)[kUnit], Key* shared) {
  const int x = threadIdx.x % r.lanes;
#pragma unroll
  for (int c = 0; c < kUnit / 2; ++c) {
    auto* to = reinterpret_cast<ulonglong2*>(shared + threadIdx.x * kUnit) + (c ^ (x >> 1 & 3));
    *to = make_ulonglong2(keys[2 * c], keys[2 * c + 1]);
  }
  __syncthreads();
  const int threads = 32 / r.lanes;  // of a column
  const int column = threadIdx.x / threads, part = threadIdx.x % threads;
  const int owner = column / kUnit, j = column % kUnit;
  const Key* from = shared + owner * kUnit + (j ^ (owner >> 1 & 3) * 2);
  Key key = 0;
#pragma unroll
  for (int i = 0; i < kReduceThreads / 32; ++i) {
    key = max(key, from[(i * threads + part) * r.lanes * kUnit]);
  }
  key = largest_of_lanes(key, threads);
  const int64_t unit = place.unit - x + owner;
  if (part != 0 || unit >= r.units) return;
  keep<T>(r, (place.outer * r.units + unit) * kUnit + j, place.split, key, kDeep<T>);
}

template <class T, int kSign>
__global__ void __launch_bounds__(kReduceThreads, kArgColumnBlocks<T>)
    arg_columns(const __grid_constant__ Reduction r) {
  __shared__ __align__(16) Key shared[kUnit * kReduceThreads];
  Columns<T, kSign> columns;
  const bool exists = take_columns(r, columns);
  start_next_kernel();
  const ColumnPlace place = column_place(r, hidden_zero());
  Key keys[kUnit];
#pragma unroll
  for (int j = 0; j < kUnit; ++j) {
    keys[j] = exists ? key_of(columns.best[j].value, columns.best[j].batch) : 0;
  }
  join_columns<T>(r, place, keys, shared);
}

// Parts of results: a warp a result, whose batch its lanes search.
template <class T>
__global__ void __launch_bounds__(kReduceThreads) arg_finish(const __grid_constant__ Reduction r) {
  const int lane = threadIdx.x % 32;
  const int64_t result =
      static_cast<int64_t>(blockIdx.x) * (kReduceThreads / 32) + threadIdx.x / 32;
  const auto* parts = static_cast<const Key*>(r.partials) + result;
  wait_previous_kernel();
  if (result >= r.outs) return;
  constexpr int kInFlight = 8;
  Key key = 0;
  for (int64_t split = lane; split < r.splits; split += 32 * kInFlight) {
    Key some[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = split + 32 * i;
      some[i] = at < r.splits ? parts[at * r.outs] : 0;
    }
#pragma unroll
    for (const Key one : some) key = max(key, one);
  }
  const auto above = static_cast<uint32_t>(key >> 32);
  const uint32_t top = __reduce_max_sync(~0u, above);
  const uint32_t behind = __reduce_max_sync(~0u, above == top ? static_cast<uint32_t>(key) : 0u);
  key = static_cast<Key>(top) << 32 | behind;
  const float value = value_of(key);
  const int64_t first = static_cast<int64_t>(batch_of(key)) * r.each;
  const int count = static_cast<int>(min(r.count - first, static_cast<int64_t>(r.each)));
  bool is_it = false;
  if (lane < count) {
    const char* at = r.x + r.kept.x_offset(result) + (first + lane) * r.gone.x_stride[0];
    uint32_t word;
    if constexpr (T::kBytes == 2)
      word = *reinterpret_cast<const uint16_t*>(at);
    else
      word = *reinterpret_cast<const uint32_t*>(at);
    const float v = Words<T>::value(word ^ flip_of(r, Words<T>::kSigns), 0);
    is_it = v == value || (is_nan(v) && is_nan(value));
  }
  const int place = __ffs(static_cast<int>(__ballot_sync(~0u, is_it))) - 1;
  if (lane == 0) {
    *reinterpret_cast<int64_t*>(r.out + r.kept.out_offset(result)) = first + place;
  }
}

// ---- any strides ----

struct Best {
  int64_t place;
  float value;  // times sign
};

constexpr int64_t kNone = INT64_MAX;

__device__ inline Best nothing() { return {kNone, lowest()}; }

__device__ inline Best better(const Best& a, const Best& b) {
  if (is_nan(a.value) != is_nan(b.value)) return is_nan(a.value) ? a : b;
  if (a.value == b.value || is_nan(a.value)) return a.place <= b.place ? a : b;
  return a.value > b.value ? a : b;
}

__device__ inline void store_place(const Reduction& r, int64_t result, int64_t place) {
  char* to = r.out + r.kept.out_offset(result);
  for (int i = 0; i < 8; ++i) to[i] = static_cast<char>(place >> (8 * i));
}

__global__ void __launch_bounds__(kReduceThreads, kAnyBlocks)
    arg_any(const __grid_constant__ Reduction r, const __grid_constant__ AnyTensor x) {
  __shared__ Best shared[kReduceThreads];
  const AnyPlace place = any_place(r);
  Best best = nothing();
  if (place.result < r.outs) {
    AnyElements elements(r, x, place);
    if (elements.has_more()) best.place = elements.number;
    while (elements.has_more()) {
      float v[kAnyBatch];
      const int64_t first = elements.number;
      const int count = elements.load(v);
#pragma unroll
      for (int i = 0; i < kAnyBatch; ++i) {
        const float value = r.mode < 0 ? -v[i] : v[i];
        const bool wins = i < count && !(value <= best.value) && !is_nan(best.value);
        best.value = wins ? value : best.value;
        best.place = wins ? first + i * r.lanes : best.place;
      }
    }
  }
  start_next_kernel();
  best = join_any(r, place, best, shared, better);
  if (place.lane != 0 || place.result >= r.outs) return;
  if (r.splits > 1) {
    static_cast<Key*>(r.partials)[place.split * r.outs + place.result] =
        key_of(best.value, static_cast<uint32_t>(best.place));
  } else {
    store_place(r, place.result, best.place == kNone ? -1 : best.place);
  }
}

// Parts of results, whose keys have the place itself: a warp a result.
__global__ void __launch_bounds__(kReduceThreads)
    arg_any_finish(const __grid_constant__ Reduction r) {
  wait_previous_kernel();
  const int64_t result =
      static_cast<int64_t>(blockIdx.x) * (kReduceThreads / 32) + threadIdx.x / 32;
  if (result >= r.outs) return;
  const auto* parts = static_cast<const Key*>(r.partials) + result;
  Key key = 0;
#pragma unroll 8
  for (int64_t split = threadIdx.x % 32; split < r.splits; split += 32) {
    key = max(key, parts[split * r.outs]);
  }
  key = largest_of_lanes(key, 32);
  if (threadIdx.x % 32 == 0) store_place(r, result, batch_of(key));
}

// ---- host ----

ReducePlan plan_of(const Call& call) {
  return {call.tensor(0), call.tensor(1), call.integer(2), call.integer(3) != 0};
}

// Of x: a second kernel would take longer than the first.
constexpr int64_t kSmallBytes = int64_t{1} << 20;

template <class T>
Status start(const Call& call, const char* name, const ReducePlan& plan, int sign) {
  Reduction r(plan);
  r.mode = sign;
  r.partials = call.workspace;
  const bool rows = plan.is_rows();
  r.each = rows ? kUnit : kDeep<T>;
  constexpr int kRows = T::kBytes == 2 ? 2 : 1;
  if (rows) {
    const int64_t blocks = cut_rows(r, 132 * 4);
    if (r.lanes < kReduceThreads) {
      const int64_t rows_of_block = kReduceThreads / r.lanes * kRows;
      return launch(call, name, {ceil_div(r.outs, rows_of_block), kReduceThreads},
                    arg_short_rows<T, kRows>, r);
    }
    const Device device{DeviceType::kCuda, device_index(call)};
    const bool small = r.outs * r.count * T::kBytes <= kSmallBytes;
    if (small && r.splits > 1 && machine_for(device).compute_capability >= 90) {
      r.splits = kClusterParts;
      r.chunk = ceil_div(r.units, r.splits);
      r.partials = nullptr;
      return launch(call, name, {r.outs * r.splits, kReduceThreads, 0, kClusterParts}, arg_rows<T>,
                    r);
    }
    PESTLE_TRY(launch(call, name, {blocks, kReduceThreads}, arg_rows<T>, r));
  } else {
    const int64_t blocks = cut_columns(r, kDeep<T>, 132 * kArgColumnBlocks<T>);
    PESTLE_TRY(launch(call, name, {blocks, kReduceThreads},
                      sign > 0 ? arg_columns<T, 1> : arg_columns<T, -1>, r));
  }
  if (r.splits == 1) return {};
  return launch_early(call, name, {ceil_div(r.outs, kReduceThreads / 32), kReduceThreads},
                      arg_finish<T>, r);
}

}  // namespace

std::string refuse_cuda_arg_reduce(const Call& call, const Machine&) {
  const ReducePlan plan = plan_of(call);
  if (plan.count >= int64_t{1} << 33) return "more than 2^33 elements stand behind a result";
  return refuse_fast_reduction(plan);
}

Status cuda_arg_reduce(const Call& call, const char* name, int sign) {
  const ReducePlan plan = plan_of(call);
  switch (plan.x_dtype) {
    case DType::kBF16: return start<Bf16>(call, name, plan, sign);
    case DType::kF16: return start<F16>(call, name, plan, sign);
    default: return start<F32>(call, name, plan, sign);
  }
}

Status cuda_arg_reduce_any(const Call& call, const char* name, int sign) {
  const ReducePlan plan = plan_of(call);
  Reduction r(plan);
  r.mode = sign;
  r.partials = call.workspace;
  // Keys of parts have 32 bits for a place.
  const int64_t blocks = cut_any(r, r.count < int64_t{1} << 32);
  PESTLE_TRY(launch(call, name, {blocks, kReduceThreads}, arg_any, r, AnyTensor(call.tensor(0))));
  if (r.splits == 1) return {};
  return launch_early(call, name, {ceil_div(r.outs, kReduceThreads / 32), kReduceThreads},
                      arg_any_finish, r);
}

}  // namespace pestle::ops
