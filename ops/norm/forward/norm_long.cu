// The norms' rows that no cluster shares and no block's registers hold: GPUs without clusters, and
// what is too long for those with.
// Map      A block of 1024 threads a row. As much of the row as shared memory has room for comes
//          there by asynchronous copies, each thread's own pieces of 16 bytes; the rest is read
//          again from the L2 for each pass.
// Traffic  x once where it fits (80,000 16-bit elements of 164 KiB), else the rest of it two or
//          three times; out once; parameters out of the L2 once a row.
// Numerics norm_rows.h: f32; mean first, then squared differences from it.
// Measured H200, code of sm_90a, share of the copy: rms_norm 1024 x 65536 71 %, layer_norm 56, f32
//          512 x 65536 70.
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "ops/norm/forward/norm_job.cuh"
#include "ops/norm/forward/norm_long.h"
#include "ops/quant/rowwise/quantize_staged.cuh"

namespace pestle::ops {
namespace norm_device {
namespace {

constexpr int kLongThreads = 1024;

struct LongNorm {
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  char* out = nullptr;
  int64_t out_row_bytes = 0;
  Operand weight, bias, scale, shift;
  FastDivisor rows_of_group;
  int pieces = 0;  // of a row
  int kept = 0;    // of them in shared memory
  float eps = 0, share = 1;
  bool subtract_mean = false;
};

__device__ inline float block_sum(float v, float* warps) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = warps[threadIdx.x % 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
  return v;
}

// f(piece, bits) for the thread's pieces: those in shared memory, then the others, four at a time.
template <class F>
__device__ inline void each_piece(const LongNorm& p, const char* row, uint32_t own, F f) {
#pragma unroll 4
  for (int i = threadIdx.x, at = 0; i < p.kept; i += kLongThreads, ++at) {
    f(i, load_shared(own + at * (kLongThreads * kPieceBytes)));
  }
  int i = p.kept + threadIdx.x;
  for (; i + 3 * kLongThreads < p.pieces; i += 4 * kLongThreads) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = load16(row + int64_t{i + j * kLongThreads} * kPieceBytes);
#pragma unroll
    for (int j = 0; j < 4; ++j) f(i + j * kLongThreads, v[j]);
  }
  for (; i < p.pieces; i += kLongThreads) f(i, load16(row + int64_t{i} * kPieceBytes));
}

template <class T, class F>
__device__ inline float sum_over_pieces(const LongNorm& p, const char* row, uint32_t own, F f) {
  constexpr int kCount = kPieceBytes / T::kBytes;
  float sums[4] = {0, 0, 0, 0};
  each_piece(p, row, own, [&](int, const uint4& piece) {
    float v[kCount];
    unpack_piece<T>(piece, v);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sums[j % 4] = f(v[j], sums[j % 4]);
  });
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// v * (one + w) + b, where present.
template <int kCount>
__device__ inline void scale_and_shift(const Operand& w, const Operand& b, int row, float one,
                                       int first, float (&v)[kCount]) {
  if (w.data == nullptr && b.data == nullptr) return;
  const char* w_row = row_at(w.data, w.row_bytes, row);
  const char* b_row = row_at(b.data, b.row_bytes, row);
#pragma unroll
  for (int c = 0; c < kCount; c += 4) {
    const float4 none = make_float4(0, 0, 0, 0);
    const float4 x = w.data == nullptr ? none : four_of(w, w_row, first + c);
    const float4 y = b.data == nullptr ? none : four_of(b, b_row, first + c);
    const float a = w.data == nullptr ? 1.0f : one;
    v[c] = __fmaf_rn(v[c], a + x.x, y.x);
    v[c + 1] = __fmaf_rn(v[c + 1], a + x.y, y.y);
    v[c + 2] = __fmaf_rn(v[c + 2], a + x.z, y.z);
    v[c + 3] = __fmaf_rn(v[c + 3], a + x.w, y.w);
  }
}

template <class T>
__global__ void __launch_bounds__(kLongThreads) long_kernel(const __grid_constant__ LongNorm p) {
  constexpr int kCount = kPieceBytes / T::kBytes;
  extern __shared__ __align__(128) char shared[];
  __shared__ float warps[2][32];
  const int row_index = static_cast<int>(blockIdx.x);
  const char* row = row_at(p.x, p.x_row_bytes, row_index);
  uint32_t own = shared_place(shared) + threadIdx.x * kPieceBytes;
  asm volatile("" : "+r"(own));
  for (int i = threadIdx.x, at = 0; i < p.kept; i += kLongThreads, ++at) {
    copy_piece(own + at * (kLongThreads * kPieceBytes), row + int64_t{i} * kPieceBytes);
  }
  commit_copies();
  wait_for_copies<0>();
  float mean = 0;
  if (p.subtract_mean) {
    const float sum = sum_over_pieces<T>(p, row, own, [](float v, float s) { return s + v; });
    mean = block_sum(sum, warps[0]) * p.share;
  }
  const float squares = sum_over_pieces<T>(p, row, own, [mean](float v, float s) {
    const float d = v - mean;
    return __fmaf_rn(d, d, s);
  });
  const float rstd = rsqrtf(__fmaf_rn(block_sum(squares, warps[1]), p.share, p.eps));
  const int group = p.rows_of_group.divide(static_cast<uint32_t>(row_index));
  char* out = row_at(p.out, p.out_row_bytes, row_index);
  each_piece(p, row, own, [&](int piece, const uint4& bits) {
    float v[kCount];
    unpack_piece<T>(bits, v);
#pragma unroll
    for (float& one : v) one = (one - mean) * rstd;
    scale_and_shift(p.weight, p.bias, 0, 0.0f, piece * kCount, v);
    scale_and_shift(p.scale, p.shift, group, 1.0f, piece * kCount, v);
    row_quantizer::store_plain(out + int64_t{piece} * kPieceBytes,
                               row_quantizer::rounded_piece<T, false>(v));
  });
}

template <class T>
Status start(const Call& call, const char* name, LongNorm& job, const NormRows& n) {
  const int room = most_shared_bytes(device_index(call)) - (2 << 10);
  job.pieces = static_cast<int>(n.columns() * T::kBytes / kPieceBytes);
  job.kept = std::min(job.pieces, room / (kLongThreads * kPieceBytes) * kLongThreads);
  const int64_t bytes = ceil_div(job.kept, kLongThreads) * kLongThreads * kPieceBytes;
  PESTLE_TRY(allow_shared(call, long_kernel<T>, static_cast<int>(bytes)));
  return launch(call, name, {n.rows(), kLongThreads, static_cast<size_t>(bytes)}, long_kernel<T>,
                job);
}

}  // namespace

Status start_long_norm(const Call& call, const char* name, const NormRows& n) {
  LongNorm job;
  job.x = n.x.as<const char>();
  job.x_row_bytes = row_distance(n.x);
  job.out = n.out.as<char>();
  job.out_row_bytes = row_distance(n.out);
  job.weight = Operand(n.weight);
  job.bias = Operand(n.bias);
  job.scale = Operand(n.scale);
  job.shift = Operand(n.shift);
  const TensorView& of_groups = n.scale.data ? n.scale : n.shift;
  const int64_t groups = of_groups.data ? row_count(of_groups) : 1;
  job.rows_of_group = FastDivisor(static_cast<uint32_t>(n.rows() / groups));
  job.eps = n.eps;
  job.share = 1.0f / static_cast<float>(n.columns());
  job.subtract_mean = n.subtract_mean;
  switch (n.x.dtype) {
    case DType::kBF16: return start<Bf16>(call, name, job, n);
    case DType::kF16: return start<F16>(call, name, job, n);
    default: return start<F32>(call, name, job, n);
  }
}

}  // namespace norm_device
}  // namespace pestle::ops
