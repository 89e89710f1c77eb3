// Rotary position embedding on CUDA: what its kernels share, and the ones for any strides.
// ops/rope/rope.h has the arguments, rope_heads.cuh the fast kernels.
//   any   a thread a pair; with a norm a thread block a head. Any strides and dtypes.
#pragma once

#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/rope/rope.h"

namespace pestle::ops {

inline constexpr int kRopeThreads = 256;  // at most
inline constexpr int kRopeAnyThreads = 128;

// The rotations on the device; strides in bytes, 0 where one serves all.
struct RopeTable {
  const char* freqs;
  const char* sin;
  int64_t stride[3];
  int64_t sin_stride[3];
  int64_t pair_stride, row_stride, column_stride, sin_pair_stride;  // for any strides
  DType dtype;
  int bytes;
  bool has_sin;
  bool inverse;
  bool shared_by_heads;
  bool split;
  int rot;

#ifdef __CUDACC__
  // To its elements.
  __device__ bool is_aligned() const {
    const auto all = reinterpret_cast<uintptr_t>(freqs) | reinterpret_cast<uintptr_t>(sin);
    return all % static_cast<unsigned>(bytes) == 0;
  }
#endif
};

// A [B, H, S, D] tensor, where its result goes, and its weight.
struct RopeOperand {
  const char* x;
  char* out;
  const char* weight;
  int64_t x_stride[3];  // bytes
  int64_t out_stride[3];
  int64_t shape[3];
};

struct RopeJob {
  RopeOperand operands[2];
  int64_t first_blocks;         // of operands[0]; the others are operands[1]'s
  cuda::FastDivisor groups[2];  // thread blocks that a position's heads take
  cuda::FastDivisor tiles[2];   // and that the positions take
  RopeTable table;
  DType weight_dtype;
  int units;      // of a head
  int rot_units;  // of them, rotated
  int lanes;      // threads of a head: units, or the power of two from there
  int positions;  // of a thread block
  int heads;      // of a thread, at most, one after the other
  float one_by_d;
  float eps;
};

#ifdef __CUDACC__

// kCount neighbouring values; the address is a multiple of 4 of them.
template <int kCount>
__device__ inline void load_values(const char* p, DType dtype, float (&f)[kCount]) {
  static_assert(kCount == 4 || kCount % cuda::kUnit == 0);
  if constexpr (kCount == 4) {
    if (dtype == DType::kF32) {
      const uint4 w = cuda::load16(p);
      f[0] = __uint_as_float(w.x);
      f[1] = __uint_as_float(w.y);
      f[2] = __uint_as_float(w.z);
      f[3] = __uint_as_float(w.w);
      return;
    }
    const uint2 w = __ldg(reinterpret_cast<const uint2*>(p));
    float v[cuda::kUnit];
    if (dtype == DType::kBF16)
      cuda::Bf16::to_f32({make_uint4(w.x, w.y, 0, 0)}, v);
    else
      cuda::F16::to_f32({make_uint4(w.x, w.y, 0, 0)}, v);
    for (int i = 0; i < 4; ++i) f[i] = v[i];
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += cuda::kUnit) {
      float v[cuda::kUnit];
      if (dtype == DType::kF32)
        cuda::F32::to_f32(cuda::F32::load(p + i * 4), v);
      else if (dtype == DType::kBF16)
        cuda::Bf16::to_f32(cuda::Bf16::load(p + i * 2), v);
      else
        cuda::F16::to_f32(cuda::F16::load(p + i * 2), v);
      for (int j = 0; j < cuda::kUnit; ++j) f[i + j] = v[j];
    }
  }
}

__device__ inline int64_t rope_offset(const int64_t (&stride)[3], int64_t b, int64_t h, int64_t s) {
  return b * stride[0] + h * stride[1] + s * stride[2];
}

