// What the kernels of softmax, log_softmax and cross_entropy have in common: the job, the partial
// result of a part of a row, masks, and what a row's elements need of the whole row.
#pragma once

#include "backends/cuda/device/numeric/exponential.cuh"
#include "backends/cuda/device/row/row_access.cuh"
#include "backends/cuda/device/tensor/any_f64.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/tensor_amax.h"

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

// What exponents are taken from: of a row of -infinity alone 0, so that its sum is 0 and not NaN.
__device__ inline float base_of(float largest) { return largest == -kInfinity ? 0.0f : largest; }

// largest: of t so far, NaN ignored (it arrives by the sum); sum: of exp(t - base_of(largest));
// total: of t, for smoothed labels; f64, since the loss needs its distance from the largest.
struct SoftmaxPart {
  float largest, sum;
  double total;

  __device__ static SoftmaxPart none() { return {-kInfinity, 0, 0}; }
  __device__ static SoftmaxPart from(float4 v) {
    return {v.x, v.y, __hiloint2double(__float_as_int(v.z), __float_as_int(v.w))};
  }
  __device__ float4 packed() const {
    return make_float4(largest, sum, __int_as_float(__double2hiint(total)),
                       __int_as_float(__double2loint(total)));
  }
  // Without the total.
  __device__ SoftmaxPart pair_over_lanes(int width) const {
    const float all = max_over_lanes(largest, width);
    const float scaled = sum * exp_of(largest - base_of(all));
    return {all, sum_over_lanes(scaled, width), 0};
  }
  __device__ SoftmaxPart over_lanes(int width) const {
    SoftmaxPart all = pair_over_lanes(width);
    all.total = total_over_lanes(width);
    return all;
  }
  __device__ double lse() const { return double{base_of(largest)} + double{logf(sum)}; }
  __device__ double total_over_lanes(int width) const {
    double all = total;
    for (int d = width / 2; d > 0; d /= 2) all += __shfl_xor_sync(~0u, all, d);
    return all;
  }
};

// The row of the mask that goes with p.row, and its elements by the pattern of the row's access.
template <class Access>
struct MaskRow {
  const char* row = nullptr;
  int64_t step = 0;
  DType dtype;
  bool is_aligned;

  __device__ MaskRow(const RowTensor& mask, const RowPlace& p)
      : dtype(mask.any.dtype), is_aligned(mask.is_aligned) {
    if (!mask.is_present || p.units == 0) return;
    step = mask.step;
    if constexpr (Access::kNeighbours)
      row = mask.any.row_at(p.row) + p.first * kUnit * step;
    else
      row = mask.row_at(p.row);
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
      const RowChunk its = access.chunk_of(row, step, is_aligned, chunk);
      F32::to_f32(RowChunk::load_as_f32(its, dtype), v);
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
    if (access.is_whole(chunk)) return;
    const unsigned present = access.present(chunk);
    for (int i = 0; i < kUnit; ++i) {
      if ((present >> i & 1) == 0) t[i] = -kInfinity;
    }
  }
}

__device__ inline float load_target_logit(const SoftmaxJob& job, int64_t row, int64_t target) {
  return job.x.any.load(job.x.any.at(row, target));
}

// By one thread of the row. The loss is made from differences to the largest logit, in f32.
__device__ inline void store_loss(const SoftmaxJob& job, int64_t row, const SoftmaxPart& part) {
  const LossJob& loss = job.loss;
  cuda::store_f64(loss.lse.element_at(row), part.lse());
  const int64_t target = loss.targets.load_integer(loss.targets.element_at(row));
  float value = __uint_as_float(formats::kF32Nan);
  if (target == loss.ignore_index) {
    value = 0;
  } else if (target >= 0 && target < job.x.count) {
    const float base = base_of(part.largest);
    float below = base - load_target_logit(job, row, target);
    if (loss.smoothing != 0) {
      const auto mean_below = static_cast<float>(base - part.total / job.x.count);
      below = __fmaf_rn(loss.smoothing, mean_below, (1 - loss.smoothing) * below);
    }
    value = below + logf(part.sum);
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
    for (int i = 0; i < kUnit; ++i) part.total += x.has(chunk, i) ? double{t[i]} : 0;
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

}  // namespace softmax_device
#endif

}  // namespace pestle::ops
