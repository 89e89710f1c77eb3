// quantize_int4 on CUDA.
// Map      groups  a warp 1024 columns of a row, rotated first if asked (hadamard.cuh), then four
//                  units of 8 neighbours a lane; group_size / 8 lanes share a scale. One group a
//                  row: a thread block is the row, which stays in registers
//          any     a thread block 1024 columns of a row in shared memory, one pass for the ends of
//                  every group, one for the codes; any strides and groups
// Traffic  x once, q and scales once; _any reads x twice.
// Numerics exact: f32 operation by operation as formats/int4.h.
// Measured not yet run on a GPU.
#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/device/divide.cuh"
#include "backends/cuda/device/tiles.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tensor_amax.h"
#include "formats/int4.h"
#include "formats/philox.h"
#include "formats/stochastic.h"
#include "ops/common/hadamard.cuh"
#include "ops/quantize_int4/quantize_int4_spec.h"

namespace pestle::ops::quantize_int4 {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kZeroOut = arg_index(spec, "zero_out");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

constexpr int kWarps = 8;      // of a thread block, groups
constexpr int kRowWarps = 16;  // one group a row: 16384 columns
constexpr int kPiece = 2 * kChunk;

// abs_bits of the largest negative and positive magnitudes, NaN above all in both. Integer maxima,
// so that the order does not matter.
struct Ends {
  uint32_t below = 0;
  uint32_t above = 0;

  __device__ void take(float v) {
    const uint32_t abs = formats::abs_bits(v);
    const bool nan = formats::abs_is_nan(abs);
    if (v < 0 || nan) below = max(below, abs);
    if (v > 0 || nan) above = max(above, abs);
  }
  __device__ void share(int lanes) {
    for (int step = 1; step < lanes; step *= 2) {
      below = max(below, __shfl_xor_sync(0xFFFFFFFFu, below, step));
      above = max(above, __shfl_xor_sync(0xFFFFFFFFu, above, step));
    }
  }
  // formats::int4_scale or int4_asym_scale of the group.
  __device__ formats::Int4Zero scale(bool asymmetric) const {
    if (!asymmetric) return {formats::int4_scale(max(below, above)), 0};
    const float ends[2] = {-__uint_as_float(below), __uint_as_float(above)};
    return formats::int4_asym_scale(ends, 2);
  }
};

// The code of one quotient.
__device__ uint32_t code_of(float quotient, int zero, bool asymmetric) {
  if (!asymmetric) return static_cast<uint32_t>(formats::round_clamp(quotient, -8, 7)) & 0xFu;
  return static_cast<uint32_t>(formats::round_clamp(quotient, -zero, 15 - zero) + zero);
}

struct Job {
  const char* x;
  int64_t x_row_bytes;
  int x_bytes;
  DType x_dtype;
  char* q;
  int64_t q_row_bytes;
  AnyTensor scale;
  AnyTensor zero;
  bool asymmetric;
  int64_t columns;
  int64_t tasks;
  FastDivisor pieces;  // of a row
  int group_lanes;     // 0: the row is one group, a thread block each
};

// Loads this lane's four units, 8 neighbours each, in the order of half_offset.
template <class T>
__device__ void load_units(const char* x, int64_t left, float (&v)[2][kLaneRun]) {
  const int lane = threadIdx.x % 32;
  typename T::Raw raw[2][2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int offset = c * kChunk + half_offset(lane, half);
      raw[c][half] = offset < left ? T::load(x + offset * T::kBytes) : T::zero();
    }
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float y[kUnit];
      T::to_f32(raw[c][half], y);
      for (int i = 0; i < kUnit; ++i) v[c][8 * half + i] = y[i];
    }
  }
}

// The same, rotated by groups of kN; kN = 1: as they are.
template <int kN>
__device__ void load_rotated(const Job& job, const char* x, int64_t left, float* shared,
                             float (&v)[2][kLaneRun]) {
  if constexpr (kN == 1) {
    switch (job.x_dtype) {
      case DType::kBF16: return load_units<Bf16>(x, left, v);
      case DType::kF16: return load_units<F16>(x, left, v);
      default: return load_units<F32>(x, left, v);
    }
  } else {
    const int first = threadIdx.x % 32 * kLaneRun;
    const bool inside[2] = {first < left, first + kChunk < left};
    load_runs(job.x_dtype, x + first * job.x_bytes, inside, v);
    rotate_runs<kN>(v, shared);
    restore_runs<kN>(v, shared);
    const float norm = formats::hadamard_norm(kN);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      for (int i = 0; i < kLaneRun; ++i) v[c][i] *= norm;
    }
  }
}

__device__ void store_scale(const Job& job, int64_t row, int64_t group,
                            const formats::Int4Zero& scale) {
  *reinterpret_cast<float*>(job.scale.at(row, group)) =
      scale.scale != scale.scale ? formats::f32_nan() : scale.scale;
  if (job.asymmetric) *job.zero.at(row, group) = static_cast<char>(scale.zero);
}