// The matrices of kPairs neighbouring pairs from `pair` on.
template <int kPairs>
__device__ inline void load_turns(const RopeTable& t, int64_t b, int64_t h, int64_t s, int pair,
                                  float (&f)[4 * kPairs]) {
  const char* from = t.freqs + rope_offset(t.stride, b, h, s);
  if (t.has_sin) {
    float c[kPairs];
    float n[kPairs];
    load_values<kPairs>(from + pair * t.bytes, t.dtype, c);
    load_values<kPairs>(t.sin + rope_offset(t.sin_stride, b, h, s) + pair * t.bytes, t.dtype, n);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      f[4 * i] = c[i];
      f[4 * i + 1] = -n[i];
      f[4 * i + 2] = n[i];
      f[4 * i + 3] = c[i];
    }
  } else {
    load_values<4 * kPairs>(from + pair * 4 * t.bytes, t.dtype, f);
  }
  if (!t.inverse) return;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float upper = f[4 * i + 1];
    f[4 * i + 1] = f[4 * i + 2];
    f[4 * i + 2] = upper;
  }
}

__device__ inline float rope_sum(float f0, float x0, float f1, float x1) {
  return __fmaf_rn(f0, x0, f1 * x1);
}

// One chunk of 8 elements, or two of them where pairs lie across the halves.
template <bool kSplit>
struct RopeUnit {
  static constexpr int kChunks = kSplit ? 2 : 1;
  static constexpr int kPairs = kSplit ? 8 : 4;
  float v[kChunks][cuda::kUnit];

  __device__ void rotate(const float (&f)[4 * kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float& first = kSplit ? v[0][i] : v[0][2 * i];
      float& second = kSplit ? v[kChunks - 1][i] : v[0][2 * i + 1];
      const float x0 = first, x1 = second;
      first = rope_sum(f[4 * i], x0, f[4 * i + 1], x1);
      second = rope_sum(f[4 * i + 2], x0, f[4 * i + 3], x1);
    }
  }
};

__device__ inline void store_raw(const cuda::Bf16::Raw& raw, char* p) { cuda::store16(p, raw.v); }
__device__ inline void store_raw(const cuda::F32::Raw& raw, char* p) {
  cuda::store16(p, raw.low);
  cuda::store16(p + 16, raw.high);
}

// Of `lanes` neighbouring threads, a power of two; all get the sum.
__device__ inline float lane_sum(float value, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  }
  return value;
}

// 1 / sqrt(v) by the instruction and one Newton step; 0 for infinity.
__device__ inline float inverse_root(float v) {
  const float r = rsqrtf(v);
  const float better = r * __fmaf_rn(-0.5f * v * r, r, 1.5f);
  return v < __uint_as_float(0x7F800000u) && r < __uint_as_float(0x7F800000u) ? better : r;
}

// Where a thread stands: its unit's two chunks, as elements of a head.
struct RopePlace {
  bool rotates;
  int first;  // element
  int second;
};
template <bool kSplit>
__device__ inline RopePlace rope_place(int unit, int rot_units, int rot) {
  if (unit < rot_units) {
    const int first = unit * cuda::kUnit;
    return {true, first, kSplit ? first + rot / 2 : first};
  }
  const int first = rot + (unit - rot_units) * cuda::kUnit * (kSplit ? 2 : 1);
  return {false, first, first + cuda::kUnit};
}

// The sum of squares of a unit.
template <bool kSplit>
__device__ inline float unit_squares(const RopeUnit<kSplit>& unit) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < RopeUnit<kSplit>::kChunks; ++c) {
    for (int j = 0; j < cuda::kUnit; ++j) sum = __fmaf_rn(unit.v[c][j], unit.v[c][j], sum);
  }
  return sum;
}

// ---- any strides ----

