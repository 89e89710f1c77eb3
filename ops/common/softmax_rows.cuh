// softmax, log_softmax and cross_entropy on CUDA: rows spread over groups of threads.
//   short_kernel a row of up to 16k elements in the registers of a warp's lanes or a block, as f32.
//                Each warp takes its largest t, then sums exp(t - largest); one exchange of these
//                pairs gives the row's.
//   held_kernel  a row in the registers of a cluster, as it was loaded: one read. Each thread runs
//                the online algorithm over its units, and the pairs are joined over warp, block and
//                cluster.
//   long_kernel  the same over parts of a row that are read again, backwards: what the L2 still
//                holds comes first. cross_entropy reads once and writes no row.
#pragma once

#include "backends/cuda/device/exponential.cuh"
#include "backends/cuda/device/row_access.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tensor_amax.h"
#include "core/machine.h"
#include "ops/common/rows_along.h"

namespace pestle::ops {

enum class SoftmaxKind { kSoftmax, kLogSoftmax, kLoss };

// kLoss: what a row gives besides its largest and its sum.
struct LossJob {
  cuda::AnyTensor targets, loss, lse;
  int64_t ignore_index = 0;
  float smoothing = 0;
};

struct SoftmaxJob {
  cuda::RowGroups groups;
  cuda::RowTensor x, mask, out;
  float scale = 1;
  LossJob loss;
};

#ifdef __CUDACC__
namespace softmax_device {

using namespace pestle::cuda;

constexpr float kInfinity = __builtin_huge_valf();

// Units that a thread holds of a row: 128 bytes in flight.
template <class Access>
constexpr int kHeldChunks = Access::kBytes == 2 ? 8 : 4;
constexpr int kHeldThreads = 256;  // of a block, at most, where a cluster of those takes the row
// What exponents are taken from: of a row of -infinity alone 0, so that its sum is 0 and not NaN.
__device__ inline float base_of(float largest) { return largest == -kInfinity ? 0.0f : largest; }

// largest: of t so far, NaN ignored (it arrives by the sum); sum: of exp(t - base_of(largest));
// total: of t, for smoothed labels.
struct SoftmaxPart {
  float largest, sum, total;

  __device__ static SoftmaxPart none() { return {-kInfinity, 0, 0}; }
  __device__ static SoftmaxPart from(float4 v) { return {v.x, v.y, v.z}; }
  __device__ float4 packed() const { return make_float4(largest, sum, total, 0); }
  __device__ SoftmaxPart over_lanes(int width) const {
    const float all = max_over_lanes(largest, width);
    const float scaled = sum * exp_of(largest - base_of(all));
    return {all, sum_over_lanes(scaled, width), sum_over_lanes(total, width)};
  }
  __device__ float lse() const { return base_of(largest) + logf(sum); }
};

// The row of the mask that goes with p.row, and its elements by the pattern of the row's access.
template <class Access>
struct MaskRow {
  const char* row = nullptr;
  int64_t step = 0;
  DType dtype;

