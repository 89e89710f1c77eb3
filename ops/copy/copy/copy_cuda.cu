// copy on CUDA.
// Map      without a change of dtype: ops/copy/strided_copy.cu. cast: a thread converts 4 pieces
//          of 8 elements (one of 4, without gaps, where f32 is made of less) of rows that both
//          have, between f32, bf16, f16 and from those to fp8 and back. _any: an element a thread,
//          every dtype, stride and offset.
// Traffic  x and out once
// Numerics exact: each element rounded once, from the f32 that it is
// Measured H200, share of the tuned copy that reads and writes as much: 100 %
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/copy/copy/copy_spec.h"
#include "ops/copy/strided_copy_cuda.h"
#include "ops/shared/cast.h"

namespace pestle::ops::copy {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");

constexpr int kThreads = 256;

// Elements of a piece: 8, or 4 of at most 2 bytes that become f32, so that neighbouring threads
// store 16 bytes side by side.
template <class T, class O>
inline constexpr int kPiece = O::kBytes == 4 && T::kBytes < 4 ? 4 : kUnit;
// Pieces of a thread, at most: 64 bytes in flight and more.
template <class T, class O>
inline constexpr int kPiecesEach = kPiece<T, O> == 4 ? 8 : 4;

// Eight fp8 codes of a thread.
template <class F>
struct Fp8 {
  static constexpr int kBytes = 1;
  struct Raw {
    uint2 v;
  };
  __device__ static Raw load(const void* p) { return {__ldg(static_cast<const uint2*>(p))}; }
  __device__ static void to_f32(const Raw& raw, float (&x)[kUnit]) {
    fp8_values<F>(raw.v, x);
    const bool nan = F::kMan == 3 && has_e4m3_nan(raw.v);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      x[i] *= kFp8Unit<F>;
      const uint32_t code = (i < 4 ? raw.v.x : raw.v.y) >> (8 * (i % 4));
      if (nan && (code & 0x7F) == 0x7F) x[i] = formats::f32_nan();
    }
  }
  __device__ static void store(void* p, const float (&v)[kUnit]) { store8(p, fp8_codes<F>(v)); }
};

// The first kCount of a unit's elements.
template <class T, int kCount>
__device__ inline typename T::Raw load_piece(const char* p) {
  if constexpr (kCount == kUnit)
    return T::load(p);
  else if constexpr (T::kBytes == 1)
    return {make_uint2(__ldg(reinterpret_cast<const uint32_t*>(p)), 0)};
  else {
    const uint2 w = __ldg(reinterpret_cast<const uint2*>(p));
    return {make_uint4(w.x, w.y, 0, 0)};
  }
}

template <class O, int kCount>
__device__ inline void store_piece(char* p, const float (&v)[kUnit]) {
  if constexpr (kCount == kUnit) {
    O::store(p, v);
  } else {
    static_assert(O::kBytes == 4);
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = v[i] != v[i] ? formats::kF32Nan : __float_as_uint(v[i]);
    store16(p, make_uint4(w[0], w[1], w[2], w[3]));
  }
}

struct Cast {
  const char* from;
  char* to;
  uint32_t pieces;
  uint32_t each;  // of a thread
  FastDivisor row_pieces;
  int rank;  // of the dimensions around a row, innermost first
  FastDivisor size[kMaxRank];
  int64_t from_stride[kMaxRank];
  int64_t to_stride[kMaxRank];
};

// Without gaps, a piece a thread: small tensors, and those that grow.
struct RunCast {
  const char* from;
  char* to;
  uint32_t pieces;
};

template <class T, class O>
__global__ void __launch_bounds__(kThreads) cast_run(const __grid_constant__ RunCast cast) {
  wait_previous_kernel();
  start_next_kernel();
  constexpr int kCount = kPiece<T, O>;
  const uint32_t piece = blockIdx.x * kThreads + threadIdx.x;
  if (piece >= cast.pieces) return;
  float v[kUnit];
  T::to_f32(load_piece<T, kCount>(cast.from + static_cast<int64_t>(piece) * (kCount * T::kBytes)),
            v);
  store_piece<O, kCount>(cast.to + static_cast<int64_t>(piece) * (kCount * O::kBytes), v);
}

