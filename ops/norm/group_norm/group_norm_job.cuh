// What group_norm's kernels are told.
#pragma once

#include "backends/cuda/device/numeric/exponential.cuh"
#include "backends/cuda/device/row/row_ring.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "ops/norm/group/channel_affine.cuh"
#include "ops/norm/group_norm/group_norm_groups.h"
#include "ops/quant/rowwise/quantize_by_reciprocal.cuh"
#include "ops/quant/rowwise/quantize_unit.cuh"

namespace pestle::ops::group_norm {

using namespace pestle::cuda;

struct Job {
  ThreadGroupShape shape;  // of the kernel in registers
  int stages = 1;          // the same: groups that are on their way or in use
  const char *x, *residual;
  char *out, *residual_out;  // may be absent
  uint8_t* q;                // codes of out under one given scale; may be absent
  const char* q_scale;
  ChannelParameter gate;
  ChannelAffine affine;
  FastDivisor groups;  // of a sample
  uint32_t channels;   // of a group
  int64_t units;       // of a group
  FastDivisor plane;   // units of a channel
  float eps, share;    // 1 / elements of a group
  bool silu;

  bool sums() const { return residual != nullptr || gate.data != nullptr; }
};

#ifdef __CUDACC__
__device__ inline float silu_of(float v) { return __fdividef(v, 1.0f + __expf(-v)); }
// SiLU of two at a time: the reciprocal, one for both, is the slowest instruction. What 2^60
// swallows is 0 beside the result's rounding. No infinity and no NaN among them.
template <int kCount>
__device__ inline void silu_pairs(float* v) {
  for (int j = 0; j < kCount; j += 2) {
    const float a = 1.0f + quick_exp2(fminf(v[j] * -kLog2E, 60.0f));
    const float c = 1.0f + quick_exp2(fminf(v[j + 1] * -kLog2E, 60.0f));
    const float r = quick_reciprocal(a * c);
    v[j] *= r * c;
    v[j + 1] *= r * a;
  }
}

// A group's sample, and the first of its channels.
struct Place {
  uint32_t sample, channel;

  __device__ Place(const Job& p, uint32_t group) : sample(p.groups.divide(group)) {
    channel = (group - sample * p.groups.divisor) * p.channels;
  }
};

// kCount values of a unit: (v - mean) * rstd * factor + addend of its channel, silu of it.
template <int kCount>
__device__ inline void finish(const Job& p, const Place& place, int unit, float mean, float rstd,
                              float* v) {
  const float2 wb = p.affine.quick_load(place.sample, place.channel + p.plane.divide(unit));
  const float w = wb.x * rstd;
  for (int j = 0; j < kCount; ++j) v[j] = __fmaf_rn(v[j] - mean, w, wb.y);
  if (!p.silu) return;
  if (fabsf(mean) < 1e30f && rstd < 1e18f && fabsf(wb.x) + fabsf(wb.y) < 1e18f) {
    silu_pairs<kCount>(v);
  } else {
    for (int j = 0; j < kCount; ++j) v[j] = silu_of(v[j]);
  }
}

// One piece of 16 bytes, no NaN among the values.
template <class T>
__device__ inline uint4 round_numbers(const float* v) {
  if constexpr (T::kBytes == 2) {
    float w[kUnit];
    for (int j = 0; j < kUnit; ++j) w[j] = v[j];
    return T::pack_numbers(w).v;
  } else {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                      __float_as_uint(v[3]));
  }
}
template <class T>
__device__ inline uint4 round_piece(const float* v) {
  if constexpr (T::kBytes == 2) {
    float w[kUnit];
    for (int j = 0; j < kUnit; ++j) w[j] = v[j];
    return round_unit<T>(w).v;
  } else {
    uint32_t w[4];
    for (int j = 0; j < 4; ++j) w[j] = v[j] != v[j] ? formats::kF32Nan : __float_as_uint(v[j]);
    return make_uint4(w[0], w[1], w[2], w[3]);
  }
}
// Codes of a piece of rounded values.
template <class T>
__device__ __noinline__ void put_codes(uint8_t* to, uint4 piece, const char* scale) {
  const Divider by = Divider::by(__uint_as_float(__ldg(reinterpret_cast<const uint32_t*>(scale))));
  typename T::Raw raw = T::zero();
  if constexpr (T::kBytes == 2)
    raw.v = piece;
  else
    raw.low = piece;
  const uint2 codes = encode_unit<T, Fp8Code<formats::E4m3>, false>(raw, by, {false, 0}, 0);
  if constexpr (T::kBytes == 2)
    store8(to, codes);
  else
    store4(to, codes.x);
}
// What numbers are multiplied by for their codes, where that decides as the quotient by the scale
// does; else 0. By whole warps.
template <class T>
__device__ inline float code_factor(const char* q_scale) {
  using Code = Fp8Code<formats::E4m3>;
  const float scale = __uint_as_float(__ldg(reinterpret_cast<const uint32_t*>(q_scale)));
  const ByteRule rule = given_rule<T, Code>(scale);
  return rule.by_reciprocal && scale >= 0x1p-60f && scale <= 0x1p60f ? rule.factor : 0.0f;
}
// A piece of rounded values and its codes; `at`: its first byte in out. `factor`: code_factor, or 0
// where NaN may be among them.
template <class T>
__device__ inline void store_result(const Job& p, int64_t at, const uint4& piece, float factor) {
  if (p.out != nullptr) store16(p.out + at, piece);
  if (p.q == nullptr) return;
  if constexpr (T::kBytes == 2) {
    if (factor != 0) {
      float v[kUnit];
      T::to_f32({piece}, v);
      for (int j = 0; j < kUnit; ++j) v[j] *= factor;
      store8(p.q + at / T::kBytes, fp8_codes<formats::E4m3>(v));
      return;
    }
  }
  put_codes<T>(p.q + at / T::kBytes, piece, p.q_scale);
}
#endif

}  // namespace pestle::ops::group_norm