  __device__ MaskRow(const RowTensor& mask, const RowPlace& p) : dtype(mask.any.dtype) {
    if (!mask.is_present || p.units == 0) return;
    step = mask.step;
    row = mask.any.row_at(p.row) + p.first * kUnit * step;
  }
  __device__ void values(const Access& access, int chunk, float (&v)[kUnit]) const {
    if constexpr (Access::kNeighbours) {
      if (!access.has(chunk)) return;
      const char* p = row + access.element(chunk, 0) * step;
      if (step == 0) {
        const float one = load_element(p, dtype);
        for (int i = 0; i < kUnit; ++i) v[i] = one;
      } else if (dtype == DType::kF32) {
        F32::to_f32(F32::load(p), v);
      } else if (dtype == DType::kBF16) {
        Bf16::to_f32(Bf16::load(p), v);
      } else {
        F16::to_f32(F16::load(p), v);
      }
    } else {
      for (int i = 0; i < kUnit; ++i) {
        if (access.has(chunk, i)) v[i] = load_bytes(row + access.element(chunk, i) * step, dtype);
      }
    }
  }
};

// t of a chunk. Elements past the row's end have -infinity.
template <class Access>
__device__ void logits(const Access& access, const MaskRow<Access>& mask, float scale,
                       const typename Access::Raw& raw, int chunk, float (&t)[kUnit]) {
  Access::values(raw, t);
  if (mask.row != nullptr) {
    float m[kUnit] = {};
    mask.values(access, chunk, m);
    for (int i = 0; i < kUnit; ++i) t[i] = __fmaf_rn(t[i], scale, m[i]);
  } else if (scale != 1) {
    for (int i = 0; i < kUnit; ++i) t[i] *= scale;
  }
  if constexpr (!Access::kNeighbours) {
    for (int i = 0; i < kUnit; ++i) {
      if (!access.has(chunk, i)) t[i] = -kInfinity;
    }
  }
}

__device__ inline float load_target_logit(const SoftmaxJob& job, int64_t row, int64_t target) {
  return job.x.any.load(job.x.any.at(row, target));
}

// By one thread of the row.
__device__ inline void store_loss(const SoftmaxJob& job, int64_t row, const SoftmaxPart& part) {
  const LossJob& loss = job.loss;
  const float lse = part.lse();
  loss.lse.store(loss.lse.element_at(row), lse);
  const int64_t target = loss.targets.load_integer(loss.targets.element_at(row));
  float value = __uint_as_float(formats::kF32Nan);
  if (target == loss.ignore_index) {
    value = 0;
  } else if (target >= 0 && target < job.x.count) {
    const float own = load_target_logit(job, row, target);
    value = lse - own;
    if (loss.smoothing != 0) {
      const float mean = part.total / static_cast<float>(job.x.count);
      value = lse - __fmaf_rn(loss.smoothing, mean, (1 - loss.smoothing) * own);
    }
  }
  loss.loss.store(loss.loss.element_at(row), value);
}

// The online algorithm on one chunk of a thread.
template <class Access, SoftmaxKind kKind>
__device__ void add_chunk(const Access& x, const MaskRow<Access>& mask, const SoftmaxJob& job,
                          const typename Access::Raw& raw, int chunk, SoftmaxPart& part) {
  // Vectors are whole or not there.
  if (Access::kNeighbours && !x.has(chunk, 0)) return;
  float t[kUnit];
  logits(x, mask, job.scale, raw, chunk, t);
  if (kKind == SoftmaxKind::kLoss && job.loss.smoothing != 0) {
    for (int i = 0; i < kUnit; ++i) part.total += x.has(chunk, i) ? t[i] : 0;
  }
  float largest = part.largest;
  for (int i = 0; i < kUnit; ++i) largest = fmaxf(largest, t[i]);
  const float base = base_of(largest);
  float sums[2] = {part.sum * quick_exp(part.largest - base), 0};
  for (int i = 0; i < kUnit; ++i) sums[i % 2] += quick_exp(t[i] - base);
  part.largest = largest;
  part.sum = sums[0] + sums[1];
}

// What a row's elements need of the whole row. 16-bit results come from one exponential whose
// exponent holds the sum's logarithm and 24 more, so that what bf16 can show is not flushed; its
// rounding, 2^-20, is far below theirs.
template <class Access, SoftmaxKind kKind>
struct RowResult {
  static constexpr bool kShort = Access::kBytes == 2;
  float base, by;

  __device__ explicit RowResult(const SoftmaxPart& all) : base(base_of(all.largest)) {
    if constexpr (kKind == SoftmaxKind::kLogSoftmax)
      by = logf(all.sum);
    else
      by = kShort ? 24.0f - log2f(all.sum) : 1.0f / all.sum;
  }
  __device__ float of(float t) const {
    if constexpr (kKind == SoftmaxKind::kLogSoftmax) return (t - base) - by;
    if constexpr (kShort) return quick_exp2(__fmaf_rn(t - base, kLog2E, by)) * 0x1p-24f;
    return exp_of(t - base) * by;
  }
};

// Rows of one block: exponentials are kept, so that each element has one.
template <class Access, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, 2) short_kernel(SoftmaxJob job) {
  __shared__ RowParts shared;
  const RowPlace place = row_place(job.groups);
  const Access x(job.x, place);
  const MaskRow<Access> mask(job.mask, place);
  typename Access::Raw raw[kRowChunks];
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) raw[c] = x.load(c);
  float t[kRowChunks][kUnit];
  float largest = -kInfinity;
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    logits(x, mask, job.scale, raw[c], c, t[c]);
    for (int i = 0; i < kUnit; ++i) {
      if (!x.has(c, i)) t[c][i] = -kInfinity;
      largest = fmaxf(largest, t[c][i]);
    }
  }
  const int width = min(place.lanes, 32);
  SoftmaxPart own{max_over_lanes(largest, width), 0, 0};
  const float base = base_of(own.largest);
  float sums[2] = {};
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    for (int i = 0; i < kUnit; ++i) {
      const float e = exp_of(t[c][i] - base);
      sums[i % 2] += e;
      if constexpr (kKind == SoftmaxKind::kSoftmax) t[c][i] = e;
    }
  }
  own.sum = sum_over_lanes(sums[0] + sums[1], width);
  const SoftmaxPart all = join_row(place, own, shared);
  if (place.row >= job.groups.rows) return;
  const Access out(job.out, place);
  const float factor = exp_of(own.largest - base_of(all.largest)) / all.sum;
  const float log_sum = logf(all.sum);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    for (int i = 0; i < kUnit; ++i) {
      if constexpr (kKind == SoftmaxKind::kSoftmax)
        t[c][i] *= factor;
      else
        t[c][i] = (t[c][i] - base_of(all.largest)) - log_sum;
    }
    out.store(c, t[c]);
  }
}

