// Unfused epilogues on CUDA: alpha, bias, activation, pairs, gate, beta and residual over a GEMM's
// f32 output in a kernel of their own.
//
// Map      a thread 8 columns of out (and their partners), a CTA a part of one row, so that the
//          gate's row is the CTA's.
// Traffic  the GEMM's output once (4 bytes a column, 8 a pair), residual and out once; bias and
//          gate from the L2.
// Numerics f32, one rounding.
// Measured H200, 4608 x 24576 x 3072 with swiglu: 318 us after the GEMM, whose f32 out costs as
//          much as all of the fused kernel's epilogue (ops/gemm/matmul/matmul.md).
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/launch.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/operands/gemm_rows.cuh"
#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {
namespace {

using cuda::AnyTensor;

template <class Rows>
struct UnfusedJob {
  EvenRows sums;
  Rows out, residual, gate, bias;
  const char *alpha = nullptr, *beta = nullptr;
  int activation = 0, gated = 0;
  int64_t columns = 0, rows_per_gate = 1;
  int blocks_per_row = 1;
};

#ifdef __CUDACC__

__device__ float scalar_at(const char* p) {
  return p ? __uint_as_float(AnyTensor::bits(p, 4)) : 1.0f;
}

// Eight columns of the GEMM's output with alpha and bias.
template <class Rows>
__device__ void load_sums(const UnfusedJob<Rows>& job, int64_t row, int64_t column, int count,
                          float (&y)[8]) {
  float bias[8] = {};
  job.sums.load(row, column, count, y);
  if (job.bias.present()) job.bias.load(0, column, count, bias);
  const float alpha = scalar_at(job.alpha);
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = fmaf(y[i], alpha, bias[i]);
}

template <class Rows>
__global__ void __launch_bounds__(256)
    unfused_kernel(const __grid_constant__ UnfusedJob<Rows> job) {
  const int64_t row = blockIdx.x / job.blocks_per_row;
  const int part = blockIdx.x - static_cast<int>(row) * job.blocks_per_row;
  const int64_t column = (int64_t{part} * blockDim.x + threadIdx.x) * 8;
  if (column >= job.columns) return;
  const int count = static_cast<int>(min(job.columns - column, int64_t{8}));
  float y[8] = {}, other[8] = {};
  load_sums(job, row, column + (job.gated == 2 ? job.columns : 0), count, y);
  if (job.gated) load_sums(job, row, column + (job.gated == 1 ? job.columns : 0), count, other);
  hopper::activate_all(job.activation, y);
  if (job.gated) {
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] *= other[i];
  }
  if (job.gate.present()) {
    job.gate.load(row / job.rows_per_gate, column, count, other);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] *= other[i];
  }
  if (job.residual.present()) {
    const float beta = scalar_at(job.beta);
    job.residual.load(row, column, count, other);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = fmaf(other[i], beta, y[i]);
  }
  job.out.store(row, column, count, y);
}

#endif

// A tensor of matrices (of one row: rank 1); false where its strides are not even or its elements
// are split.
bool read_rows(const TensorView& t, EvenRows* rows) {
  if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_bytes(t.dtype)) != 0)
    return false;
  Stack s;
  if (t.rank < 2)
    s = {t.data, t.dtype, 1, row_length(t), 1, 0, t.rank == 0 ? 1 : t.strides[0], 0};
  else if (!make_stack(t, &s))
    return false;
  *rows = {float_matrix(s), std::max<int64_t>(s.rows, 1)};
  return true;
}
bool read_rows(const TensorView& t, StridedRows* rows) {
  rows->t = AnyTensor(t);
  return true;
}

// The last half's columns do not begin at a vector.
void stop_vectors(UnfusedJob<EvenRows>* job) { job->sums.t.aligned = job->bias.t.aligned = false; }
void stop_vectors(UnfusedJob<StridedRows>* job) { job->sums.t.aligned = false; }

// False: some tensor does not lie as Rows need it.
template <class Rows>
bool fill_job(const Call& call, const TensorView& sums, UnfusedJob<Rows>* job) {
  const int first = alpha_place(call);
  const TensorView& out = call.tensor(out_place(call));
  const std::pair<int, Rows*> tensors[] = {{out_place(call), &job->out},
                                           {first + 1, &job->bias},
                                           {first + 2, &job->residual},
                                           {first + kGatePlace, &job->gate}};
  for (const auto& [place, rows] : tensors)
    if (call.has(place) && !read_rows(call.tensor(place), rows)) return false;
  read_rows(sums, &job->sums);
  if (call.has(first)) job->alpha = call.tensor(first).as<char>();
  if (call.has(first + kBetaPlace)) job->beta = call.tensor(first + kBetaPlace).as<char>();
  job->activation = static_cast<int>(call.integer(first + 3));
  job->gated = static_cast<int>(call.integer(first + kGatedPlace));
  job->columns = row_length(out);
  if (job->gated && job->columns % 8 != 0) stop_vectors(job);
  if (call.has(first + kGatePlace))
    job->rows_per_gate = row_count(out) / row_count(call.tensor(first + kGatePlace));
  return true;
}

template <class Rows>
Status start(const Call& call, UnfusedJob<Rows> job, int64_t rows) {
  const int64_t units = cuda::ceil_div(job.columns, 8);
  const int threads = static_cast<int>(std::min<int64_t>(256, cuda::ceil_div(units, 32) * 32));
  job.blocks_per_row = static_cast<int>(cuda::ceil_div(units, threads));
  return cuda::launch(call, "unfused_epilogue", {rows * job.blocks_per_row, threads},
                      unfused_kernel<Rows>, job);
}

}  // namespace

Status run_unfused_on_cuda(const Call& call) {
  const TensorView& out = call.tensor(out_place(call));
  if (numel(out) == 0) return {};
  TensorView sums;
  PESTLE_TRY(run_gemm_alone(call, &sums));
  UnfusedJob<EvenRows> even;
  if (fill_job(call, sums, &even)) return start(call, even, row_count(out));
  UnfusedJob<StridedRows> strided;
  fill_job(call, sums, &strided);
  return start(call, strided, row_count(out));
}

}  // namespace pestle::ops
