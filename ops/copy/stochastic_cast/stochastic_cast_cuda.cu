// stochastic_cast on CUDA.
// Map      dense tensors: a thread rounds 4 units of 8 elements, one call of the generator each.
//          _any: 8 elements a thread, any strides.
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

// A warp's 256 elements, in turn by its lanes; a lane has the random numbers of 8 neighbours.
__global__ void __launch_bounds__(kThreads)
    cast_any(const __grid_constant__ AnyTensor x, const __grid_constant__ AnyTensor out,
             int64_t elements, uint64_t seed) {
  __shared__ uint4 random[kThreads];
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const formats::PhiloxWords words = formats::philox_block(seed, static_cast<uint64_t>(block));
  random[threadIdx.x] = make_uint4(words.w[0], words.w[1], words.w[2], words.w[3]);
  __syncwarp();
  const int lane = threadIdx.x % 32;
  const int64_t first = (block - lane) * kUnit + lane;
  const int count = static_cast<int>(
      max(min((elements - first + 31) / 32, static_cast<int64_t>(kUnit)), int64_t{0}));
  float v[kUnit];
  x.load_elements(first, 32, count, v);
  const auto* numbers = reinterpret_cast<const uint16_t*>(random + threadIdx.x - lane) + lane;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    if (i >= count) break;
    char* to = out.element_at(first + i * 32);
    const uint16_t rounded = bf16_stochastic(v[i], numbers[i * 32]);
    if (out.is_aligned)
      *reinterpret_cast<uint16_t*>(to) = rounded;
    else
      AnyTensor::put(to, rounded, 2);
  }
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
  return launch(call, "stochastic_cast_any", {ceil_div(elements, kThreads * kUnit), kThreads},
                cast_any, AnyTensor::merged(call.tensor(kX)), AnyTensor::merged(call.tensor(kOut)),
                elements, seed_of(call));
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
