// The pieces of norm_warps.cu: a warp's row in shared memory, the copy engine that brings the next
// one, parameters, statistics.
#pragma once

#include "backends/cuda/device/tensor/tensor_sums.cuh"
#include "backends/cuda/device/tensor/tensor_unpack.cuh"
#include "ops/norm/forward/norm_job.cuh"
#include "ops/quant/block/quick_nvfp4.cuh"
#include "ops/quant/rowwise/quantize_staged.cuh"

namespace pestle::ops::norm_device {

#ifdef __CUDACC__

using namespace row_quantizer;

constexpr int kStepBytes = 1024;       // of a warp's row: two pieces of 16 bytes a lane
constexpr int kParameterBytes = 2048;  // of a step
constexpr int kStepRuns = 32;          // of a step: 16 elements each
constexpr int kTurnSteps = 2;          // worked on together

#endif

struct WarpRows {
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  char* out = nullptr;
  int64_t out_row_bytes = 0;
  Operand factor, addend;
  float one = 0;  // added to factors
  float eps = 0, share = 1;
  int units = 0;  // of a row: 8 elements
  int steps = 0;  // of a row, a multiple of kTurnSteps
  int warps = 0;
  int groups = 1, rows_of_group = 1, blocks_of_group = 1;
  float zeros[4] = {0, 0, 0, 0};  // which the compiler does not know
  RowQuantizer codes;
};

#ifdef __CUDACC__

// ---- the copy engine ----

__device__ inline void bring(uint32_t to, const char* from, int bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}
__device__ inline void expect(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
// The block's own scope: with the cluster's each wait empties the L1.
__device__ inline void await(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
#endif
}

// One lane of the warp, in a way that the compiler knows to be one.
__device__ inline bool elected() {
  uint32_t is_one = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, one;\n}"
               : "=r"(is_one));
#endif
  return is_one != 0;
}

// ---- parameters ----

// Column of a lane's quad i of a step, in the order in which it reads its two pieces.
__device__ inline int column_of(int step, int lane, int i) {
  const int first = step * (kStepRuns * kRun);
  return first + lane * kRun + (i ^ (lane >> 1 & 2)) * 4;
}
// f32 of all columns, quad by quad of a step's lanes, zeros past the row's end; by the whole block.
// Are this thread's ordinary numbers?
__device__ inline bool fill(const WarpRows& p, const Operand& o, float absent, float one, int group,
                            float4* to) {
  bool plain = true;
  const char* row = o.data == nullptr ? nullptr : row_at(o.data, o.row_bytes, group);
#pragma unroll 4
  for (int i = threadIdx.x; i < p.steps * 128; i += blockDim.x) {
    const int column = column_of(i / 128, i % 32, i / 32 % 4);
    float4 v = make_float4(0, 0, 0, 0);
    if (column < p.units * kUnit) {
      v = make_float4(absent, absent, absent, absent);
      if (row != nullptr) {
        v = four_of(o, row, column);
        v = make_float4(one + v.x, one + v.y, one + v.z, one + v.w);
      }
    }
    plain = plain && fabsf(v.x) < 0x1p100f && fabsf(v.y) < 0x1p100f && fabsf(v.z) < 0x1p100f &&
            fabsf(v.w) < 0x1p100f;
    to[i] = v;
  }
  return plain;
}

// ---- a row ----

struct RowPlace {
  uint32_t x;       // this lane's first piece of step 0; its second by exclusive or
  uint32_t factor;  // its first quad of step 0
  uint32_t addend;
  uint32_t row;  // the warp's row
  uint32_t barrier;

  __device__ void load(int step, uint4 (&v)[2]) const {
    const uint32_t at = x + step * kStepBytes;
    v[0] = load_shared(at);
    v[1] = load_shared(at ^ kPieceBytes);
  }
};

// The warp's next row, which comes in the place of this one, turn by turn.
struct NextRow {
  const char* from;
  uint32_t to, barrier;
  int left;  // bytes

  __device__ NextRow(const char* row, uint32_t place, uint32_t arrived, int bytes)
      : from(row), to(place), barrier(arrived), left(row == nullptr ? 0 : bytes) {
    if (left > 0 && elected()) expect(barrier, left);
  }
  // All lanes have read the turn's steps.
  __device__ void bring_turn() {
    __syncwarp();
    if (left > 0 && elected()) bring(to, from, min(left, kTurnSteps * kStepBytes), barrier);
    left -= kTurnSteps * kStepBytes;
    from += kTurnSteps * kStepBytes;
    to += kTurnSteps * kStepBytes;
    asm volatile("" : "+r"(to));
    asm volatile("" : "+l"(from));
  }
};

