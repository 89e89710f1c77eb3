// What the kernels of norm_backward.cu are told, and the pieces that they are made of: copies ahead
// of use, columns of any dtype, numbers passed between the blocks of a cluster.
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/norm/backward/norm_backward.h"

namespace pestle::ops::norm_gradients {

using namespace pestle::cuda;

// Sums that runs leave behind; d_shift shares kBiasSum: no op has both.
enum Array { kWeightSum, kBiasSum, kGateSum, kScaleSum, kArrays };

// What a kernel keeps: products with y; and sums; and (residuals, gate) products with x. kGated:
// as kResiduals, with gate and residual both there.
// kSharedSums: as kSums, what rows share, (1 + scale) * weight, as f32 in shared memory, which lets
// 16 warps run where registers let 8 to 12.
enum Kind { kProducts, kSums, kResiduals, kSharedSums, kGated };
PESTLE_HD constexpr bool is_general(int kind) { return kind == kResiduals || kind == kGated; }

template <class T, int kKind>
struct Limits {
  static constexpr int kWide = 16 / T::kBytes;  // columns of a unit: 16 bytes
  static constexpr int kOperands = is_general(kKind) ? 4 : 2;
  static constexpr int kUnits = is_general(kKind) ? 2 : 4;
  static constexpr int kThreads =
      is_general(kKind) || (kKind == kSums && T::kBytes == 2) ? 384 : 512;  // of a block
  static constexpr int kThreadBytes = kUnits * kOperands * 16;              // of a row
  static constexpr int kNumbers = kKind == kProducts ? 2 : 4;  // that a row's threads add up
  static constexpr int kSharedBytes = kKind == kSharedSums ? kUnits * kWide * 4 : 0;  // of a lane
};
inline constexpr int kMostWarps = 16;   // of a block
inline constexpr int kMostBlocks = 16;  // of a cluster
inline constexpr int kMostStages = 5;
inline constexpr int kMostSubgroups = 16;

struct Side {
  char* data = nullptr;
  int64_t row_bytes = 0;
  DType dtype = DType::kNone;

  Side() = default;
  explicit Side(const TensorView& t) {
    if (t.data == nullptr) return;
    data = t.as<char>();
    row_bytes = t.rank == 1 ? 0 : row_distance(t);
    dtype = t.dtype;
  }
#ifdef __CUDACC__
  __device__ char* row(int64_t r) const { return data + r * row_bytes; }
#endif
};

// How threads share rows; made on the host.
struct ThreadPlan {
  int units = 0;       // of a row
  int lanes = 32;      // threads of a subgroup, whole warps
  int subgroups = 1;   // of a block; 1 if there are clusters
  int cluster = 1;     // blocks that share a row
  int stages = 3;      // rows of a subgroup in shared memory, before what rows share
  int join = 32;       // lanes that join the warps' parts: a power of two
  bool whole = false;  // every thread's every unit exists

  int threads() const { return lanes * subgroups; }
  PESTLE_HD int warps() const { return lanes / 32; }
  PESTLE_HD int slots() const { return warps() * cluster; }  // parts of a row's sums
};

struct GradientJob {
  ThreadPlan plan;
  RowRuns runs;
  int64_t row_step;  // from one of a subgroup's rows to the next
  FastDivisor rows_of_group;
  Side x, d_out, residual, d_residual_out, d_x, d_residual;
  Side gate, weight, scale;       // of any dtype
  Side d_gate, d_scale, d_shift;  // written by runs that hold whole groups
  float* sums;                    // of runs: kArrays rows of K floats each
  int64_t columns;
  float eps, one_by_count;
  bool subtract_mean;
  bool keeps_weight;  // d_weight is wanted
};

#ifdef __CUDACC__

// 16 bytes to shared memory, without a register, once `read` is known: what lay there before.
__device__ inline void copy_ahead(uint32_t to, const void* from, uint32_t read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16; // after %2" ::"r"(to), "l"(from),
               "r"(read)
               : "memory");
}
// Until all but `pending` groups are there.
__device__ inline void wait_copies(int pending) {
  switch (pending) {
    case 1: wait_for_copies<1>(); break;
    case 2: wait_for_copies<2>(); break;
    case 3: wait_for_copies<3>(); break;
    case 4: wait_for_copies<4>(); break;
    default: wait_for_copies<0>(); break;
  }
}

