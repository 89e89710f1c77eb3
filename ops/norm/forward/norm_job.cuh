// What the norms' kernels are given (norm_rows.cu, norm_staged.cu).
#pragma once

#include "backends/cuda/device/row/row_ring.cuh"
#include "backends/cuda/device/row/staged_rows.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "ops/norm/forward/norm_rows.h"
#include "ops/quant/output/quantized_output.cuh"

namespace pestle::ops::norm_device {

using namespace pestle::cuda;

// A tensor that is read beside x: rows of its own dtype.
struct Operand {
  const char* data = nullptr;
  int64_t row_bytes = 0;
  DType dtype = DType::kNone;

  Operand() = default;
  explicit Operand(const TensorView& t) {
    if (t.data == nullptr) return;
    data = t.as<const char>();
    row_bytes = t.rank == 1 ? 0 : row_distance(t);
    dtype = t.dtype;
  }
};

// Which of them there are, for norm_staged.cu: weight, or weight and bias, in x's dtype or in f32,
// scale and shift in x's dtype, or anything else.
enum class ParameterKind : int { kAny, kWeight, kWeightF32, kBiased, kBiasedF32, kModulated };

struct NormJob {
  ThreadGroupShape shape;
  StagedShape staged;  // norm_staged.cu
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  char* out = nullptr;
  int64_t out_row_bytes = 0;
  char* residual_out = nullptr;
  int64_t residual_out_row_bytes = 0;
  Operand residual, gate, weight, bias, scale, shift;
  FastDivisor rows_of_group;
  int columns = 0;
  int stages = 1;  // rows of x that are on their way or in use
  float eps = 0;
  float share = 1;  // 1 / columns
  bool subtract_mean = false;
  ParameterKind parameters = ParameterKind::kAny;
  RowQuantizer codes;
};

#ifdef __CUDACC__
// kChunk elements of an operand.
template <class E, int kChunk>
struct OperandChunk {
  typename E::Raw raw;
  __device__ void load(const char* p) { raw = E::load(p); }
  __device__ void values(float (&w)[kChunk]) const { E::to_f32(raw, w); }
};
template <class E>
struct OperandChunk<E, 4> {
  uint4 raw;
  __device__ void load(const char* p) {
    if constexpr (E::kBytes == 4) {
      raw = load16(p);
    } else {
      const uint2 half = __ldg(reinterpret_cast<const uint2*>(p));
      raw = make_uint4(half.x, half.y, 0, 0);
    }
  }
  __device__ void values(float (&w)[4]) const {
    float all[8];
    unpack_piece<E>(raw, all);
    for (int j = 0; j < 4; ++j) w[j] = all[j];
  }
};

// Four neighbours of an operand's row, from a column that is a multiple of 4 on.
__device__ inline float4 four_of(const Operand& o, const char* row, int column) {
  const char* from = row + static_cast<int64_t>(column) * (o.dtype == DType::kF32 ? 4 : 2);
  if (o.dtype == DType::kF32) return __ldg(reinterpret_cast<const float4*>(from));
  const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
  float v[8];
  if (o.dtype == DType::kBF16)
    unpack_piece<Bf16>(make_uint4(two.x, two.y, 0, 0), v);
  else
    unpack_piece<F16>(make_uint4(two.x, two.y, 0, 0), v);
  return make_float4(v[0], v[1], v[2], v[3]);
}

#endif

Status start_staged_norm(const Call& call, const char* name, NormJob& job, const NormRows& n);
// Does it take them?
bool takes_staged_norm(const NormRows& n, bool clusters);

}  // namespace pestle::ops::norm_device