// One pair's matrix.
__device__ inline void load_turn(const RopeTable& t, int64_t b, int64_t h, int64_t s, int64_t pair,
                                 float (&f)[4]) {
  cuda::AnyTensor as;
  as.dtype = t.dtype;
  as.is_aligned = t.is_aligned();
  const char* from = t.freqs + rope_offset(t.stride, b, h, s) + pair * t.pair_stride;
  if (t.has_sin) {
    f[0] = as.load(from);
    f[2] = as.load(t.sin + rope_offset(t.sin_stride, b, h, s) + pair * t.sin_pair_stride);
    f[1] = -f[2];
    f[3] = f[0];
  } else {
    for (int i = 0; i < 4; ++i) {
      f[i] = as.load(from + i / 2 * t.row_stride + i % 2 * t.column_stride);
    }
  }
  if (!t.inverse) return;
  const float upper = f[1];
  f[1] = f[2];
  f[2] = upper;
}

struct HeadPlace {
  int64_t b, h, s;
  HeadPlace() = default;
  __device__ HeadPlace(const cuda::AnyTensor& x, int64_t row) {
    const int64_t rows = cuda::AnyTensor::quotient(row, x.shape[2]);
    b = cuda::AnyTensor::quotient(rows, x.shape[1]);
    h = rows - b * x.shape[1];
    s = row - rows * x.shape[2];
  }
  __device__ char* in(const cuda::AnyTensor& t) const {
    return t.data + b * t.strides[0] + h * t.strides[1] + s * t.strides[2];
  }
};

// Places of a head: its pairs, then the elements that are not rotated.
__device__ inline int64_t rope_places(const RopeTable& t, int64_t d) { return d - t.rot / 2; }

// Elements of place i: first and second of a pair, or one alone (second < 0).
struct PairPlace {
  int64_t first, second;
  __device__ PairPlace(const RopeTable& t, int64_t i) {
    const int64_t pairs = t.rot / 2;
    first = i >= pairs ? i + pairs : t.split ? i : 2 * i;
    second = i >= pairs ? -1 : t.split ? i + pairs : 2 * i + 1;
  }
};

// Places that a thread of rope_any has, kThreads apart: all are on their way before the first is
// needed.
constexpr int kAnyPlaces = 4;

// load_turn for each place; those without a pair have any other's.
struct AnyTurns {
  float f[kAnyPlaces][4];

  __device__ AnyTurns(const RopeTable& t, const HeadPlace (&heads)[kAnyPlaces],
                      const int64_t (&places)[kAnyPlaces]) {
    if (t.rot == 0) return;
    cuda::AnyTensor as;
    as.dtype = t.dtype;
    as.is_aligned = t.is_aligned();
    const char* p[2][2 * kAnyPlaces];  // f[0] and f[2], or f[0] and f[1]; then f[2] and f[3]
#pragma unroll
    for (int k = 0; k < kAnyPlaces; ++k) {
      const HeadPlace& at = heads[k];
      const int64_t pair = min(places[k], static_cast<int64_t>(t.rot / 2 - 1));
      p[0][2 * k] = t.freqs + rope_offset(t.stride, at.b, at.h, at.s) + pair * t.pair_stride;
      if (t.has_sin) {
        p[0][2 * k + 1] =
            t.sin + rope_offset(t.sin_stride, at.b, at.h, at.s) + pair * t.sin_pair_stride;
      } else {
        p[0][2 * k + 1] = p[0][2 * k] + t.column_stride;
      }
      p[1][2 * k] = p[0][2 * k] + t.row_stride;
      p[1][2 * k + 1] = p[1][2 * k] + t.column_stride;
    }
    float v[2][2 * kAnyPlaces];
    as.load_all(p[0], 2 * kAnyPlaces, v[0]);
    if (!t.has_sin) as.load_all(p[1], 2 * kAnyPlaces, v[1]);
#pragma unroll
    for (int k = 0; k < kAnyPlaces; ++k) {
      const float first = v[0][2 * k], second = v[0][2 * k + 1];
      f[k][0] = first;
      f[k][1] = t.has_sin ? -second : second;
      f[k][2] = t.has_sin ? second : v[1][2 * k];
      f[k][3] = t.has_sin ? first : v[1][2 * k + 1];
      if (!t.inverse) continue;
      const float upper = f[k][1];
      f[k][1] = f[k][2];
      f[k][2] = upper;
    }
  }
};

