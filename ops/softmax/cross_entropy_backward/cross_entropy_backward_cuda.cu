// cross_entropy_backward on CUDA.
// Map      four pieces of 16 bytes a thread, a block of 128 threads a slice of a row: its three
//          numbers, at fixed distances, are asked for behind the pieces. _any: any strides,
//          by 16 bytes but for the rows' ends where d_logits' elements are neighbours.
// Traffic  logits and d_logits once; three numbers a row.
// Numerics f32: d_loss * (e^(logit - lse) - (1 - s) * [class is the target] - s / N), in this
//          order; lse = high + low, e^(logit - lse) as ex2.approx((logit - high) * log2 e - low *
//          log2 e) with one fma, below 2^-126 0.
// Measured H200, share of the tuned copy: bf16 [16384, 32000] 499.5 us, 98 %, [8192, 128256] 97 %,
//          f32 [4096, 128256] 97 %.
#include <cfloat>

#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_f64.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/softmax/cross_entropy_backward/cross_entropy_backward_spec.h"
#include "ops/softmax/softmax_rows.cuh"

namespace pestle::ops::cross_entropy_backward {
namespace {

using namespace pestle::cuda;

constexpr int kGrad = arg_index(spec, "d_loss");
constexpr int kLogits = arg_index(spec, "logits");
constexpr int kTarget = arg_index(spec, "target");
constexpr int kLse = arg_index(spec, "lse");
constexpr int kDlogits = arg_index(spec, "d_logits");
constexpr int kIgnore = arg_index(spec, "ignore_index");
constexpr int kSmoothing = arg_index(spec, "label_smoothing");

constexpr int kThreads = 128;
constexpr int kPieces = 4;  // of 16 bytes, of a thread

struct Job {
  RowGroups groups;
  RowTensor logits, d_logits;
  AnyTensor d_loss, target, lse;
  int64_t ignore_index;
  float own, shared;  // what the target's class loses, and every class
};

// A row's class, by a whole word where it lies so.
__device__ int64_t class_of(const AnyTensor& t, int64_t row) {
  const char* p = t.element_at(row);
  if (reinterpret_cast<uintptr_t>(p) % t.bytes != 0) return t.load_integer(p);
  if (t.dtype == DType::kI32) return __ldg(reinterpret_cast<const int32_t*>(p));
  return __ldg(reinterpret_cast<const long long*>(p));
}

// A row's lse as f32 takes it: logit - high is exact near it, and what high lacks is added in the
// fma that makes an exponent of two.
struct LseParts {
  float high, low_log2;

  __device__ explicit LseParts(double lse) : high(static_cast<float>(lse)) {
    const auto low = static_cast<float>(lse - double{high});
    low_log2 = fabsf(high) <= FLT_MAX ? -low * kLog2E : 0;  // Inf - Inf is no part
  }
  __device__ float probability(float logit) const {
    return quick_exp2(__fmaf_rn(logit - high, kLog2E, low_log2));
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) any_kernel(Job job) {
  wait_previous_kernel();
  using Access = Elements<T>;
  RowPlace place = row_place(job.groups);
  Access::spread(place, job.d_logits);
  const Access x(job.logits, place);
  typename Access::Raw raw[kRowChunks];
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) raw[c] = x.load(c);
  const int64_t target = class_of(job.target, place.row);
  const LseParts lse(cuda::load_f64(job.lse.element_at(place.row)));
  float d_loss = job.d_loss.load(job.d_loss.element_at(place.row));
  const bool is_ignored = target == job.ignore_index;
  if (!is_ignored && (target < 0 || target >= job.logits.count)) {
    d_loss = __uint_as_float(formats::kF32Nan);
  }
  const Access to(job.d_logits, place);
  if (is_ignored) {
    const float v[kUnit] = {};
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) to.store(c, v);
    return;
  }
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    float v[kUnit];
    Access::values(raw[c], v);
    for (int i = 0; i < kUnit; ++i) v[i] = lse.probability(v[i]);
    if (target >= x.element(c, 0) && target <= x.element(c, kUnit - 1)) {
      for (int i = 0; i < kUnit; ++i) {
        if (x.element(c, i) == target) v[i] -= job.own;
      }
    }
    for (int i = 0; i < kUnit; ++i) v[i] = d_loss * (v[i] - job.shared);
    to.store(c, v);
  }
}