// Eight codes of a unit.
__device__ uint32_t unit_codes(const float* v, uint32_t largest, const formats::Int4Zero& scale,
                               bool asymmetric) {
  const Divider by = Divider::by(scale.scale);
  const bool is_short = by.is_short(__uint_as_float(largest));
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const float quotient = is_short ? by.shortly(v[i]) : __fdiv_rn(v[i], scale.scale);
    word |= code_of(quotient, scale.zero, asymmetric) << (4 * i);
  }
  return word;
}

template <int kN>
__global__ void __launch_bounds__(32 * kRowWarps, 2) groups_kernel(Job job) {
  extern __shared__ __align__(16) float shared[];
  __shared__ uint32_t ends_of_warps[2][kRowWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool one_group = job.group_lanes == 0;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  // Blocks of rows have whole rows, so only the others may lack a task.
  if (task >= job.tasks) return;
  const int64_t row = job.pieces.divide(static_cast<uint32_t>(task));
  const int64_t piece = (task - row * job.pieces.divisor) * kPiece;
  const int64_t left = job.columns - piece;
  float v[2][kLaneRun];
  load_rotated<kN>(job, job.x + row * job.x_row_bytes + piece * job.x_bytes, left,
                   shared + warp * kRotateFloats, v);
  Ends row_ends;
  if (one_group) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      for (int i = 0; i < kLaneRun; ++i) row_ends.take(v[c][i]);
    }
    row_ends.share(32);
    if (lane == 0) {
      ends_of_warps[0][warp] = row_ends.below;
      ends_of_warps[1][warp] = row_ends.above;
    }
    __syncthreads();
    for (int i = 0; i < static_cast<int>(blockDim.x / 32); ++i) {
      row_ends.below = max(row_ends.below, ends_of_warps[0][i]);
      row_ends.above = max(row_ends.above, ends_of_warps[1][i]);
    }
    if (threadIdx.x == 0) store_scale(job, row, 0, row_ends.scale(job.asymmetric));
  }
  char* q = job.q + row * job.q_row_bytes + piece / 2;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int offset = c * kChunk + half_offset(lane, half);
      const float* unit = v[c] + 8 * half;
      Ends ends = row_ends;
      if (!one_group) {
        for (int i = 0; i < kUnit; ++i) ends.take(unit[i]);
        ends.share(job.group_lanes);
      }
      if (offset >= left) continue;
      const formats::Int4Zero scale = ends.scale(job.asymmetric);
      if (!one_group && lane % job.group_lanes == 0) {
        store_scale(job, row, (piece + offset) / (job.group_lanes * kUnit), scale);
      }
      store4(q + offset / 2, unit_codes(unit, max(ends.below, ends.above), scale, job.asymmetric));
    }
  }
}

// ---- any ----

struct AnyJob {
  AnyTensor x, q, scale, zero;
  uint32_t* ends;  // two a group
  int64_t columns, group, groups;
  bool asymmetric, stochastic;
  uint64_t seed;
  int hadamard;

  __device__ Ends ends_at(int64_t row, int64_t column) const {
    const uint32_t* e = ends + 2 * (row * groups + column / group);
    return {e[0], e[1]};
  }
  __device__ uint32_t code(float v, const formats::Int4Zero& s, int64_t row, int64_t column) const {
    const float quotient = __fdiv_rn(v, s.scale);
    if (!stochastic) return code_of(quotient, s.zero, asymmetric);
    const auto element = static_cast<uint64_t>(row * columns + column);
    const int lo = asymmetric ? -s.zero : -8;
    const int code =
        formats::int_stochastic(quotient, formats::philox_u16(seed, element), lo, lo + 15);
    return static_cast<uint32_t>(code + (asymmetric ? s.zero : 0)) & 0xFu;
  }
};

// kCodes false: adds every element to its group's ends. Else codes, two a thread.
template <bool kCodes>
__global__ void __launch_bounds__(kAnyThreads) any_kernel(AnyJob job) {
  __shared__ float v[kAnyColumns];
  const int64_t pieces = (job.columns + kAnyColumns - 1) / kAnyColumns;
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kAnyColumns;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), job.columns - first));
  for (int i = threadIdx.x; i < count; i += kAnyThreads) {
    v[i] = job.x.load(job.x.at(row, first + i));
  }
  if (job.hadamard > 0) rotate_shared(v, count, job.hadamard);
  __syncthreads();
  for (int i = 2 * threadIdx.x; i < count; i += 2 * kAnyThreads) {
    uint32_t byte = 0;
    for (int j = 0; j < 2; ++j) {
      const int64_t column = first + i + j;
      if constexpr (kCodes) {
        const formats::Int4Zero s = job.ends_at(row, column).scale(job.asymmetric);
        byte |= job.code(v[i + j], s, row, column) << (4 * j);
      } else {
        Ends ends;
        ends.take(v[i + j]);
        uint32_t* to = job.ends + 2 * (row * job.groups + column / job.group);
        if (ends.below != 0) atomicMax(to, ends.below);
        if (ends.above != 0) atomicMax(to + 1, ends.above);
      }
    }
    if constexpr (kCodes) *job.q.at(row, (first + i) / 2) = static_cast<char>(byte);
  }
}