// A template, as the next one, since a kernel can't be inline.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    rope_any(cuda::AnyTensor x, cuda::AnyTensor out, RopeTable table, int64_t places) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kAnyPlaces) + threadIdx.x;
  if (first >= places) return;
  const int64_t each = rope_places(table, x.shape[3]);
  HeadPlace heads[kAnyPlaces];
  int64_t of_head[kAnyPlaces];
  const char* p[2 * kAnyPlaces];
#pragma unroll
  for (int k = 0; k < kAnyPlaces; ++k) {
    const int64_t index = min(first + k * kThreads, places - 1);
    const int64_t row = cuda::AnyTensor::quotient(index, each);
    heads[k] = HeadPlace(x, row);
    of_head[k] = index - row * each;
    const PairPlace at(table, of_head[k]);
    const char* from = heads[k].in(x);
    p[2 * k] = from + at.first * x.strides[3];
    p[2 * k + 1] = at.second < 0 ? p[2 * k] : from + at.second * x.strides[3];
  }
  float v[2 * kAnyPlaces];
  x.load_all(p, 2 * kAnyPlaces, v);
  const AnyTurns turns(table, heads, of_head);
#pragma unroll
  for (int k = 0; k < kAnyPlaces; ++k) {
    if (first + k * kThreads >= places) break;
    const PairPlace at(table, of_head[k]);
    const float x0 = v[2 * k], x1 = v[2 * k + 1];
    const float(&f)[4] = turns.f[k];
    char* to = heads[k].in(out);
    const bool alone = at.second < 0;
    out.store(to + at.first * out.strides[3], alone ? x0 : rope_sum(f[0], x0, f[1], x1));
    if (!alone) out.store(to + at.second * out.strides[3], rope_sum(f[2], x0, f[3], x1));
  }
}

// The sum over a thread block of kRopeAnyThreads, in all threads.
__device__ inline float any_sum(float value) {
  __shared__ float warps[kRopeAnyThreads / 32];
  value = lane_sum(value, 32);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (float warp : warps) sum += warp;
  return sum;
}

// 1 / sqrt(mean of squares + eps) of a head.
__device__ inline float any_root(const cuda::AnyTensor& x, const char* from, float eps) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < x.shape[3]; i += kRopeAnyThreads) {
    const float v = x.load(from + i * x.strides[3]);
    sum = __fmaf_rn(v, v, sum);
  }
  return inverse_root(any_sum(sum) / static_cast<float>(x.shape[3]) + eps);
}

// A thread block a head.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    rms_rope_any(cuda::AnyTensor x, cuda::AnyTensor out, cuda::AnyTensor weight, RopeTable table,
                 float eps) {
  const HeadPlace head(x, blockIdx.x);
  const char* from = head.in(x);
  char* to = head.in(out);
  const float r = any_root(x, from, eps);
  const auto normal = [&](int64_t i) {
    return x.load(from + i * x.strides[3]) * r * weight.load(weight.data + i * weight.strides[0]);
  };
  for (int64_t i = threadIdx.x; i < rope_places(table, x.shape[3]); i += kRopeAnyThreads) {
    const PairPlace at(table, i);
    const float x0 = normal(at.first);
    if (at.second < 0) {
      out.store(to + at.first * out.strides[3], x0);
      continue;
    }
    const float x1 = normal(at.second);
    float f[4];
    load_turn(table, head.b, head.h, head.s, i, f);
    out.store(to + at.first * out.strides[3], rope_sum(f[0], x0, f[1], x1));
    out.store(to + at.second * out.strides[3], rope_sum(f[2], x0, f[3], x1));
  }
}

#endif  // __CUDACC__