// ---- rows of 16-byte pieces, their numbers at fixed distances ----

struct RowsJob {
  const char *logits, *d_loss, *target, *lse;
  char* d_logits;
  int64_t logits_step, d_logits_step, d_loss_step, target_step, lse_step;  // bytes, of rows
  int64_t classes, ignore_index;
  FastDivisor slices;  // of a row
  int pieces;          // of a row
  float own, shared;
  bool is_short;  // targets are i32
};

template <class T>
__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ RowsJob job) {
  using softmax_device::Piece;
  constexpr int kCount = Piece<T>::kCount;
  wait_previous_kernel();
  const uint32_t row = job.slices.divide(blockIdx.x);
  const int first = static_cast<int>(blockIdx.x - row * job.slices.divisor) * (kPieces * kThreads) +
                    static_cast<int>(threadIdx.x);
  const char* x = job.logits + row * job.logits_step + first * int64_t{16};
  const int left = job.pieces - first;
  uint4 raw[kPieces];
#pragma unroll
  for (int c = 0; c < kPieces; ++c) {
    if (c * kThreads < left) raw[c] = *reinterpret_cast<const uint4*>(x + c * kThreads * 16);
  }
  const char* target_at = job.target + row * job.target_step;
  const int64_t target = job.is_short ? *reinterpret_cast<const int32_t*>(target_at)
                                      : *reinterpret_cast<const int64_t*>(target_at);
  const LseParts lse(*reinterpret_cast<const double*>(job.lse + row * job.lse_step));
  float d_loss = *reinterpret_cast<const float*>(job.d_loss + row * job.d_loss_step);
  char* out = job.d_logits + row * job.d_logits_step + first * int64_t{16};
  if (target == job.ignore_index) {
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      if (c * kThreads < left) store16(out + c * kThreads * 16, make_uint4(0, 0, 0, 0));
    }
    return;
  }
  if (target < 0 || target >= job.classes) d_loss = __uint_as_float(formats::kF32Nan);
  const int own_piece = static_cast<int>(target / kCount) - first;  // of no thread: anywhere else
#pragma unroll
  for (int c = 0; c < kPieces; ++c) {
    if (c * kThreads >= left) break;
    float v[kCount];
    Piece<T>::values(raw[c], v);
#pragma unroll
    for (float& e : v) e = lse.probability(e);
    if (own_piece == c * kThreads) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i == target % kCount) v[i] -= job.own;
      }
    }
#pragma unroll
    for (float& e : v) e = d_loss * (e - job.shared);
    // Without a hint: evict-first stores cost 0.5 %, since as much is written as read.
    *reinterpret_cast<uint4*>(out + c * kThreads * 16) = Piece<T>::packed(v);
  }
}

// Bytes between a row's number and the next row's, if they are the same all over; else -1.
int64_t step_of(const TensorView& t) {
  const int64_t bytes = dtype_bytes(t.dtype);
  int64_t step = 0, rows = 1;
  for (int d = t.rank - 1; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (rows == 1) step = t.strides[d];
    if (t.strides[d] != step * rows) return -1;
    rows *= t.shape[d];
  }
  const bool aligned =
      reinterpret_cast<uintptr_t>(t.as<char>()) % static_cast<uintptr_t>(bytes) == 0;
  return aligned && step >= 0 ? step * bytes : -1;
}

