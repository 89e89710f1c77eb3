// The GEMM for whatever the fast kernels refuse (implementations named _any): any strides, dtypes,
// byte offsets.
// Map      A thread a result, tiles of 16 x 16 through shared memory, sums along k in one order.
// Traffic  a and b once for each 16 columns or rows of out.
// Numerics f32 sums (exact integers for i8), scaled by blocks of 128 of k where scales are, then
//          the epilogue in f32, one rounding.
#pragma once

#include <cmath>
#include <type_traits>

#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/launch.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"

namespace pestle::ops {

using cuda::AnyTensor;

// Decode scales: of all (rows_per_scale 0), of each row, or of blocks of 128 of k.
struct FallbackScale {
  AnyTensor t;
  int64_t rows_per_scale = 0;
  bool blocks = false;
#ifdef __CUDACC__
  // Of a block an infinite one is NaN: it is a factor of terms, which may be 0 or of both signs.
  __device__ float at(int64_t row, int64_t k) const {
    const float f = t.load(t.at(rows_per_scale ? row / rows_per_scale : 0, blocks ? k / 128 : 0));
    return blocks && fabsf(f) == INFINITY ? NAN : f;
  }
#endif
};

struct FallbackGemm {
  AnyTensor a, b, out, bias, residual;
  FallbackScale scale_a, scale_b;
  const char* alpha = nullptr;
  bool b_is_rows = false;  // b is [N, K]
  int activation = 0;
  int64_t m = 0, n = 0, k = 0, m_tiles = 0, n_tiles = 0;
};

constexpr int kEdgeOfTile = 16;

#ifdef __CUDACC__

template <class T>
__device__ T load_fallback(const AnyTensor& t, const char* p) {
  if constexpr (std::is_same_v<T, int>) return static_cast<int8_t>(*p);
  if (t.dtype == DType::kE4M3)
    return formats::f32_from_code<formats::E4m3>(static_cast<uint8_t>(*p));
  if (t.dtype == DType::kE5M2)
    return formats::f32_from_code<formats::E5m2>(static_cast<uint8_t>(*p));
  return t.load(p);
}

__device__ inline float activate_fallback(int activation, float y) {
  switch (activation) {
    case 1: return 0.5f * y * (1.0f + erff(y * 0.70710678118654752440f));
    case 2: return 0.5f * y * (1.0f + tanhf(0.79788456080286535588f * (y + 0.044715f * y * y * y)));
    case 3: return y / (1.0f + expf(-y));
    default: return y;
  }
}

__device__ inline void finish_fallback(const FallbackGemm& job, int64_t batch, int64_t m, int64_t n,
                                       float sum) {
  if (job.alpha) sum *= __uint_as_float(AnyTensor::bits(job.alpha, 4));
  if (job.bias.data) sum += job.bias.load(job.bias.at(0, n));
  sum = activate_fallback(job.activation, sum);
  if (job.residual.data) sum += job.residual.load(job.residual.at(batch * job.m + m, n));
  job.out.store(job.out.at(batch * job.m + m, n), sum);
}

// T: float, or int for codes of i8.
template <class T>
__global__ void __launch_bounds__(kEdgeOfTile* kEdgeOfTile)
    fallback_gemm_kernel(const __grid_constant__ FallbackGemm job) {
  using Total = std::conditional_t<std::is_same_v<T, int>, int64_t, float>;
  __shared__ T a[kEdgeOfTile][kEdgeOfTile + 1];
  __shared__ T b[kEdgeOfTile][kEdgeOfTile + 1];
  const int x = threadIdx.x % kEdgeOfTile;
  const int y = threadIdx.x / kEdgeOfTile;
  const int64_t tiles = job.m_tiles * job.n_tiles;
  const int64_t batch = blockIdx.x / tiles;
  const int64_t tile = blockIdx.x % tiles;
  const int64_t m = tile / job.n_tiles * kEdgeOfTile + y;
  const int64_t n = tile % job.n_tiles * kEdgeOfTile + x;
  const bool exists = m < job.m && n < job.n;
  Total total = 0;
  for (int64_t k0 = 0; k0 < job.k; k0 += kEdgeOfTile) {
    const int64_t ka = k0 + x, kb = k0 + y;
    a[y][x] =
        m < job.m && ka < job.k ? load_fallback<T>(job.a, job.a.at(batch * job.m + m, ka)) : T(0);
    b[y][x] = n < job.n && kb < job.k
                  ? load_fallback<T>(
                        job.b, job.b_is_rows ? job.b.at(n, kb) : job.b.at(batch * job.k + kb, n))
                  : T(0);
    __syncthreads();
    T sum = 0;
    if constexpr (std::is_same_v<T, int>) {
      for (int i = 0; i < kEdgeOfTile; ++i) sum += a[y][i] * b[i][x];
    } else {
      const int steps = static_cast<int>(min(job.k - k0, int64_t{kEdgeOfTile}));
      if (!job.scale_a.blocks) sum = total;
      for (int i = 0; i < steps; ++i) sum = fmaf(a[y][i], b[i][x], sum);
      if (job.scale_a.blocks && exists) sum = sum * job.scale_a.at(m, k0) * job.scale_b.at(n, k0);
      if (!job.scale_a.blocks) total = 0;
    }
    total += sum;
    __syncthreads();
  }
  if (!exists) return;
  auto value = static_cast<float>(total);
  if (job.scale_a.t.data && !job.scale_a.blocks)
    value = value * job.scale_a.at(m, 0) * job.scale_b.at(n, 0);
  finish_fallback(job, batch, m, n, value);
}

#endif

inline AnyTensor optional_tensor(const Call& call, int index) {
  return call.has(index) ? AnyTensor(call.tensor(index)) : AnyTensor();
}

// Out, the epilogue and the tiles. Arguments alpha, bias, residual, activation stand side by side
// from `epilogue` on; m, n of out are there.
inline void fill_fallback_gemm(const Call& call, int out, int epilogue, FallbackGemm* job) {
  job->out = AnyTensor(call.tensor(out));
  job->bias = optional_tensor(call, epilogue + 1);
  job->residual = optional_tensor(call, epilogue + 2);
  job->alpha = call.has(epilogue) ? call.tensor(epilogue).as<char>() : nullptr;
  job->activation = static_cast<int>(call.integer(epilogue + 3));
  job->m_tiles = cuda::ceil_div(job->m, kEdgeOfTile);
  job->n_tiles = cuda::ceil_div(job->n, kEdgeOfTile);
}

template <class T>
Status run_fallback_gemm(const Call& call, const char* name, int out, int epilogue,
                         FallbackGemm job) {
  const TensorView& o = call.tensor(out);
  if (numel(o) == 0) return {};
  fill_fallback_gemm(call, out, epilogue, &job);
  const int64_t batches = numel(o) / (job.m * job.n);
  return cuda::launch(call, name, {batches * job.m_tiles * job.n_tiles, kEdgeOfTile * kEdgeOfTile},
                      fallback_gemm_kernel<T>, job);
}

}  // namespace pestle::ops
