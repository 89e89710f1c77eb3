// stochastic_cast on CUDA.
// Map      dense tensors: a thread rounds 4 units of 8 elements, one call of the generator each.
//          _any: an element a thread, any strides.
// Traffic  x and out once
// Numerics exact: the bits of element i depend on seed and i alone
// Measured H200, 32760 x 5120: 233 us (4.32 TB/s, 100 % of copy)
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/launch.h"
#include "ops/copy/stochastic_cast/stochastic_cast_rule.h"
#include "ops/copy/stochastic_cast/stochastic_cast_spec.h"

namespace pestle::ops::stochastic_cast {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");

constexpr int kThreads = 256;
constexpr int kUnitsEach = 4;

__device__ inline uint4 round_unit(const F32::Raw& raw, uint64_t seed, uint64_t block) {
  float v[kUnit];
  F32::to_f32(raw, v);
  const formats::PhiloxWords random = formats::philox_block(seed, block);
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = bf16_stochastic(v[2 * i], static_cast<uint16_t>(random.w[i])) |
           static_cast<uint32_t>(
               bf16_stochastic(v[2 * i + 1], static_cast<uint16_t>(random.w[i] >> 16)))
               << 16;
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

__global__ void __launch_bounds__(kThreads)
    cast_units(const char* x, char* out, int64_t units, uint64_t seed) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnitsEach) + threadIdx.x;
  F32::Raw raw[kUnitsEach];
#pragma unroll
  for (int i = 0; i < kUnitsEach; ++i) {
    const int64_t unit = first + i * kThreads;
    if (unit < units) raw[i] = F32::load(x + unit * 32);
  }
#pragma unroll
  for (int i = 0; i < kUnitsEach; ++i) {
    const int64_t unit = first + i * kThreads;
    if (unit < units) store16(out + unit * 16, round_unit(raw[i], seed, unit));
  }
}

__global__ void __launch_bounds__(kThreads)
    cast_any(AnyTensor x, AnyTensor out, int64_t elements, uint64_t seed) {
  const int64_t element = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (element >= elements) return;
  int64_t rest = element, from = 0, to = 0;
  for (int d = x.rank - 1; d >= 0; --d) {
    const int64_t index = rest % x.shape[d];
    from += index * x.strides[d];
    to += index * out.strides[d];
    rest /= x.shape[d];
  }
  const uint16_t u = formats::philox_u16(seed, static_cast<uint64_t>(element));
  AnyTensor::put(out.data + to, bf16_stochastic(x.load(x.data + from), u), 2);
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& x = call.tensor(kX);
  const TensorView& out = call.tensor(kOut);
  if (numel(x) == 0) return "the tensor is empty";
  if (!is_contiguous(x) || !is_contiguous(out)) return "x or out has gaps";
  const auto addresses =
      reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(out.data);
  if (addresses % 16 != 0) return "x or out does not start at a multiple of 16 bytes";
  return numel(x) % kUnit == 0 ? "" : "the number of elements is no multiple of 8";
}

uint64_t seed_of(const Call& call) {
  return static_cast<uint64_t>(call.integer(arg_index(spec, "seed")));
}

Status run(const Call& call) {
  const int64_t units = numel(call.tensor(kX)) / kUnit;
  return launch(call, "stochastic_cast", {ceil_div(units, kThreads * kUnitsEach), kThreads},
                cast_units, call.tensor(kX).as<char>(), call.tensor(kOut).as<char>(), units,
                seed_of(call));
}

Status run_any(const Call& call) {
  const int64_t elements = numel(call.tensor(kX));
  return launch(call, "stochastic_cast_any", {ceil_div(elements, kThreads), kThreads}, cast_any,
                AnyTensor(call.tensor(kX)), AnyTensor(call.tensor(kOut)), elements, seed_of(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/stochastic_cast",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/stochastic_cast_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::stochastic_cast