// ---- host ----

inline RopeTable rope_table(const Rotations& r) {
  RopeTable t{};
  t.dtype = r.freqs.dtype;
  t.bytes = dtype_bytes(t.dtype);
  t.freqs = r.freqs.as<char>();
  t.has_sin = r.has_sin;
  t.inverse = r.inverse;
  t.split = r.split;
  t.rot = static_cast<int>(r.rot);
  t.shared_by_heads = r.shared_by_heads();
  const auto stride = [&](const TensorView& of, int d) {
    return of.shape[d] == 1 && d < 3 ? 0 : of.strides[d] * t.bytes;
  };
  for (int d = 0; d < 3; ++d) t.stride[d] = stride(r.freqs, d);
  t.pair_stride = stride(r.freqs, 3);
  if (r.has_sin) {
    t.sin = r.sin.as<char>();
    for (int d = 0; d < 3; ++d) t.sin_stride[d] = stride(r.sin, d);
    t.sin_pair_stride = stride(r.sin, 3);
  } else {
    t.row_stride = stride(r.freqs, 4);
    t.column_stride = stride(r.freqs, 5);
  }
  return t;
}

inline RopeOperand rope_operand(const TensorView& x, const TensorView& out,
                                const TensorView* weight) {
  RopeOperand o{
      x.as<char>(), out.as<char>(), weight == nullptr ? nullptr : weight->as<char>(), {}, {}, {}};
  for (int d = 0; d < 3; ++d) {
    o.x_stride[d] = x.strides[d] * dtype_bytes(x.dtype);
    o.out_stride[d] = out.strides[d] * dtype_bytes(out.dtype);
    o.shape[d] = x.shape[d];
  }
  return o;
}

// Elements that a thread takes of a head.
inline int rope_unit(const Rotations& r) { return cuda::kUnit * (r.split ? 2 : 1); }

// Threads of a thread block, at most `threads`, and what they cover.
inline void rope_shape(RopeJob& job, const Rotations& r, int64_t d, bool norm,
                       int threads = kRopeThreads) {
  job.table = rope_table(r);
  job.one_by_d = 1.0f / static_cast<float>(d);
  job.units = static_cast<int>(d / rope_unit(r));
  job.rot_units = static_cast<int>(r.rot / rope_unit(r));
  job.lanes = job.units;
  if (norm) {
    for (job.lanes = 1; job.lanes < job.units;) job.lanes *= 2;
  }
  job.positions = 1;
  while (2 * job.positions * job.lanes <= threads) job.positions *= 2;
}

// Every dimension but the last `dense` ones may lie apart, by multiples of 16 bytes.
inline std::string refuse_rope_strides(const char* name, const TensorView& t, int dense) {
  if (numel(t) == 0) return {};
  if (!is_contiguous_from(t, t.rank - dense)) return std::string(name) + " has gaps within a row";
  bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  for (int d = 0; d + dense < t.rank; ++d) {
    aligned &= t.shape[d] == 1 || t.strides[d] * dtype_bytes(t.dtype) % 16 == 0;
  }
  return aligned ? "" : std::string(name) + "'s rows do not start at multiples of 16 bytes";
}

// What the fast kernels ask of D, rot_dim and the rotations.
inline std::string refuse_rope(const Rotations& r, int64_t d, int64_t most) {
  const int unit = rope_unit(r);
  if (d == 0 || d % unit != 0) return "D is no multiple of " + std::to_string(unit);
  if (r.rot % unit != 0) return "rot_dim is no multiple of " + std::to_string(unit);
  if (d > most * unit) return "D is beyond " + std::to_string(most * unit);
  if (!r.has_sin) return refuse_rope_strides("freqs", r.freqs, 3);
  std::string why = refuse_rope_strides("cos", r.freqs, 1);
  return why.empty() ? refuse_rope_strides("sin", r.sin, 1) : why;
}

}  // namespace pestle::ops