// Rows of a cluster, kept as they were loaded.
template <class Access, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, 2) held_kernel(SoftmaxJob job) {
  constexpr int kChunks = kHeldChunks<Access>;
  __shared__ RowParts shared;
  const RowPlace place = row_place(job.groups);
  begin_row(place);
  const Access x(job.x, place);
  const MaskRow<Access> mask(job.mask, place);
  typename Access::Raw raw[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) raw[c] = x.load(c);
  SoftmaxPart own = SoftmaxPart::none();
#pragma unroll
  for (int c = 0; c < kChunks; ++c) add_chunk<Access, kKind>(x, mask, job, raw[c], c, own);
  const SoftmaxPart all = join_row(place, own.over_lanes(min(place.lanes, 32)), shared);
  if (place.row >= job.groups.rows) return;
  const RowResult<Access, kKind> row(all);
  const Access out(job.out, place);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!out.has(c, 0)) continue;
    float t[kUnit];
    logits(x, mask, job.scale, raw[c], c, t);
    for (int i = 0; i < kUnit; ++i) t[i] = row.of(t[i]);
    out.store(c, t);
  }
}

template <class Access, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, 2) long_kernel(SoftmaxJob job) {
  constexpr int kChunks = Access::kChunks;
  __shared__ RowParts shared;
  const RowPlace place = row_place(job.groups);
  begin_row(place);
  const Access x(job.x, place);
  const MaskRow<Access> mask(job.mask, place);
  SoftmaxPart own = SoftmaxPart::none();
  for (int first = 0; first < place.chunks; first += kChunks) {
    typename Access::Raw raw[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) raw[c] = x.load(first + c);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      add_chunk<Access, kKind>(x, mask, job, raw[c], first + c, own);
    }
  }
  const SoftmaxPart all = join_row(place, own.over_lanes(min(place.lanes, 32)), shared);
  if (place.row >= job.groups.rows) return;
  if constexpr (kKind == SoftmaxKind::kLoss) {
    if (place.lane == 0 && place.rank == 0) store_loss(job, place.row, all);
    return;
  }
  const RowResult<Access, kKind> row(all);
  const Access out(job.out, place);
  for (int first = (place.chunks - 1) / kChunks * kChunks; first >= 0; first -= kChunks) {
    typename Access::Raw raw[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) raw[c] = x.load(first + c);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float t[kUnit];
      logits(x, mask, job.scale, raw[c], first + c, t);
      for (int i = 0; i < kUnit; ++i) t[i] = row.of(t[i]);
      out.store(first + c, t);
    }
  }
}

}  // namespace softmax_device

// ---- the host's side ----

// Rows that keep a GPU busy with a block each.
constexpr int64_t kManyRows = 1024;

// Blocks of a cluster that the call's device takes.
inline int cluster_blocks(const Call& call) {
  const Device device{DeviceType::kCuda, cuda::device_index(call)};
  return cuda::largest_cluster(machine_for(device).compute_capability);
}