template <class T>
Status start_rows(const Call& call, RowsJob& job, int64_t rows) {
  const int64_t slices = ceil_div(job.pieces, kPieces * kThreads);
  job.slices = FastDivisor(static_cast<uint32_t>(slices));
  return launch_early(call, spec.name, {rows * slices, kThreads}, rows_kernel<T>, job);
}

Status run(const Call& call) {
  const TensorView &logits = call.tensor(kLogits), &d_logits = call.tensor(kDlogits);
  if (numel(logits) == 0) return {};
  const int64_t n = logits.shape[logits.rank - 1];
  RowsJob job{};
  job.logits = logits.as<char>();
  job.d_logits = d_logits.as<char>();
  job.d_loss = call.tensor(kGrad).as<char>();
  job.target = call.tensor(kTarget).as<char>();
  job.lse = call.tensor(kLse).as<char>();
  job.logits_step = row_distance(logits);
  job.d_logits_step = row_distance(d_logits);
  job.d_loss_step = step_of(call.tensor(kGrad));
  job.target_step = step_of(call.tensor(kTarget));
  job.lse_step = step_of(call.tensor(kLse));
  job.classes = n;
  job.ignore_index = call.integer(kIgnore);
  job.pieces = static_cast<int>(n * dtype_bytes(logits.dtype) / 16);
  job.own = 1 - call.number(kSmoothing);
  job.shared = call.number(kSmoothing) / static_cast<float>(n);
  job.is_short = call.tensor(kTarget).dtype == DType::kI32;
  const int64_t rows = numel(logits) / n;
  switch (logits.dtype) {
    case DType::kBF16: return start_rows<Bf16>(call, job, rows);
    case DType::kF16: return start_rows<F16>(call, job, rows);
    default: return start_rows<F32>(call, job, rows);
  }
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& logits = call.tensor(kLogits);
  for (int index : {kLogits, kDlogits}) {
    std::string why =
        refuse_rows_along(spec.args[static_cast<size_t>(index)].name, call.tensor(index), -1);
    if (!why.empty()) return why;
  }
  for (int index : {kGrad, kTarget, kLse}) {
    if (step_of(call.tensor(index)) >= 0) continue;
    return std::string(spec.args[static_cast<size_t>(index)].name) +
           " has rows' numbers at different distances, or not where whole words are";
  }
  const int64_t pieces = std::max<int64_t>(1, logits.shape[logits.rank - 1]) * 4 / 16;
  if (numel(logits) > 0 &&
      numel(logits) / logits.shape[logits.rank - 1] * ceil_div(pieces, kPieces * kThreads) >
          INT_MAX) {
    return "2^31 blocks or more";
  }
  return {};
}

Status run_any(const Call& call) {
  const TensorView& logits = call.tensor(kLogits);
  const TensorView& d_logits = call.tensor(kDlogits);
  const float smoothing = call.number(kSmoothing);
  Job job;
  job.logits = RowTensor(logits, row_distance(logits));
  job.d_logits = RowTensor(d_logits, row_distance(d_logits));
  job.d_loss = AnyTensor(call.tensor(kGrad));
  job.target = AnyTensor(call.tensor(kTarget));
  job.lse = AnyTensor(call.tensor(kLse));
  job.ignore_index = call.integer(kIgnore);
  job.own = 1 - smoothing;
  job.shared = smoothing / static_cast<float>(job.logits.count);
  job.groups =
      RowGroups::sliced(numel(logits) / job.logits.count, units_at_most(job.d_logits), kThreads);
  const Grid grid{job.groups.blocks(), kThreads};
  const auto start = [&]<class T>(T) {
    return launch_early(call, "cross_entropy_backward_any", grid, any_kernel<T>, job);
  };
  switch (logits.dtype) {
    case DType::kBF16: return start(Bf16{});
    case DType::kF16: return start(F16{});
    default: return start(F32{});
  }
}

constexpr Impl kImpls[] = {
    {.id = "cuda/cross_entropy_backward",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/cross_entropy_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::cross_entropy_backward
