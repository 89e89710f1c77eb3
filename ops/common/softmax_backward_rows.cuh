// Backward of softmax and log_softmax on CUDA, from the result: one sum along each row, then one
// multiplication an element. Rows as in softmax_rows.cuh: held in registers, or read twice.
#pragma once

#include "ops/common/softmax_rows.cuh"

namespace pestle::ops {

struct SoftmaxBackwardJob {
  cuda::RowGroups groups;
  cuda::RowTensor d_out, out, d_x;
  float scale = 1;
};

#ifdef __CUDACC__
namespace softmax_device {

struct SumPart {
  float sum;
  __device__ static SumPart none() { return {0}; }
  __device__ static SumPart from(float4 v) { return {v.x}; }
  __device__ float4 packed() const { return make_float4(sum, 0, 0, 0); }
  __device__ SumPart over_lanes(int width) const { return {sum_over_lanes(sum, width)}; }
};

template <SoftmaxKind kKind>
__device__ void add_terms(const float (&d_out)[kUnit], const float (&out)[kUnit],
                          float (&sums)[2]) {
  for (int i = 0; i < kUnit; ++i) {
    if constexpr (kKind == SoftmaxKind::kSoftmax)
      sums[i % 2] = __fmaf_rn(d_out[i], out[i], sums[i % 2]);
    else
      sums[i % 2] += d_out[i];
  }
}

template <SoftmaxKind kKind>
__device__ void to_gradient(float (&d_out)[kUnit], const float (&out)[kUnit], float sum,
                            float scale) {
  for (int i = 0; i < kUnit; ++i) {
    if constexpr (kKind == SoftmaxKind::kSoftmax)
      d_out[i] = (out[i] * (d_out[i] - sum)) * scale;
    else
      d_out[i] = __fmaf_rn(-exp_of(out[i]), sum, d_out[i]) * scale;
  }
}

template <class T>
constexpr int kBackwardThreads = T::kBytes == 2 ? 512 : 128;

// Two rows of 16-bit elements take half the registers of two rows of f32.
template <class Access>
constexpr int kBackwardBlocks = sizeof(typename Access::Raw) <= 16 ? 2 : 1;

template <class Access, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, kBackwardBlocks<Access>)
    held_backward_kernel(SoftmaxBackwardJob job) {
  __shared__ RowParts shared;
  const RowPlace place = row_place(job.groups);
  begin_row(place);
  const Access d_out(job.d_out, place);
  const Access out(job.out, place);
  typename Access::Raw raw[2][kRowChunks];
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    raw[0][c] = d_out.load(c);
    raw[1][c] = out.load(c);
  }
  float sums[2] = {};
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    float v[2][kUnit];
    Access::values(raw[0][c], v[0]);
    Access::values(raw[1][c], v[1]);
    add_terms<kKind>(v[0], v[1], sums);
  }
  const SumPart own = SumPart{sums[0] + sums[1]}.over_lanes(min(place.lanes, 32));
  const float sum = join_row(place, own, shared).sum;
  if (place.row >= job.groups.rows) return;
  const Access d_x(job.d_x, place);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    float v[2][kUnit];
    Access::values(raw[0][c], v[0]);
    Access::values(raw[1][c], v[1]);
    to_gradient<kKind>(v[0], v[1], sum, job.scale);
    d_x.store(c, v[0]);
  }
}

// body(chunk, d_out, out) over `kStep` chunks from `first` on, loads first.
template <class Access, class Body>
__device__ void each_pair(const Access& d_out, const Access& out, int first, Body&& body) {
  constexpr int kStep = Access::kNeighbours ? 2 : 1;
  typename Access::Raw raw[2][kStep];
#pragma unroll
  for (int c = 0; c < kStep; ++c) {
    raw[0][c] = d_out.load(first + c);
    raw[1][c] = out.load(first + c);
  }
#pragma unroll
  for (int c = 0; c < kStep; ++c) {
    float v[2][kUnit];
    Access::values(raw[0][c], v[0]);
    Access::values(raw[1][c], v[1]);
    body(first + c, v[0], v[1]);
  }
}