// kWide neighbours of a tensor whose dtype only the launch knows.
template <int kWide>
__device__ inline void load_columns(const Side& t, const char* row, int unit, float (&v)[kWide]) {
  if (t.dtype == DType::kF32) {
#pragma unroll
    for (int k = 0; k < kWide / 4; ++k) {
      const uint4 w = load16(row + (unit * kWide + k * 4) * 4);
      v[4 * k] = __uint_as_float(w.x);
      v[4 * k + 1] = __uint_as_float(w.y);
      v[4 * k + 2] = __uint_as_float(w.z);
      v[4 * k + 3] = __uint_as_float(w.w);
    }
    return;
  }
  uint4 raw = make_uint4(0, 0, 0, 0);
  if constexpr (kWide == kUnit) {
    raw = load16(row + unit * 16);
  } else {
    const uint2 half = __ldg(reinterpret_cast<const uint2*>(row + unit * 8));
    raw.x = half.x;
    raw.y = half.y;
  }
  float all[kUnit];
  if (t.dtype == DType::kBF16)
    Bf16::to_f32({raw}, all);
  else
    F16::to_f32({raw}, all);
  for (int j = 0; j < kWide; ++j) v[j] = all[j];
}
// One of them.
__device__ inline float load_column(const Side& t, const char* row, int j) {
  if (t.dtype == DType::kF32) return __ldg(reinterpret_cast<const float*>(row) + j);
  const uint16_t raw = __ldg(reinterpret_cast<const uint16_t*>(row) + j);
  return t.dtype == DType::kBF16 ? formats::f32_from_bf16(raw) : formats::f32_from_f16(raw);
}
template <int kWide>
__device__ inline void store_columns(const Side& t, char* row, int unit, const float (&v)[kWide]) {
  if (t.dtype == DType::kF32) {
    for (int j = 0; j < kWide; ++j) {
      reinterpret_cast<uint32_t*>(row)[unit * kWide + j] =
          v[j] != v[j] ? formats::kF32Nan : __float_as_uint(v[j]);
    }
    return;
  }
  for (int j = 0; j < kWide; ++j) {
    reinterpret_cast<uint16_t*>(row)[unit * kWide + j] =
        t.dtype == DType::kBF16 ? formats::bf16_from_f32(v[j]) : formats::f16_from_f32(v[j]);
  }
}

// One of a row's first 8 elements, to be converted later.
template <class T>
__device__ inline uint32_t load_element(const char* row, int j) {
  if constexpr (T::kBytes == 4) return __ldg(reinterpret_cast<const uint32_t*>(row) + j);
  return __ldg(reinterpret_cast<const uint16_t*>(row) + j);
}
template <class T>
__device__ inline float value_of(uint32_t raw) {
  if constexpr (T::kBytes == 4) {
    return __uint_as_float(raw);
  } else {
    float v[kUnit];
    T::to_f32({make_uint4(raw, 0, 0, 0)}, v);
    return v[0];
  }
}
// 16 bytes of T.
template <class T, int kWide>
__device__ inline void values_of(const uint4& raw, float (&v)[kWide]) {
  if constexpr (kWide == kUnit) {
    T::to_f32({raw}, v);
  } else {
    v[0] = __uint_as_float(raw.x);
    v[1] = __uint_as_float(raw.y);
    v[2] = __uint_as_float(raw.z);
    v[3] = __uint_as_float(raw.w);
  }
}
template <class T, int kWide>
__device__ inline void store_values(char* to, const float (&v)[kWide]) {
  if constexpr (kWide == kUnit) {
#if __CUDA_ARCH__ >= 900
    // NaN is 0x7FFF behind the conversion, above all other codes as integers of 16 bits: their
    // minimum with the format's own NaN is one instruction for two.
    const uint4 w = T::pack_numbers(v).v;
    const uint32_t nan = T::all_nan().v.x;
    store16(to, make_uint4(__vmins2(w.x, nan), __vmins2(w.y, nan), __vmins2(w.z, nan),
                           __vmins2(w.w, nan)));
#else
    T::store(to, v);
#endif
  } else {
    uint32_t w[4];
    for (int j = 0; j < 4; ++j) w[j] = v[j] != v[j] ? formats::kF32Nan : __float_as_uint(v[j]);
    store16(to, make_uint4(w[0], w[1], w[2], w[3]));
  }
}

#endif  // __CUDACC__

}  // namespace pestle::ops::norm_gradients