template <class T, class O>
__global__ void __launch_bounds__(kThreads) cast_pieces(const __grid_constant__ Cast cast) {
  constexpr int kCount = kPiece<T, O>, kEach = kPiecesEach<T, O>;
  const uint32_t first = blockIdx.x * kThreads * cast.each + threadIdx.x;
  typename T::Raw raw[kEach];
  int64_t places[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t piece = first + i * kThreads;
    uint32_t row = cast.rank == 0 ? 0 : cast.row_pieces.divide(piece);
    const int64_t column = piece - row * cast.row_pieces.divisor;
    int64_t from = column * (kCount * T::kBytes);
    places[i] = column * (kCount * O::kBytes);
    for (int d = 0; d < cast.rank; ++d) {
      const uint32_t rest = cast.size[d].divide(row);
      const uint32_t here = row - rest * cast.size[d].divisor;
      from += here * cast.from_stride[d];
      places[i] += here * cast.to_stride[d];
      row = rest;
    }
    if (i < cast.each && piece < cast.pieces) raw[i] = load_piece<T, kCount>(cast.from + from);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i >= cast.each || first + i * kThreads >= cast.pieces) break;
    float v[kUnit];
    T::to_f32(raw[i], v);
    store_piece<O, kCount>(cast.to + places[i], v);
  }
}

__global__ void __launch_bounds__(kThreads) cast_any(AnyTensor x, AnyTensor out, int64_t elements) {
  const int64_t element = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (element >= elements) return;
  int64_t rest = element, from = 0, to = 0;
  for (int d = x.rank - 1; d >= 0; --d) {
    const int64_t index = rest % x.shape[d];
    from += index * x.strides[d];
    to += index * out.strides[d];
    rest /= x.shape[d];
  }
  uint64_t bits = 0;
  for (int i = 0; i < x.bytes; ++i) {
    bits |= static_cast<uint64_t>(static_cast<uint8_t>(x.data[from + i])) << (8 * i);
  }
  bits = cast_bits(out.dtype, cast_value(x.dtype, bits));
  for (int i = 0; i < out.bytes; ++i) out.data[to + i] = static_cast<char>(bits >> (8 * i));
}

// ---- host ----

CopyPlan plan_of(const Call& call) { return {call.tensor(kX), call.tensor(kOut)}; }
bool is_cast(const Call& call) { return call.tensor(kX).dtype != call.tensor(kOut).dtype; }

bool is_wide(DType d) { return d == DType::kF32 || d == DType::kBF16 || d == DType::kF16; }
bool is_fp8(DType d) { return d == DType::kE4M3 || d == DType::kE5M2; }

std::string refuse_cast(const Call& call, const CopyPlan& plan) {
  const DType x = call.tensor(kX).dtype, out = call.tensor(kOut).dtype;
  if (!(is_wide(x) && (is_wide(out) || is_fp8(out))) && !(is_fp8(x) && is_wide(out))) {
    return "it converts between f32, bf16, f16 and from those to fp8 and back";
  }
  if (plan.elements == 0) return "the tensor is empty";
  if (!plan.is_dense_row()) return "x and out have no rows of neighbours in common";
  if (plan.elements / 4 >= int64_t{1} << 31) return "the tensor is beyond 2^33 elements";
  const int last = plan.rank - 1;
  if (plan.rank == 0 || plan.shape[last] % kUnit != 0) return "rows are no multiple of 8 elements";
  // Units of 8 fp8 codes are 8 bytes, all others 16 or twice that.
  const auto fits = [&](const void* p, const int64_t* strides, int bytes) {
    const int alignment = bytes == 1 ? 8 : 16;
    bool aligned = reinterpret_cast<uintptr_t>(p) % static_cast<unsigned>(alignment) == 0;
    for (int d = 0; d < last; ++d) aligned &= strides[d] % alignment == 0;
    return aligned;
  };
  return fits(plan.from, plan.from_stride, plan.from_bytes) &&
                 fits(plan.to, plan.to_stride, plan.to_bytes)
             ? ""
             : "rows do not start at multiples of 16 bytes (8 for fp8)";
}