// Sums of the row's numbers, in lane 0's, and of their squares, in lane 1's.
template <bool kMean>
__device__ inline float2 row_sums(const WarpRows& p, const RowPlace& at) {
  TensorSum<Bf16> sum;
  TensorSquares<Bf16> squares;
#pragma unroll 1
  for (int s = 0; s < p.steps; s += kTurnSteps) {
    uint4 x[kTurnSteps][2];
#pragma unroll
    for (int u = 0; u < kTurnSteps; ++u) at.load(s + u, x[u]);
#pragma unroll
    for (int u = 0; u < kTurnSteps; ++u) {
      for (const uint4& piece : x[u]) {
        if (kMean) sum.add(piece);
        squares.add(piece);
      }
    }
  }
  float all = squares.share();  // one lane of four has any
  all += __shfl_xor_sync(~0u, all, 1);
  all += __shfl_xor_sync(~0u, all, 2);
  if (kMean && threadIdx.x % 4 == 0) all = sum.d[0] + sum.d[2];  // every lane of four has it
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) all += __shfl_xor_sync(~0u, all, distance);
  const float of_squares = __shfl_sync(~0u, all, 1);
  return make_float2(kMean ? __shfl_sync(~0u, all, 0) : 0.0f, of_squares);
}
// Where little of the squares is left about the mean: squared differences. `row`: units that lie
// one after another, each lane's every 32.
__device__ __noinline__ inline float squares_about(uint32_t row, int units, float mean) {
  float sum = 0;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < units; i += 32) {
    float v[kUnit];
    unpack_piece<Bf16>(load_shared(row + i * kPieceBytes), v);
    for (const float one : v) sum = __fmaf_rn(one - mean, one - mean, sum);
  }
  __syncwarp();
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  return sum;
}

template <bool kAdds>
__device__ inline void apply(const RowPlace& at, int step, float (&v)[kRun]) {
  const auto quad = [&](uint32_t of, int i) {
    const uint4 bits = load_shared(of + step * kParameterBytes + i * 512);
    return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                       __uint_as_float(bits.w));
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 w = quad(at.factor, i);
    float* four = v + 4 * i;
    if constexpr (kAdds) {
      const float4 b = quad(at.addend, i);
      four[0] = __fmaf_rn(four[0], w.x, b.x);
      four[1] = __fmaf_rn(four[1], w.y, b.y);
      four[2] = __fmaf_rn(four[2], w.z, b.z);
      four[3] = __fmaf_rn(four[3], w.w, b.w);
    } else {
      four[0] *= w.x;
      four[1] *= w.y;
      four[2] *= w.z;
      four[3] *= w.w;
    }
  }
}

// The row's statistics, and the values of a step that follow from them and the parameters.
template <bool kMean, bool kAdds>
struct RowValues {
  const RowPlace& at;
  float mean = 0, rstd;
  bool plain;  // all of it is finite
  TensorScale by;

  __device__ RowValues(const WarpRows& p, const RowPlace& place, bool are_plain)
      : at(place), by(0.0f) {
    const float2 sums = row_sums<kMean>(p, at);
    float squares = sums.y;
    if constexpr (kMean) {
      mean = sums.x * p.share;
      squares = __fmaf_rn(-sums.x, mean, sums.y);
      if (!(squares > sums.y * 0x1p-5f)) squares = squares_about(at.row, p.units, mean);
    }
    rstd = rsqrtf(__fmaf_rn(squares, p.share, p.eps));
    plain = are_plain && squares < 0x1p120f && rstd < 0x1p60f;
    by = TensorScale(rstd);
    if constexpr (kMean)
      by.add(-mean * by.factor, p.zeros);
    else
      by.add_nothing();
  }
  // Of plain rows: before parameters.
  __device__ void normalise(const uint4 (&x)[2], float (&v)[kRun]) const {
    by.apply(x[0], v);
    by.apply(x[1], v + kUnit);
  }
  __device__ void any_normalise(const uint4 (&x)[2], float (&v)[kRun]) const {
    unpack_piece<Bf16>(x[0], v);
    unpack_piece<Bf16>(x[1], v + kUnit);
#pragma unroll
    for (float& one : v) one = __fmaf_rn(one, rstd, -mean * rstd);
  }
  __device__ void finish(int step, float (&v)[kRun]) const { apply<kAdds>(at, step, v); }
};

#endif

}  // namespace pestle::ops::norm_device