template <SoftmaxKind kKind, class T>
Status start_softmax(const Call& call, const char* name, SoftmaxJob& job) {
  using namespace softmax_device;
  const int64_t units = job.x.count / kUnit;
  const int64_t rows = job.groups.rows;
  const auto start = [&](auto* kernel) {
    return launch(call, name, {job.groups.blocks(), job.groups.threads(), 0, job.groups.cluster},
                  kernel, job);
  };
  // Without a second pass there is nothing to hold a row for.
  if (kKind == SoftmaxKind::kLoss && (rows >= kManyRows || units <= kRowBlockUnits)) {
    job.groups = RowGroups::block_a_row(rows, units, kHeldThreads);
    return start(long_kernel<Vectors<T>, kKind>);
  }
  const int most_blocks = units > kRowBlockUnits ? cluster_blocks(call) : 1;
  if constexpr (kKind != SoftmaxKind::kLoss) {
    if (units <= kRowBlockUnits) {
      job.groups = RowGroups::holding(rows, units, 1, kRowThreads, kRowChunks);
      return start(short_kernel<Vectors<T>, kKind>);
    }
    for (int threads : {kHeldThreads, kRowThreads}) {
      job.groups = RowGroups::holding(rows, units, most_blocks, threads, kHeldChunks<Vectors<T>>);
      if (job.groups.cluster > 0) return start(held_kernel<Vectors<T>, kKind>);
    }
  }
  job.groups = RowGroups::looping(rows, units, most_blocks);
  return start(long_kernel<Vectors<T>, kKind>);
}

template <SoftmaxKind kKind, class T>
Status start_softmax_any(const Call& call, const char* name, SoftmaxJob& job) {
  using namespace softmax_device;
  const int64_t units = ceil_div(job.x.count, kUnit);
  const int most_blocks = units > kRowBlockUnits ? cluster_blocks(call) : 1;
  const bool apart = job.x.step != job.x.any.bytes && job.groups.rows >= 1024;
  job.groups = apart ? RowGroups::one_thread(job.groups.rows, units)
                     : RowGroups::looping(job.groups.rows, units, most_blocks);
  return launch(call, name, {job.groups.blocks(), job.groups.threads(), 0, job.groups.cluster},
                long_kernel<Elements<T>, kKind>, job);
}

template <SoftmaxKind kKind>
Status run_softmax(const Call& call, const char* name, SoftmaxJob& job, bool any) {
  const auto start = [&]<class T>(T) {
    return any ? start_softmax_any<kKind, T>(call, name, job)
               : start_softmax<kKind, T>(call, name, job);
  };
  switch (job.x.any.dtype) {
    case DType::kBF16: return start(cuda::Bf16{});
    case DType::kF16: return start(cuda::F16{});
    default: return start(cuda::F32{});
  }
}
#endif

// x, out and mask (absent: no data) as the call has them.
inline SoftmaxJob softmax_job(const TensorView& x, const TensorView& mask, const TensorView& out,
                              int64_t dim, float scale) {
  SoftmaxJob job;
  const TensorView rows = rows_along(x, dim);
  const TensorView to = rows_along(out, dim);
  job.x = cuda::RowTensor(rows, cuda::row_distance(rows));
  job.out = cuda::RowTensor(to, cuda::row_distance(to));
  if (mask.data != nullptr) job.mask = cuda::RowTensor(rows_along(broadcast_to(mask, x), dim));
  job.groups.rows = numel(x) == 0 ? 0 : numel(x) / job.x.count;
  job.scale = scale;
  return job;
}

// Why the kernels that move 16 bytes at a time do not take a tensor's rows along dim.
inline std::string refuse_rows_along(const char* name, const TensorView& t, int64_t dim) {
  const TensorView rows = rows_along(t, dim);
  if (numel(t) == 0) return {};
  const int64_t n = rows.shape[rows.rank - 1];
  if (n % 8 != 0) return "a row has " + std::to_string(n) + " elements, no multiple of 8";
  if (n / 8 > (int64_t{1} << 27)) return "a row has more than 2^30 elements";
  return cuda::refuse_unaligned(name, rows);
}

// A mask's rows may share memory; within a row its elements are neighbours or one.
inline std::string refuse_mask(const TensorView& mask, const TensorView& x, int64_t dim) {
  if (numel(x) == 0) return {};
  const TensorView rows = rows_along(broadcast_to(mask, x), dim);
  const int64_t alignment = rows.strides[rows.rank - 1] == 0 ? dtype_bytes(mask.dtype) : 16;
  bool aligned = reinterpret_cast<uintptr_t>(mask.data) % static_cast<uintptr_t>(alignment) == 0;
  for (int d = 0; d + 1 < rows.rank; ++d) {
    aligned &= rows.shape[d] == 1 || rows.strides[d] * dtype_bytes(mask.dtype) % alignment == 0;
  }
  if (rows.strides[rows.rank - 1] <= 1 && rows.strides[rows.rank - 1] >= 0 && aligned) return {};
  return "mask has strides within its rows, or rows that do not start where 16 bytes can be loaded";
}

}  // namespace pestle::ops
