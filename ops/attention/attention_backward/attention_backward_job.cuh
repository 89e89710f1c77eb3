// What the CUDA kernels of attention_backward are given, and how they make exponentials.
#pragma once

#include "ops/attention/attention_backward/attention_backward_call.h"
#include "ops/attention/sm80/attention_call.cuh"

namespace pestle::ops::attention_backward {

using cuda::AttentionCall;
using cuda::AttentionRows;
using cuda::SeenKeys;

inline constexpr int kTile = 64;  // queries or keys of a tile, in fast kernels and in slow ones

// A word of BackwardJob: a gradient's tile that has no f16 parts, which tiles of f32 make.
inline constexpr int kLeft = 2;

// Of a query: lse in units of ln 2, +infinity where it does not count, and delta = d_out . out.
struct alignas(8) RowFacts {
  float lse, delta;
};

struct BackwardJob {
  AttentionCall call;
  AttentionRows d_out, d_q, d_k, d_v;
  RowFacts* facts = nullptr;  // [B, Hq, Sq]
  // A word for each tile: 1 where a fast kernel left a gradient to be made again.
  int* redo_k = nullptr;
  int* redo_v = nullptr;
  int* redo_q = nullptr;
  // Takes products to logits in units of ln 2, or with a soft cap to its argument.
  float factor = 1;
  float softcap_log2 = 0;  // 0: none
  bool aligned = false;    // what is read lies at whole elements
  bool only_left = false;  // tiles of f32: only those whose word is kLeft

  int query_tiles() const { return (call.queries + kTile - 1) / kTile; }
  int key_tiles() const { return (call.keys + kTile - 1) / kTile; }
#ifdef __CUDACC__
  __device__ const RowFacts* facts_of(int b, int h) const {
    return facts + (int64_t{b} * call.heads + h) * call.queries;
  }
#endif
};

#ifdef __CUDACC__

constexpr float kInfinity = __builtin_huge_valf();

// 2^y, at most 2^127, 0 below 2^-126; NaN of NaN.
__device__ inline float bounded_exp2(float y) {
  float at_most;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(at_most) : "f"(y), "f"(127.0f));
  return cuda::quick_exp2(at_most);
}

__device__ inline float load_element(const char* p, DType dtype, bool aligned) {
  if (!aligned) return cuda::load_float(p, dtype);
  switch (dtype) {
    case DType::kBF16: return formats::f32_from_bf16(__ldg(reinterpret_cast<const uint16_t*>(p)));
    case DType::kF16: return formats::f32_from_f16(__ldg(reinterpret_cast<const uint16_t*>(p)));
    default: return __ldg(reinterpret_cast<const float*>(p));
  }
}

// What the mask does to a logit in units of ln 2; -infinity: the key is not there, whatever its
// product is.
__device__ __noinline__ inline float mask_logit(float t, const char* mask, DType dtype) {
  if (dtype == DType::kBool) return *mask != 0 ? t : -kInfinity;
  return t + cuda::load_float(mask, dtype) * kLog2E;
}

// A logit in units of ln 2, and the slope of the soft cap.
struct Logit {
  float t, slope;
};
// `mask`: the element of this query and key, where there is a mask.
__device__ inline Logit logit_of(const BackwardJob& job, float product, const char* mask) {
  Logit logit{product * job.factor, 1};
  if (job.softcap_log2 != 0) {
    const float bent = cuda::tanh_of(logit.t);
    logit = {bent * job.softcap_log2, __fmaf_rn(-bent, bent, 1.0f)};
  }
  if (job.call.mask.present()) logit.t = mask_logit(logit.t, mask, job.call.mask.dtype);
  return logit;
}
// 0 where the key or the query does not count.
__device__ inline float weight_of(float t, float lse) {
  return t == -kInfinity || lse == kInfinity ? 0 : bounded_exp2(t - lse);
}

#endif  // __CUDACC__

}  // namespace pestle::ops::attention_backward