template <class Access, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, 2) long_backward_kernel(SoftmaxBackwardJob job) {
  constexpr int kStep = Access::kNeighbours ? 2 : 1;
  __shared__ RowParts shared;
  const RowPlace place = row_place(job.groups);
  begin_row(place);
  const Access d_out(job.d_out, place);
  const Access out(job.out, place);
  float sums[2] = {};
  for (int first = 0; first < place.chunks; first += kStep) {
    each_pair(d_out, out, first,
              [&](int, float(&g)[kUnit], float(&y)[kUnit]) { add_terms<kKind>(g, y, sums); });
  }
  const SumPart own = SumPart{sums[0] + sums[1]}.over_lanes(min(place.lanes, 32));
  const float sum = join_row(place, own, shared).sum;
  if (place.row >= job.groups.rows) return;
  const Access d_x(job.d_x, place);
  for (int first = (place.chunks - 1) / kStep * kStep; first >= 0; first -= kStep) {
    each_pair(d_out, out, first, [&](int c, float(&g)[kUnit], float(&y)[kUnit]) {
      to_gradient<kKind>(g, y, sum, job.scale);
      d_x.store(c, g);
    });
  }
}

}  // namespace softmax_device

template <SoftmaxKind kKind, class T>
Status start_softmax_backward(const Call& call, const char* name, SoftmaxBackwardJob& job,
                              bool any) {
  using namespace softmax_device;
  const int64_t rows = job.groups.rows;
  const int64_t units = ceil_div(job.out.count, kUnit);
  const int most_blocks = units > kBackwardThreads<T> * kRowChunks ? cluster_blocks(call) : 1;
  const auto start = [&](auto* kernel) {
    return launch(call, name, {job.groups.blocks(), job.groups.threads(), 0, job.groups.cluster},
                  kernel, job);
  };
  if (any) {
    const bool apart = job.out.step != job.out.any.bytes && rows >= 1024;
    job.groups =
        apart ? RowGroups::one_thread(rows, units) : RowGroups::looping(rows, units, most_blocks);
    return start(long_backward_kernel<Elements<T>, kKind>);
  }
  // Small blocks first: several on a multiprocessor overlap their loads and stores.
  for (int threads : {kBackwardThreads<T>, kRowThreads}) {
    job.groups = RowGroups::holding(rows, units, most_blocks, threads, kRowChunks);
    if (job.groups.cluster > 0) return start(held_backward_kernel<Vectors<T>, kKind>);
  }
  job.groups = RowGroups::looping(rows, units, most_blocks);
  return start(long_backward_kernel<Vectors<T>, kKind>);
}

template <SoftmaxKind kKind>
Status run_softmax_backward(const Call& call, const char* name, SoftmaxBackwardJob& job, bool any) {
  switch (job.out.any.dtype) {
    case DType::kBF16: return start_softmax_backward<kKind, cuda::Bf16>(call, name, job, any);
    case DType::kF16: return start_softmax_backward<kKind, cuda::F16>(call, name, job, any);
    default: return start_softmax_backward<kKind, cuda::F32>(call, name, job, any);
  }
}
#endif

inline SoftmaxBackwardJob softmax_backward_job(const TensorView& d_out, const TensorView& out,
                                               const TensorView& d_x, int64_t dim, float scale) {
  SoftmaxBackwardJob job;
  const auto rows = [&](const TensorView& t) {
    const TensorView moved = rows_along(t, dim);
    return cuda::RowTensor(moved, cuda::row_distance(moved));
  };
  job.d_out = rows(d_out);
  job.out = rows(out);
  job.d_x = rows(d_x);
  job.groups.rows = numel(out) == 0 ? 0 : numel(out) / job.out.count;
  job.scale = scale;
  return job;
}

}  // namespace pestle::ops
