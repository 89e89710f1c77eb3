// How Hopper's kernels, attention's and its gradients', make logits of products where there is a soft
// cap or a mask, and a tile of a mask in registers.
#pragma once

#include <cuda_fp16.h>

#include "ops/attention/sm80/attention_call.cuh"

namespace pestle::cuda::attention_hopper {

// kElements: what does not lie in pairs that can be loaded at once, and f32.
enum class MaskKind : int { kNone, kBf16, kF16, kBool, kElements };

// logit = outer * (product, or tanh(inner * product)) + mask. Without an additive mask logits are kept
// without `outer`, which then is in `unit`.
struct LogitRule {
  float inner = 0;  // 0: no soft cap
  float outer = 1;
  float unit = 1;  // takes logits to those of 2^x
  MaskKind mask = MaskKind::kNone;
};

inline bool mask_lies_in_pairs(const AttentionRows& mask, int keys) {
  const int64_t bytes = dtype_bytes(mask.dtype), of_pair = 2 * bytes;
  return mask.column == bytes && keys % 2 == 0 &&
         reinterpret_cast<uintptr_t>(mask.data) % static_cast<uintptr_t>(of_pair) == 0 &&
         mask.batch % of_pair == 0 && mask.head % of_pair == 0 && mask.row % of_pair == 0;
}
inline MaskKind mask_kind(const AttentionRows& mask, int keys) {
  if (mask.dtype == DType::kNone) return MaskKind::kNone;
  if (!mask_lies_in_pairs(mask, keys)) return MaskKind::kElements;
  switch (mask.dtype) {
    case DType::kBF16: return MaskKind::kBf16;
    case DType::kF16: return MaskKind::kF16;
    case DType::kBool: return MaskKind::kBool;
    default: return MaskKind::kElements;
  }
}
inline LogitRule logit_rule(const AttentionCall& c) {
  LogitRule r;
  const float cap = std::fabs(c.softcap);  // its sign makes no difference
  r.inner = cap == 0 ? 0 : c.scale / cap;
  r.outer = cap == 0 ? c.scale : cap;
  r.mask = mask_kind(c.mask, c.keys);
  const bool additive = r.mask != MaskKind::kNone && c.mask.dtype != DType::kBool;
  r.unit = additive ? kLog2E : r.outer * kLog2E;
  return r;
}

#ifdef __CUDACC__

// Products to the soft cap's tanh, by a whole warp. It chooses for 16 of a thread's at once: more would
// be in work together than there are registers.
template <int kCount>
__device__ inline void bend(float (&products)[kCount], float inner) {
  constexpr int kAtOnce = 16;
  static_assert(kCount % kAtOnce == 0);
#pragma unroll
  for (int begin = 0; begin < kCount; begin += kAtOnce) {
    float most = 0;
#pragma unroll
    for (int i = begin; i < begin + kAtOnce; ++i) {
      products[i] *= inner;
      most = fmaxf(most, fabsf(products[i]));
    }
    if (__any_sync(~0u, most >= kSmallTanh)) {
#pragma unroll
      for (int i = begin; i < begin + kAtOnce; ++i) products[i] = tanh_by_both(products[i]);
    } else {
#pragma unroll
      for (int i = begin; i < begin + kAtOnce; ++i) products[i] = small_tanh(products[i]);
    }
  }
}

// Loads that stay where they are written: before the wait for a product.
template <int kBytes>
__device__ inline uint32_t load_now(const char* p) {
  uint32_t v;
  if constexpr (kBytes == 2)
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=r"(v) : "l"(p));
  else
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
template <int kBytes>
__device__ inline uint32_t load_now_if(bool there, const char* p) {
  uint32_t v = 0;
  if constexpr (kBytes == 2)
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.u16 %0, [%1];\n}"
                 : "+r"(v)
                 : "l"(p), "r"(static_cast<int>(there)));
  else
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.b32 %0, [%1];\n}"
                 : "+r"(v)
                 : "l"(p), "r"(static_cast<int>(there)));
  return v;
}

// A thread's elements of a tile of a mask: of every eight n of keys [n][h] is row h's (8 apart) pair
// of keys 8 n + lane % 4 * 2, as its logits [4 n + 2 h + e] lie.
template <int kKeys>
struct MaskTile {
  static constexpr int kEights = kKeys / 8;
  uint32_t pairs[kEights][2];

  // `from`: the first pair of row h. `left`: keys from it on that there are.
  __device__ void load_row(MaskKind kind, int h, const char* from, int left) {
    if (kind == MaskKind::kBool)
      load_pairs<2>(h, from, left);
    else
      load_pairs<4>(h, from, left);
  }
  // logits[i] = f(logits[i], mask): `mask` as a float.
  template <class F>
  __device__ void for_bf16(float (&logits)[kKeys / 2], F f) const {
    for_pairs(logits, f, [](uint32_t pair) {
      return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
    });
  }
  template <class F>
  __device__ void for_f16(float (&logits)[kKeys / 2], F f) const {
    for_pairs(logits, f, [](uint32_t pair) {
      return __half22float2(*reinterpret_cast<const __half2*>(&pair));
    });
  }
  __device__ void hide(float (&logits)[kKeys / 2]) const {
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if ((pairs[n][h] & 0xFF) == 0) logits[4 * n + 2 * h] = -INFINITY;
        if ((pairs[n][h] & 0xFF00) == 0) logits[4 * n + 2 * h + 1] = -INFINITY;
      }
  }

 private:
  template <int kBytes>
  __device__ void load_pairs(int h, const char* from, int left) {
    if (left >= kKeys) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) pairs[n][h] = load_now<kBytes>(from + n * 4 * kBytes);
    } else {
#pragma unroll
      for (int n = 0; n < kEights; ++n)
        pairs[n][h] = load_now_if<kBytes>(n * 8 < left, from + n * 4 * kBytes);
    }
  }
  template <class F, class Floats>
  __device__ void for_pairs(float (&logits)[kKeys / 2], F f, Floats floats) const {
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 mask = floats(pairs[n][h]);
        float& first = logits[4 * n + 2 * h];
        float& second = logits[4 * n + 2 * h + 1];
        first = f(first, mask.x);
        second = f(second, mask.y);
      }
  }
};

#endif  // __CUDACC__

}  // namespace pestle::cuda::attention_hopper