__global__ void __launch_bounds__(kAnyThreads) any_scales(AnyJob job, int64_t count) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kAnyThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t row = index / job.groups, group = index % job.groups;
  const formats::Int4Zero s = job.ends_at(row, group * job.group).scale(job.asymmetric);
  job.scale.store(job.scale.at(row, group), s.scale);
  if (job.asymmetric) *job.zero.at(row, group) = static_cast<char>(s.zero);
}

// ---- host ----

int64_t group_of(const Call& call) {
  return std::max<int64_t>(1, int4_group(call.integer(kGroupSize), call.tensor(kX).shape[1]));
}
// Lanes that share a scale; 0: the row is one group, or -1: neither.
int group_lanes(const Call& call) {
  const int64_t group = group_of(call), lanes = group / kUnit;
  if (group % kUnit == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0) {
    return static_cast<int>(lanes);
  }
  return group >= call.tensor(kX).shape[1] ? 0 : -1;
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const int64_t pieces = ceil_div(x.shape[1], kPiece);
  Job job{};
  job.x = x.as<char>();
  job.x_row_bytes = row_distance(x);
  job.x_bytes = dtype_bytes(x.dtype);
  job.x_dtype = x.dtype;
  job.q = call.tensor(kQ).as<char>();
  job.q_row_bytes = row_distance(call.tensor(kQ));
  job.scale = AnyTensor(call.tensor(kScaleOut));
  job.asymmetric = call.has(kZeroOut);
  if (job.asymmetric) job.zero = AnyTensor(call.tensor(kZeroOut));
  job.columns = x.shape[1];
  job.tasks = x.shape[0] * pieces;
  job.pieces = FastDivisor(static_cast<uint32_t>(pieces));
  job.group_lanes = group_lanes(call);
  const int warps = job.group_lanes == 0 ? static_cast<int>(pieces) : kWarps;
  const auto hadamard = static_cast<int>(call.integer(kHadamard));
  const Grid grid{ceil_div(job.tasks, warps), 32 * warps,
                  hadamard == 0 ? 0 : static_cast<size_t>(warps) * kRotateFloats * sizeof(float)};
  if (hadamard == 0) return launch(call, spec.name, grid, groups_kernel<1>, job);
  return with_hadamard(
      hadamard, [&](auto n) { return launch(call, spec.name, grid, groups_kernel<n>, job); });
}

Status run_any(const Call& call) {
  const TensorView& x = call.tensor(kX);
  AnyJob job{};
  job.x = AnyTensor(x);
  job.q = AnyTensor(call.tensor(kQ));
  job.scale = AnyTensor(call.tensor(kScaleOut));
  job.asymmetric = call.has(kZeroOut);
  if (job.asymmetric) job.zero = AnyTensor(call.tensor(kZeroOut));
  job.ends = static_cast<uint32_t*>(call.workspace);
  job.columns = x.shape[1];
  job.group = group_of(call);
  job.groups = call.tensor(kScaleOut).shape[1];
  job.stochastic = call.integer(kRounding) == 1;
  job.seed = static_cast<uint64_t>(call.integer(kSeed));
  job.hadamard = static_cast<int>(call.integer(kHadamard));
  if (numel(x) == 0) return {};
  const int64_t scales = numel(call.tensor(kScaleOut));
  const Grid grid{x.shape[0] * ceil_div(x.shape[1], kAnyColumns), kAnyThreads};
  PESTLE_TRY(clear(call, job.ends, scales * 8));
  PESTLE_TRY(launch(call, "quantize_int4_any", grid, any_kernel<false>, job));
  PESTLE_TRY(launch(call, "quantize_int4_any", {ceil_div(scales, kAnyThreads), kAnyThreads},
                    any_scales, job, scales));
  return launch(call, "quantize_int4_any", grid, any_kernel<true>, job);
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& x = call.tensor(kX);
  if (numel(x) == 0) return "the tensor is empty";
  if (call.integer(kRounding) == 1) return "it rounds to nearest only";
  const int64_t step = call.integer(kHadamard) > 0 ? kLaneRun : kUnit;
  if (x.shape[1] % step != 0) return "K is no multiple of " + std::to_string(step);
  const int lanes = group_lanes(call);
  if (lanes < 0) return "group_size is no power of two from 8 to 256";
  if (lanes == 0 && x.shape[1] > kRowWarps * kPiece) {
    return "rows of more than " + std::to_string(kRowWarps * kPiece) + " elements in one group";
  }
  if (numel(x) / kPiece >= INT_MAX / 2) return "the tensor has more than 2^40 elements";
  if (std::string why = refuse_unaligned("x", x); !why.empty()) return why;
  if (std::string why = refuse_unaligned("q", call.tensor(kQ), 4); !why.empty()) return why;
  const TensorView& scale = call.tensor(kScaleOut);
  return reinterpret_cast<uintptr_t>(scale.data) % 4 == 0 ? "" : "scale_out is not aligned";
}

constexpr Impl kImpls[] = {
    {.id = "cuda/quantize_int4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/quantize_int4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "8*numel(scale_out)"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::quantize_int4
