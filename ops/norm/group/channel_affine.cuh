// Weight, bias, gate, scale and shift of channels on CUDA, for group_norm and its gradients.
#pragma once

#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "ops/norm/group/channel_groups.h"

namespace pestle::ops {

// [C], or [G, C]: neighbouring samples share a row.
struct ChannelParameter {
  const char* data = nullptr;
  int64_t row_step = 0, step = 0;  // bytes
  DType dtype = DType::kNone;
  cuda::FastDivisor samples;  // that share a row

  ChannelParameter() = default;
  ChannelParameter(const TensorView& t, int64_t samples_each) {
    if (t.data == nullptr) return;
    data = t.as<const char>();
    dtype = t.dtype;
    step = t.strides[t.rank - 1] * dtype_bytes(dtype);
    if (t.rank == 1) return;
    row_step = t.strides[0] * dtype_bytes(dtype);
    samples = cuda::FastDivisor(static_cast<uint32_t>(samples_each > 0 ? samples_each : 1));
  }

#ifdef __CUDACC__
  __device__ const char* at(uint32_t sample, uint32_t channel) const {
    return data + samples.divide(sample) * row_step + channel * step;
  }
  // At any byte.
  __device__ float load(uint32_t sample, uint32_t channel, float absent) const {
    if (data == nullptr) return absent;
    cuda::AnyTensor any;
    any.dtype = dtype;
    any.is_aligned = false;
    return any.load(at(sample, channel));
  }
  // Of an aligned one.
  __device__ float quick_load(uint32_t sample, uint32_t channel, float absent) const {
    if (data == nullptr) return absent;
    const char* from = at(sample, channel);
    if (dtype == DType::kF32) return __ldg(reinterpret_cast<const float*>(from));
    const uint32_t bits = __ldg(reinterpret_cast<const unsigned short*>(from));
    return dtype == DType::kBF16 ? __uint_as_float(bits << 16) : cuda::F16::pair(bits).x;
  }
#endif
};

// Blocks that go through groups of one size in step all read, then all compute, and memory waits
// for them in between. They stay apart if they begin apart; loads of those that began earlier keep
// memory busy meanwhile. Clocks from one cluster's beginning to the next one's: what memory needs
// for the `bytes` that each asks for first. None where clusters go through a few groups only.
inline uint32_t begin_apart(int64_t groups, int64_t clusters, int64_t bytes) {
  constexpr int64_t kBytesOfClock = 2300;  // of an H200: 4.2 TB/s at 1.83 GHz
  return groups < 4 * clusters ? 0 : static_cast<uint32_t>(bytes / kBytesOfClock);
}
#ifdef __CUDACC__
__device__ inline void begin_late(uint32_t clocks) {
  if (clocks == 0) return;
  const int64_t until = clock64() + clocks;
  while (clock64() < until) __nanosleep(50);
}
#endif

// What a channel of a sample is multiplied by, and what is added to it: weight and bias with the
// modulation.
struct ChannelAffine {
  ChannelParameter weight, bias, scale, shift;

  ChannelAffine() = default;
  explicit ChannelAffine(const ChannelGroups& g)
      : weight(g.weight, 1),
        bias(g.bias, 1),
        scale(g.scale, g.samples_each()),
        shift(g.shift, g.samples_each()) {}

  // Why kernels that load whole elements don't take them; empty: they do.
  static std::string refuse(const ChannelGroups& g) {
    const struct {
      const char* name;
      const TensorView& tensor;
    } all[] = {{"weight", g.weight},
               {"bias", g.bias},
               {"gate", g.gate},
               {"scale", g.scale},
               {"shift", g.shift}};
    for (const auto& [name, t] : all) {
      if (t.data == nullptr) continue;
      if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_bytes(t.dtype)) != 0) {
        return std::string(name) + " is not aligned to its elements";
      }
    }
    return "";
  }

#ifdef __CUDACC__
  __device__ float2 modulated(float w, float b, float by, float to) const {
    if (scale.data == nullptr && shift.data == nullptr) return make_float2(w, b);
    return make_float2(w * (1.0f + by), __fmaf_rn(b, 1.0f + by, to));
  }
  __device__ float2 load(uint32_t sample, uint32_t channel) const {
    return modulated(weight.load(sample, channel, 1.0f), bias.load(sample, channel, 0.0f),
                     scale.load(sample, channel, 0.0f), shift.load(sample, channel, 0.0f));
  }
  __device__ float2 quick_load(uint32_t sample, uint32_t channel) const {
    return modulated(
        weight.quick_load(sample, channel, 1.0f), bias.quick_load(sample, channel, 0.0f),
        scale.quick_load(sample, channel, 0.0f), shift.quick_load(sample, channel, 0.0f));
  }
#endif
};

}  // namespace pestle::ops
