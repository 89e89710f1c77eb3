// softmax, log_softmax and cross_entropy on CUDA: rows spread over groups of threads.
//   register_kernel       x as it is, in the registers of lanes, a CTA or a cluster
//                         (softmax_registers.cuh); what follows is for masks, scales and longer rows
//   short_kernel          a row of up to 1,024 elements (16k, where rows are few, and of any
//                         strides) in the registers of a warp's lanes or a CTA, as f32. Each warp
//                         takes its largest t, then sums exp(t - largest); one exchange of these
//                         pairs gives the row's
//   staged_kernel         a row in the shared memory of a CTA or a cluster (softmax_staged.cuh)
//   partly_staged_kernel  a longer one: as much of it as a cluster's shared memory holds
//   cooperative_kernel    longer rows as they are, by CTAs that all run at once
//                         (softmax_cooperative.cuh)
//   loss_kernel           a row that is read once and not written, by a CTA (loss_rows.cuh)
//   streamed_kernel       the same of f32, or with smoothed labels
//   long_kernel     parts of a row that are read again, backwards: what the L2 still holds comes
//                   first. Of any strides: rows longer than 16k, or that lie side by side.
#pragma once

#include "core/machine.h"
#include "ops/shared/rows_along.h"
#include "ops/softmax/loss_rows.cuh"
#include "ops/softmax/softmax_cooperative.cuh"
#include "ops/softmax/softmax_parts.cuh"
#include "ops/softmax/softmax_registers.cuh"
#include "ops/softmax/softmax_staged.cuh"

namespace pestle::ops {

#ifdef __CUDACC__
namespace softmax_device {

// Rows of one block: exponentials are kept, so that each element has one.
template <class Access, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, Access::kNeighbours ? 2 : 1)
    short_kernel(SoftmaxJob job) {
  cuda::wait_previous_kernel();
  __shared__ RowParts shared;
  RowPlace place = row_place(job.groups);
  Access::spread(place, job.out);
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
      if (Access::kNeighbours && !x.has(c, i)) t[c][i] = -kInfinity;
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

template <class Access, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, 2) long_kernel(SoftmaxJob job) {
  cuda::wait_previous_kernel();
  constexpr int kChunks = Access::kChunks;
  __shared__ RowParts shared;
  RowPlace place = row_place(job.groups);
  Access::spread(place, job.out);
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

// Rows that keep a GPU busy with a block each, and rows that never do.
constexpr int64_t kManyRows = 1024;
constexpr int64_t kFewRows = 132;

// Rows that warps hold in registers, at most.
constexpr int64_t kMostShortUnits = 128;

template <SoftmaxKind kKind, class T>
Status start_softmax(const Call& call, const char* name, SoftmaxJob& job) {
  using namespace softmax_device;
  const int64_t units = job.x.count / kUnit;
  const int64_t rows = job.groups.rows;
  const auto start = [&](auto* kernel) {
    return launch_early(call, name,
                        {job.groups.blocks(), job.groups.threads(), 0, job.groups.cluster}, kernel,
                        job);
  };
  const int most_blocks = units > kRowBlockUnits ? cluster_blocks(call) : 1;
  if constexpr (kKind == SoftmaxKind::kLoss) {
    // Without a second pass there is nothing to hold a row for.
    if constexpr (T::kBytes == 2) {
      if (rows >= kManyRows && job.loss.smoothing == 0) {
        job.groups.units = units;
        return launch_early(call, name, {rows, kLossThreads}, loss_kernel<T>, job);
      }
    }
    if (rows >= kManyRows || units <= kRowBlockUnits) {
      job.groups = RowGroups::block_a_row(rows, units, kStagedThreads);
      return launch_early(
          call, name, {job.groups.blocks(), job.groups.threads(), ring_bytes(job.groups.threads())},
          streamed_kernel<T>, job);
    }
  } else {
    auto in_registers = start_registers<T, kKind>(call, name, job);
    PESTLE_TRY(in_registers.status());
    if (in_registers.value()) return {};
    // Few rows of a block each are a matter of latency.
    const bool few = rows <= kFewRows && units <= kRowBlockUnits;
    if (few || units <= kMostShortUnits) {
      job.groups = RowGroups::holding(rows, units, 1, kRowThreads, kRowChunks);
      return start(short_kernel<Vectors<T>, kKind>);
    }
    const StagedRows staged = staged_rows(call, rows, units, T::kBytes);
    if (staged.groups.cluster > 0) {
      job.groups = staged.groups;
      return launch(
          call, name,
          {job.groups.blocks(), job.groups.threads(), staged.shared_bytes, job.groups.cluster},
          staged_kernel<T, kKind>, job);
    }
    auto started = start_partly_staged<T, kKind>(call, name, job);
    PESTLE_TRY(started.status());
    if (started.value()) return {};
  }
  job.groups = RowGroups::looping(rows, units, most_blocks);
  return start(long_kernel<Vectors<T>, kKind>);
}

template <SoftmaxKind kKind, class T>
Status start_softmax_any(const Call& call, const char* name, SoftmaxJob& job) {
  using namespace softmax_device;
  const int64_t rows = job.groups.rows, units = units_at_most(job.out);
  const bool apart = job.x.step != job.x.any.bytes && rows >= 1024;
  const auto start = [&](auto* kernel) {
    return launch_early(call, name,
                        {job.groups.blocks(), job.groups.threads(), 0, job.groups.cluster}, kernel,
                        job);
  };
  if (apart) {
    job.groups = RowGroups::one_thread(rows, units);
  } else if (units <= kRowBlockUnits) {
    job.groups = RowGroups::holding(rows, units, 1, kRowThreads, kRowChunks);
    if constexpr (kKind != SoftmaxKind::kLoss) return start(short_kernel<Elements<T>, kKind>);
  } else {
    job.groups = RowGroups::looping(rows, units, cluster_blocks(call));
  }
  return start(long_kernel<Elements<T>, kKind>);
}

// Where refuse_cooperative has nothing against it.
template <SoftmaxKind kKind, class T>
Status start_softmax_cooperative(const Call& call, const char* name, SoftmaxJob& job) {
  auto started = start_cooperative<T, kKind>(call, name, job);
  PESTLE_TRY(started.status());
  return started.value() ? Status() : start_softmax<kKind, T>(call, name, job);
}

template <SoftmaxKind kKind>
Status run_softmax_cooperative(const Call& call, const char* name, SoftmaxJob& job) {
  switch (job.x.any.dtype) {
    case DType::kBF16: return start_softmax_cooperative<kKind, cuda::Bf16>(call, name, job);
    case DType::kF16: return start_softmax_cooperative<kKind, cuda::F16>(call, name, job);
    default: return start_softmax_cooperative<kKind, cuda::F32>(call, name, job);
  }
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
