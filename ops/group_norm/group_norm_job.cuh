// What group_norm's kernels are told.
#pragma once

#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/device/row_ring.cuh"
#include "backends/cuda/device/tiles.h"
#include "ops/group_norm/group_norm_groups.h"

namespace pestle::ops::group_norm {

using namespace pestle::cuda;

struct Parameter {
  const char* data = nullptr;
  int64_t step = 0;  // bytes
  DType dtype = DType::kNone;

  explicit Parameter(const TensorView& t) {
    if (t.data == nullptr) return;
    data = t.as<const char>();
    step = t.strides[0] * dtype_bytes(t.dtype);
    dtype = t.dtype;
  }
  __device__ float load(int64_t channel, float absent) const {
    if (data == nullptr) return absent;
    AnyTensor any;
    any.dtype = dtype;
    return any.load(data + channel * step);
  }
  // Of an aligned one.
  __device__ float quick_load(int64_t channel, float absent) const {
    if (data == nullptr) return absent;
    const char* at = data + channel * step;
    if (dtype == DType::kF32) return __ldg(reinterpret_cast<const float*>(at));
    const uint32_t bits = __ldg(reinterpret_cast<const unsigned short*>(at));
    return dtype == DType::kBF16 ? __uint_as_float(bits << 16) : F16::pair(bits).x;
  }
};

struct Job {
  TeamShape shape;  // held
  int stages = 1;   // held: groups that are on their way or in use
  const char* x;
  char* out;
  Parameter weight, bias;
  int64_t groups;     // of a sample
  int64_t channels;   // of a group
  int64_t units;      // of a group
  FastDivisor plane;  // units of a channel
  float eps, share;   // 1 / elements of a group
  bool silu;
  int64_t tiles_of_chunk, chunks;  // long: of a group
  float4* parts;
};

#ifdef __CUDACC__
__device__ inline float silu_of(float v) { return __fdividef(v, 1.0f + __expf(-v)); }

__device__ inline int64_t first_channel_of(const Job& p, int64_t group) {
  return group % p.groups * p.channels;
}

// One piece of 16 bytes, no NaN among the values.
template <class T>
__device__ inline void store_numbers(char* to, const float* v) {
  if constexpr (T::kBytes == 2) {
    float w[kUnit];
    for (int j = 0; j < kUnit; ++j) w[j] = v[j];
    T::put(to, T::pack_numbers(w));
  } else {
    store16(to, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                           __float_as_uint(v[3])));
  }
}
#endif

}  // namespace pestle::ops::group_norm