template <class T, class O>
Status start(const Call& call, const CopyPlan& plan) {
  Cast cast{};
  cast.from = plan.from;
  cast.to = plan.to;
  constexpr int kCount = kPiece<T, O>;
  cast.pieces = static_cast<uint32_t>(plan.elements / kCount);
  const int last = plan.rank - 1;
  cast.row_pieces = FastDivisor(static_cast<uint32_t>(plan.shape[last] / kCount));
  for (int d = last - 1; d >= 0; --d) {
    cast.size[cast.rank] = FastDivisor(static_cast<uint32_t>(plan.shape[d]));
    cast.from_stride[cast.rank] = plan.from_stride[d];
    cast.to_stride[cast.rank] = plan.to_stride[d];
    ++cast.rank;
  }
  // Small tensors are spread over more blocks.
  const bool small = cast.pieces < kThreads * kPiecesEach<T, O> * 132 * 2u;
  if (cast.rank == 0 && (small || kCount == 4)) {
    return launch_early(call, "copy", {ceil_div(cast.pieces, int64_t{kThreads}), kThreads},
                        cast_run<T, O>, RunCast{cast.from, cast.to, cast.pieces});
  }
  cast.each = small ? 1 : kPiecesEach<T, O>;
  return launch(call, "copy", {ceil_div(cast.pieces, int64_t{kThreads} * cast.each), kThreads},
                cast_pieces<T, O>, cast);
}

// T is a wide float.
template <class T>
Status start_from(const Call& call, const CopyPlan& plan) {
  switch (call.tensor(kOut).dtype) {
    case DType::kF32: return start<T, F32>(call, plan);
    case DType::kBF16: return start<T, Bf16>(call, plan);
    case DType::kF16: return start<T, F16>(call, plan);
    case DType::kE4M3: return start<T, Fp8<formats::E4m3>>(call, plan);
    default: return start<T, Fp8<formats::E5m2>>(call, plan);
  }
}
template <class F>
Status start_from_fp8(const Call& call, const CopyPlan& plan) {
  switch (call.tensor(kOut).dtype) {
    case DType::kF32: return start<Fp8<F>, F32>(call, plan);
    case DType::kBF16: return start<Fp8<F>, Bf16>(call, plan);
    default: return start<Fp8<F>, F16>(call, plan);
  }
}

std::string refuses(const Call& call, const Machine&) {
  const CopyPlan plan = plan_of(call);
  return is_cast(call) ? refuse_cast(call, plan) : refuse_fast_copy(plan);
}

Status run(const Call& call) {
  const CopyPlan plan = plan_of(call);
  if (!is_cast(call)) return fast_copy(call, "copy", plan);
  switch (call.tensor(kX).dtype) {
    case DType::kF32: return start_from<F32>(call, plan);
    case DType::kBF16: return start_from<Bf16>(call, plan);
    case DType::kF16: return start_from<F16>(call, plan);
    case DType::kE4M3: return start_from_fp8<formats::E4m3>(call, plan);
    default: return start_from_fp8<formats::E5m2>(call, plan);
  }
}

Status run_any(const Call& call) {
  const CopyPlan plan = plan_of(call);
  if (!is_cast(call)) return any_copy(call, "copy_any", plan);
  return launch(call, "copy_any", {ceil_div(plan.elements, kThreads), kThreads}, cast_any,
                AnyTensor(call.tensor(kX)), AnyTensor(call.tensor(kOut)), plan.elements);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/copy",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/copy_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::copy
